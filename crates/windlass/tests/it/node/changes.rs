//! Changes by other processes while a node runs: policies, subscriptions, closed queues, other nodes.

use tokio::sync::Semaphore;
use windlass::{Handler, Node, Policy, Status, SubscriptionSpec};

use super::*;

/// A handler that records the event and waits for a permit.
fn gated_handler(ledger: &Ledger, gate: &Arc<Semaphore>) -> Handler {
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

/// A handler that records the event and does not wait.
fn open_handler(ledger: &Ledger) -> Handler {
    gated_handler(ledger, &Arc::new(Semaphore::new(1_000)))
}

conformance! {
    async fn lease_renewal_ignores_policy_changes(bed) {
        let queue = real_time_namespace(bed, Policy { lease_ms: 3_000, ..immediate_retries() }).await;
        let (ledger, gate) = (Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").handler(gated_handler(&ledger, &gate))).await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        let shorter = Policy { lease_ms: 100, ..immediate_retries() };
        queue.put_namespace("ns", Some(shorter.into()), None).await.unwrap();
        let before = view(&queue, event.id).await.lease_expires_at.unwrap();
        let renewed = async || view(&queue, event.id).await.lease_expires_at.is_some_and(|expires_at| expires_at > before);
        eventually("the lease is renewed", renewed).await;
        gate.add_permits(1);
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!(ledger.lines(), [event.id.to_string()]);
        node.stop().await;
    }

    async fn node_survives_removal_of_its_subscription(bed) {
        let queue = real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await;
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let (ledger, gate) = (Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").handler(gated_handler(&ledger, &gate).subscription("audit"))).await;
        publish(&queue, "t").await;
        ledger.wait(1).await;
        queue.remove_subscription("audit").await.unwrap();
        gate.add_permits(10);
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let event = publish(&queue, "t").await;
        eventually("the node handles the new subscription", async || view_of(&queue, event.id, "audit").await.status == Status::Completed).await;
        node.stop().await;
    }

    async fn queue_can_be_closed_while_a_node_runs(bed) {
        let queue = real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await;
        let (ledger, gate) = (Ledger::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").handler(gated_handler(&ledger, &gate))).await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        queue.close().await;
        gate.add_permits(1);
        node.stop().await;
        // The node could no longer report the completion.
        let other = bed.real_time_queue().await.in_namespace("ns").unwrap();
        assert_eq!(status(&other, event.id).await, Status::Processing);
    }

    async fn two_nodes_may_share_an_id(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await, Ledger::default());
        let other = bed.real_time_queue().await.in_namespace("ns").unwrap();
        let first = start(Node::new(&queue, "n").handler(open_handler(&ledger))).await;
        let second = start(Node::new(&other, "n").handler(open_handler(&ledger))).await;
        let mut events = publish_many(&queue, "t", 200).await;
        first.stop().await;
        events.extend(publish_many(&queue, "t", 200).await);
        for event in &events {
            wait_for_status(&queue, *event, Status::Completed).await;
        }
        second.stop().await;
        assert_eq!(sorted(ledger.lines()), sorted(events.iter().map(i64::to_string).collect()));
    }

    async fn one_of_two_concurrent_handlers_with_one_id_is_refused(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await, Ledger::default());
        let node = start(Node::new(&queue, "n")).await;
        let (one, two) = tokio::join!(node.handler(open_handler(&ledger)), node.handler(open_handler(&ledger)));
        assert!(one.is_ok() != two.is_ok());
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        node.stop().await;
        assert_eq!(ledger.lines(), [event.id.to_string()]);
    }
}
