//! Maintenance by a node: an application needs no server for schedules and other periodic tasks.

use windlass::{NewSchedule, Node, Status};

use super::*;

conformance! {
    // C11
    async fn node_fires_schedules_and_handles_their_events(bed) {
        let queue = &real_time_namespace(bed, immediate_retries()).await;
        let ledger = Ledger::default();
        let node = Node::new(queue, "n").on("tick", {
            let ledger = ledger.clone();
            move |event, _| {
                let ledger = ledger.clone();
                async move { ledger.write(event.scheduled_task_id.clone().unwrap_or_default()); Ok(()) }
            }
        });
        let running = start(node).await;
        let every_second = NewSchedule::new("s", "* * * * * *", NewEvent::new("tick"));
        let id = queue.add_schedule(every_second).await.unwrap().id;
        ledger.wait(2).await;
        running.stop().await;
        let lines = ledger.lines();
        assert!(lines.iter().all(|line| *line == id), "{lines:?}");
        let fires = queue.schedule_fires(&id, None, 100).await.unwrap();
        let mut ticks: Vec<_> = fires.iter().map(|fire| fire.tick_at).collect();
        ticks.dedup();
        assert_eq!(ticks.len(), fires.len());
    }

    async fn node_runs_maintenance_tasks(bed) {
        let queue = bed.namespace(immediate_retries()).await;
        let event = publish_new(&queue, NewEvent::new("t").expires_in(secs(5))).await.id;
        bed.advance(secs(5));
        let running = start(Node::new(&queue, "n")).await;
        wait_for_status(&queue, event, Status::Expired).await;
        running.stop().await;
        assert!(queue.maintenance_tasks().await.unwrap().iter().any(|task| task.done == Some(1)));
    }
}
