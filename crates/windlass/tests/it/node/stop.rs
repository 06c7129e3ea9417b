//! Stopping a node: no event is lost, and no other node waits for a lease to expire.

use std::time::Duration;

use tokio::sync::Semaphore;
use windlass::{Action, Node, Policy, Status};

use super::*;

/// A policy with leases that do not expire during a test.
fn long_leases() -> Policy {
    Policy { lease_ms: 600_000, ..immediate_retries() }
}

/// A handler that records that it began, waits for a permit, and records that it ended.
fn gated_handler(ledger: &Ledger, gate: &Arc<Semaphore>) -> windlass::Handler {
    let (ledger, gate) = (ledger.clone(), gate.clone());
    windlass::Handler::new("t", move |_, _| {
        let (ledger, gate) = (ledger.clone(), gate.clone());
        async move {
            ledger.write("began");
            gate.acquire().await?.forget();
            ledger.write("ended");
            Ok(())
        }
    })
}

conformance! {
    // C14
    async fn stopping_node_finishes_running_events_and_claims_no_more(bed) {
        let (queue, ledger, gate) = (real_time_namespace(bed, long_leases()).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").concurrency(2).handler(gated_handler(&ledger, &gate))).await;
        let events = publish_many(&queue, "t", 5).await;
        ledger.wait(2).await;
        let stopping = tokio::spawn(node.stop());
        let late = publish(&queue, "t").await;
        gate.add_permits(10);
        stopping.await.unwrap();
        assert_eq!((ledger.count("began"), ledger.count("ended")), (2, 2));
        let mut completed = 0;
        for event in events.iter().chain([&late.id]) {
            match status(&queue, *event).await {
                Status::Completed => completed += 1,
                // Other claimed events were released.
                other => assert_eq!(other, Status::Pending),
            }
        }
        assert_eq!(completed, 2);
        assert_eq!(claim_all(&queue).await.len(), 4);
    }

    // C14
    async fn events_running_after_the_grace_period_are_released(bed) {
        let (queue, ledger, gate) = (real_time_namespace(bed, long_leases()).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = Node::new(&queue, "n").grace(Duration::from_millis(50)).handler(gated_handler(&ledger, &gate));
        let node = start(node).await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        node.stop().await;
        use Action::*;
        assert_eq!(trail(&queue, event.id).await, [Picked, Released]);
        // Another node can claim the event immediately, and the released attempt does not count.
        let next = start(Node::new(&queue, "next").handler(gated_handler(&ledger, &gate))).await;
        gate.add_permits(1);
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!(ledger.lines(), ["began", "began", "ended"]);
        next.stop().await;
    }

    async fn handler_is_notified_that_its_node_stops(bed) {
        let (queue, ledger) = (real_time_namespace(bed, long_leases()).await, Ledger::default());
        let written = ledger.clone();
        let node = start(Node::new(&queue, "n").on("t", move |_, cx| {
            let ledger = written.clone();
            async move {
                ledger.write("began");
                cx.cancelled().await;
                ledger.write("stopped");
                Ok(())
            }
        }))
        .await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        node.stop().await;
        assert_eq!(ledger.lines(), ["began", "stopped"]);
        assert_eq!(status(&queue, event.id).await, Status::Completed);
    }

    async fn dropped_node_releases_its_leases(bed) {
        let (queue, ledger, gate) = (real_time_namespace(bed, long_leases()).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").handler(gated_handler(&ledger, &gate))).await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        drop(node);
        wait_for_status(&queue, event.id, Status::Pending).await;
        assert_eq!(ledger.lines(), ["began"]);
    }

    // C14
    async fn run_until_stops_when_its_future_completes(bed) {
        let (queue, ledger, gate) = (real_time_namespace(bed, long_leases()).await, Ledger::default(), Arc::new(Semaphore::new(9)));
        let event = publish(&queue, "t").await;
        let done = async { ledger.wait(2).await };
        Node::new(&queue, "n").handler(gated_handler(&ledger, &gate)).run_until(done).await.unwrap();
        assert_eq!(status(&queue, event.id).await, Status::Completed);
        publish(&queue, "t").await;
        queue.close().await;
        assert_eq!(ledger.lines().len(), 2);
    }

    async fn node_stopped_before_start_claims_nothing(bed) {
        let (queue, ledger, gate) = (real_time_namespace(bed, long_leases()).await, Ledger::default(), Arc::new(Semaphore::new(9)));
        let event = publish(&queue, "t").await;
        Node::new(&queue, "n").handler(gated_handler(&ledger, &gate)).run_until(async {}).await.unwrap();
        assert_eq!(status(&queue, event.id).await, Status::Pending);
        assert!(queue.nodes().await.unwrap().is_empty());
    }

    // A rolling deploy: no event is lost, handled twice, or delayed until a lease expires.
    async fn nodes_can_be_replaced_under_load(bed) {
        let (queue, ledger) = (real_time_namespace(bed, long_leases()).await, Ledger::default());
        let node = |n: usize| {
            let ledger = ledger.clone();
            Node::new(&queue, format!("n{n}")).on("t", move |event, _| {
                let ledger = ledger.clone();
                async move {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    ledger.write(event.id.to_string());
                    Ok(())
                }
            })
        };
        let mut current = start(node(0)).await;
        let mut events = Vec::new();
        for n in 1..10 {
            events.extend(publish_many(&queue, "t", 60).await);
            let next = start(node(n)).await;
            current.stop().await;
            current = next;
        }
        ledger.wait(events.len()).await;
        current.stop().await;
        let handled: Vec<i64> = ledger.lines().iter().map(|line| line.parse().unwrap()).collect();
        assert_eq!(sorted(handled), events);
    }
}
