//! Tasks: each is done once in its time, by whoever comes first, and everyone sees what came of it.

use windlass::{MaintenanceTask, MaintenanceTaskView, NewEvent, Queue, Status};

use crate::bed::Kind;
use crate::support::*;

async fn task(queue: &Queue, task: MaintenanceTask) -> MaintenanceTaskView {
    let tasks = queue.maintenance_tasks().await.unwrap();
    tasks.into_iter().find(|view| view.task == task).expect("the task was taken")
}

async fn done(queue: &Queue) -> Vec<MaintenanceTask> {
    let runs = queue.maintain_once().await.unwrap();
    runs.into_iter().map(|run| run.task).collect()
}

conformance! {
    async fn a_duty_is_done_when_it_is_due(bed) {
        let all = done(&bed.queue).await;
        assert!(all.contains(&MaintenanceTask::ReleaseExpired) && all.contains(&MaintenanceTask::Prune), "{all:?}");
        assert_eq!(done(&bed.queue).await, []);
        bed.advance(secs(8));
        assert_eq!(done(&bed.queue).await, []);
        bed.advance(secs(3));
        assert_eq!(done(&bed.queue).await, [MaintenanceTask::ReleaseExpired, MaintenanceTask::Expire]);
        assert_eq!(task(&bed.queue, MaintenanceTask::ReleaseExpired).await.runs, 2);
        assert_eq!(task(&bed.queue, MaintenanceTask::Prune).await.runs, 1);
    }

    async fn everyone_sees_what_was_done(bed) {
        let expires_at = after(bed.now(), secs(5));
        let event = publish_new(&bed.queue, NewEvent::new("t").expires_at(expires_at)).await.id;
        bed.advance(secs(5));
        bed.queue.maintain_once().await.unwrap();
        assert_eq!(status(&bed.queue, event).await, Status::Expired);
        let seen = task(&bed.other().await, MaintenanceTask::Expire).await;
        assert_eq!((seen.done, seen.last_run_at, seen.error), (Some(1), Some(bed.now()), None));
        assert!(seen.next_at > after(bed.now(), secs(8)) && seen.next_at < after(bed.now(), secs(12)));
        assert!(seen.took_ms.is_some() && seen.worker_id.contains(&std::process::id().to_string()));
    }

    async fn of_several_processes_one_does_it(bed) {
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(bed.other().await);
        }
        for round in 1..=5 {
            bed.advance(secs(600));
            let all = all_at_once(&others).await;
            assert_eq!(all.iter().filter(|task| **task == MaintenanceTask::ReleaseExpired).count(), 1, "{all:?}");
            assert_eq!(all.iter().filter(|task| **task == MaintenanceTask::Prune).count(), 1, "{all:?}");
            assert_eq!(task(&bed.queue, MaintenanceTask::ReleaseExpired).await.runs, round);
        }
    }

    async fn namespaces_are_seen_to_apart(bed) {
        let other = bed.namespace(Default::default()).await;
        done(&bed.queue).await;
        assert!(other.maintenance_tasks().await.unwrap().is_empty());
        assert!(done(&other).await.contains(&MaintenanceTask::ReleaseExpired));
    }

    async fn whoever_died_over_a_duty_is_replaced(bed) {
        done(&bed.queue).await;
        let held = after(bed.now(), secs(60));
        let (table, held) = match bed.database.kind {
            Kind::Sqlite => ("tasks", held.timestamp_micros().to_string()),
            Kind::Postgres => ("windlass.maintenance_tasks", format!("'{held}'")),
        };
        let hold = format!("UPDATE {table} SET held_until = {held}, worker_id = 'dead' WHERE task = 'sweep'");
        bed.database.execute(&hold).await;
        bed.advance(secs(59));
        let all = done(&bed.queue).await;
        assert!(all.contains(&MaintenanceTask::Expire) && !all.contains(&MaintenanceTask::ReleaseExpired), "{all:?}");
        assert_eq!(task(&bed.queue, MaintenanceTask::ReleaseExpired).await.worker_id, "dead");
        bed.advance(secs(1));
        assert!(done(&bed.queue).await.contains(&MaintenanceTask::ReleaseExpired));
        assert_ne!(task(&bed.queue, MaintenanceTask::ReleaseExpired).await.worker_id, "dead");
    }

    async fn a_clock_that_was_put_back_stops_nothing(bed) {
        bed.advance(secs(365 * 24 * 3600));
        done(&bed.queue).await;
        bed.hand.set("2025-12-24T10:30:00Z".parse().unwrap());
        let all = done(&bed.queue).await;
        assert!(all.contains(&MaintenanceTask::ReleaseExpired) && all.contains(&MaintenanceTask::Prune), "{all:?}");
        assert_eq!(done(&bed.queue).await, []);
    }
}

async fn all_at_once(queues: &[Queue]) -> Vec<MaintenanceTask> {
    let mut running = tokio::task::JoinSet::new();
    for queue in queues {
        let queue = queue.clone();
        running.spawn(async move { done(&queue).await });
    }
    running.join_all().await.into_iter().flatten().collect()
}
