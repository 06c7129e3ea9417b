//! Maintenance tasks: each runs once when it is due, in one of the processes, and its result is visible to all.

use windlass::{MaintenanceTask, MaintenanceTaskView, NewEvent, Queue, Status};

use crate::support::*;
use windlass_testkit::Kind;

async fn task_view(queue: &Queue, task: MaintenanceTask) -> MaintenanceTaskView {
    let tasks = queue.maintenance_tasks().await.unwrap();
    tasks.into_iter().find(|view| view.task == task).expect("the task has run")
}

async fn run_due_tasks(queue: &Queue) -> Vec<MaintenanceTask> {
    let runs = queue.maintain_once().await.unwrap();
    runs.into_iter().map(|run| run.task).collect()
}

conformance! {
    async fn task_runs_when_it_is_due(bed) {
        let all = run_due_tasks(&bed.queue).await;
        assert!(all.contains(&MaintenanceTask::ReleaseExpired) && all.contains(&MaintenanceTask::Prune), "{all:?}");
        assert_eq!(run_due_tasks(&bed.queue).await, []);
        bed.advance(secs(8));
        assert_eq!(run_due_tasks(&bed.queue).await, []);
        bed.advance(secs(3));
        assert_eq!(run_due_tasks(&bed.queue).await, [MaintenanceTask::ReleaseExpired, MaintenanceTask::Expire]);
        assert_eq!(task_view(&bed.queue, MaintenanceTask::ReleaseExpired).await.runs, 2);
        assert_eq!(task_view(&bed.queue, MaintenanceTask::Prune).await.runs, 1);
    }

    async fn task_result_is_visible_to_all_processes(bed) {
        let expires_at = after(bed.now(), secs(5));
        let event = publish_new(&bed.queue, NewEvent::new("t").expires_at(expires_at)).await.id;
        bed.advance(secs(5));
        bed.queue.maintain_once().await.unwrap();
        assert_eq!(status(&bed.queue, event).await, Status::Expired);
        let seen = task_view(&bed.second_queue().await, MaintenanceTask::Expire).await;
        assert_eq!((seen.done, seen.last_run_at, seen.error), (Some(1), Some(bed.now()), None));
        assert!(seen.next_at > after(bed.now(), secs(8)) && seen.next_at < after(bed.now(), secs(12)));
        assert!(seen.took_ms.is_some() && seen.worker_id.contains(&std::process::id().to_string()));
    }

    async fn one_of_several_processes_runs_a_task(bed) {
        let mut processes = Vec::new();
        for _ in 0..4 {
            processes.push(bed.second_queue().await);
        }
        for round in 1..=5 {
            bed.advance(secs(600));
            let all = run_concurrently(&processes).await;
            assert_eq!(all.iter().filter(|task| **task == MaintenanceTask::ReleaseExpired).count(), 1, "{all:?}");
            assert_eq!(all.iter().filter(|task| **task == MaintenanceTask::Prune).count(), 1, "{all:?}");
            assert_eq!(task_view(&bed.queue, MaintenanceTask::ReleaseExpired).await.runs, round);
        }
    }

    async fn namespaces_are_maintained_separately(bed) {
        let other = bed.namespace(Default::default()).await;
        run_due_tasks(&bed.queue).await;
        assert!(other.maintenance_tasks().await.unwrap().is_empty());
        assert!(run_due_tasks(&other).await.contains(&MaintenanceTask::ReleaseExpired));
    }

    async fn task_of_dead_process_is_taken_over(bed) {
        run_due_tasks(&bed.queue).await;
        let held_until = after(bed.now(), secs(60));
        let (table, held_until) = match bed.database.kind {
            Kind::Sqlite => ("maintenance_tasks", held_until.timestamp_micros().to_string()),
            Kind::Postgres => ("windlass.maintenance_tasks", format!("'{held_until}'")),
        };
        let update = format!("UPDATE {table} SET held_until = {held_until}, worker_id = 'dead' WHERE task = 'release_expired'");
        bed.database.execute(&update).await;
        bed.advance(secs(59));
        let all = run_due_tasks(&bed.queue).await;
        assert!(all.contains(&MaintenanceTask::Expire) && !all.contains(&MaintenanceTask::ReleaseExpired), "{all:?}");
        assert_eq!(task_view(&bed.queue, MaintenanceTask::ReleaseExpired).await.worker_id, "dead");
        bed.advance(secs(1));
        assert!(run_due_tasks(&bed.queue).await.contains(&MaintenanceTask::ReleaseExpired));
        assert_ne!(task_view(&bed.queue, MaintenanceTask::ReleaseExpired).await.worker_id, "dead");
    }

    async fn clock_set_back_stops_no_task(bed) {
        bed.advance(secs(365 * 24 * 3600));
        run_due_tasks(&bed.queue).await;
        bed.test_clock.set("2025-12-24T10:30:00Z".parse().unwrap());
        let all = run_due_tasks(&bed.queue).await;
        assert!(all.contains(&MaintenanceTask::ReleaseExpired) && all.contains(&MaintenanceTask::Prune), "{all:?}");
        assert_eq!(run_due_tasks(&bed.queue).await, []);
    }
}

async fn run_concurrently(queues: &[Queue]) -> Vec<MaintenanceTask> {
    let mut running = tokio::task::JoinSet::new();
    for queue in queues {
        let queue = queue.clone();
        running.spawn(async move { run_due_tasks(&queue).await });
    }
    running.join_all().await.into_iter().flatten().collect()
}
