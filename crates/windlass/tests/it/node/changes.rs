//! What others do under a running node.

use tokio::sync::Semaphore;
use windlass::{Handler, Node, Policy, Status, SubscriptionSpec};

use super::*;

fn waiting(ledger: &Ledger, gate: &Arc<Semaphore>) -> Handler {
    let (ledger, gate) = (ledger.clone(), gate.clone());
    Handler::new("t", move |event, _| {
        let (ledger, gate) = (ledger.clone(), gate.clone());
        async move {
            ledger.write(event.id.to_string());
            gate.acquire().await?.forget();
            Ok(())
        }
    })
}

fn free(ledger: &Ledger) -> Handler {
    waiting(ledger, &Arc::new(Semaphore::new(1_000)))
}

conformance! {
    async fn a_lease_is_renewed_as_it_was_given_though_the_policy_changes(bed) {
        let queue = real(bed, Policy { lease_ms: 3_000, ..brisk() }).await;
        let (ledger, gate) = (Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").handler(waiting(&ledger, &gate))).await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        let shorter = Policy { lease_ms: 100, ..brisk() };
        queue.put_namespace("ns", Some(shorter.into()), None).await.unwrap();
        let before = view(&queue, event.id).await.lease_expires_at.unwrap();
        let renewed = async || view(&queue, event.id).await.lease_expires_at.is_some_and(|until| until > before);
        eventually("the lease is renewed", renewed).await;
        gate.add_permits(1);
        until(&queue, event.id, Status::Completed).await;
        assert_eq!(ledger.lines(), [event.id.to_string()]);
        node.stop().await;
    }

    async fn a_node_gets_over_the_removal_of_its_subscription(bed) {
        let queue = real(bed, Policy { lease_ms: 60_000, ..brisk() }).await;
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let (ledger, gate) = (Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").handler(waiting(&ledger, &gate).subscription("audit"))).await;
        publish(&queue, "t").await;
        ledger.wait(1).await;
        queue.remove_subscription("audit").await.unwrap();
        gate.add_permits(10);
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let event = publish(&queue, "t").await;
        eventually("it goes on", async || view_of(&queue, event.id, "audit").await.status == Status::Completed).await;
        node.stop().await;
    }

    async fn a_queue_can_be_closed_under_a_node(bed) {
        let queue = real(bed, Policy { lease_ms: 60_000, ..brisk() }).await;
        let (ledger, gate) = (Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").handler(waiting(&ledger, &gate))).await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        queue.close().await;
        gate.add_permits(1);
        node.stop().await;
        // It could not say so any more.
        let other = bed.real_time().await.in_namespace("ns").unwrap();
        assert_eq!(status(&other, event.id).await, Status::Processing);
    }

    async fn two_nodes_may_have_one_id(bed) {
        let (queue, ledger) = (real(bed, Policy { lease_ms: 60_000, ..brisk() }).await, Ledger::default());
        let other = bed.real_time().await.in_namespace("ns").unwrap();
        let first = start(Node::new(&queue, "n").handler(free(&ledger))).await;
        let second = start(Node::new(&other, "n").handler(free(&ledger))).await;
        let mut events = publish_many(&queue, "t", 200).await;
        first.stop().await;
        events.extend(publish_many(&queue, "t", 200).await);
        for event in &events {
            until(&queue, *event, Status::Completed).await;
        }
        second.stop().await;
        assert_eq!(sorted(ledger.lines()), sorted(events.iter().map(i64::to_string).collect()));
    }

    async fn of_two_handlers_that_come_at_once_by_one_name_one_is_refused(bed) {
        let (queue, ledger) = (real(bed, Policy { lease_ms: 60_000, ..brisk() }).await, Ledger::default());
        let node = start(Node::new(&queue, "n")).await;
        let (one, two) = tokio::join!(node.handler(free(&ledger)), node.handler(free(&ledger)));
        assert!(one.is_ok() != two.is_ok());
        let event = publish(&queue, "t").await;
        until(&queue, event.id, Status::Completed).await;
        node.stop().await;
        assert_eq!(ledger.lines(), [event.id.to_string()]);
    }
}
