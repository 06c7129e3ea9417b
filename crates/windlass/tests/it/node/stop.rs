//! The end of a node: nothing is lost, and nobody waits for a lease.

use std::time::Duration;

use tokio::sync::Semaphore;
use windlass::{Action, Node, Policy, Status};

use super::*;

/// Leases so long that no test can wait for them.
fn patient() -> Policy {
    Policy { lease_ms: 600_000, ..brisk() }
}

/// A handler that notes that it began, waits for the gate, and notes that it ended.
fn gated(ledger: &Ledger, gate: &Arc<Semaphore>) -> windlass::Handler {
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
    async fn a_stopping_node_finishes_what_runs_and_takes_no_more(bed) {
        let (queue, ledger, gate) = (real(bed, patient()).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").concurrency(2).handler(gated(&ledger, &gate))).await;
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
                // Whatever it had taken besides is free again.
                other => assert_eq!(other, Status::Pending),
            }
        }
        assert_eq!(completed, 2);
        assert_eq!(take_all(&queue).await.len(), 4);
    }

    // C14
    async fn what_does_not_end_within_the_grace_time_is_given_back(bed) {
        let (queue, ledger, gate) = (real(bed, patient()).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = Node::new(&queue, "n").grace(Duration::from_millis(50)).handler(gated(&ledger, &gate));
        let node = start(node).await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        node.stop().await;
        use Action::*;
        assert_eq!(trail(&queue, event.id).await, [Picked, Released]);
        // Another one has it at once, and that attempt does not count.
        let next = start(Node::new(&queue, "next").handler(gated(&ledger, &gate))).await;
        gate.add_permits(1);
        until(&queue, event.id, Status::Completed).await;
        assert_eq!(ledger.lines(), ["began", "began", "ended"]);
        next.stop().await;
    }

    async fn a_handler_is_told_that_its_node_stops(bed) {
        let (queue, ledger) = (real(bed, patient()).await, Ledger::default());
        let written = ledger.clone();
        let node = start(Node::new(&queue, "n").on("t", move |_, cx| {
            let ledger = written.clone();
            async move {
                ledger.write("began");
                cx.cancelled().await;
                ledger.write("wound up");
                Ok(())
            }
        }))
        .await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        node.stop().await;
        assert_eq!(ledger.lines(), ["began", "wound up"]);
        assert_eq!(status(&queue, event.id).await, Status::Completed);
    }

    async fn a_node_that_is_dropped_gives_back_what_it_holds(bed) {
        let (queue, ledger, gate) = (real(bed, patient()).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").handler(gated(&ledger, &gate))).await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        drop(node);
        until(&queue, event.id, Status::Pending).await;
        assert_eq!(ledger.lines(), ["began"]);
    }

    // C14
    async fn run_until_runs_until_then(bed) {
        let (queue, ledger, gate) = (real(bed, patient()).await, Ledger::default(), Arc::new(Semaphore::new(9)));
        let event = publish(&queue, "t").await;
        let done = async { ledger.wait(2).await };
        Node::new(&queue, "n").handler(gated(&ledger, &gate)).run_until(done).await.unwrap();
        assert_eq!(status(&queue, event.id).await, Status::Completed);
        publish(&queue, "t").await;
        queue.close().await;
        assert_eq!(ledger.lines().len(), 2);
    }

    async fn a_node_that_shall_stop_before_it_started_takes_nothing(bed) {
        let (queue, ledger, gate) = (real(bed, patient()).await, Ledger::default(), Arc::new(Semaphore::new(9)));
        let event = publish(&queue, "t").await;
        Node::new(&queue, "n").handler(gated(&ledger, &gate)).run_until(async {}).await.unwrap();
        assert_eq!(status(&queue, event.id).await, Status::Pending);
        assert!(queue.nodes().await.unwrap().is_empty());
    }

    // A rolling deploy: nodes come and go, and nothing is lost, done twice, or waits for a lease.
    async fn nodes_can_be_replaced_under_load(bed) {
        let (queue, ledger) = (real(bed, patient()).await, Ledger::default());
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
