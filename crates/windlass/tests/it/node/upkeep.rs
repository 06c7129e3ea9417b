//! What a node does by itself, so that a program needs no server.

use windlass::{NewSchedule, Node, Status};

use super::*;

conformance! {
    // C11
    async fn a_node_fires_schedules_and_handles_what_they_publish(bed) {
        let queue = &real(bed, brisk()).await;
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

    async fn a_node_sees_to_its_namespace(bed) {
        let queue = bed.namespace(brisk()).await;
        let event = publish_new(&queue, NewEvent::new("t").expires_in(secs(5))).await.id;
        bed.advance(secs(5));
        let running = start(Node::new(&queue, "n")).await;
        until(&queue, event, Status::Expired).await;
        running.stop().await;
        assert!(queue.maintenance_tasks().await.unwrap().iter().any(|task| task.done == Some(1)));
    }
}
