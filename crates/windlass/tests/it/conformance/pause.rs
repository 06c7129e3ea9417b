//! Pausing namespaces, subscriptions and types: nothing is delivered, and nothing is lost.

use windlass::{ClaimRequest, NewEvent, Queue, SubscriptionSpec};

use crate::support::*;

/// Whether this queue can claim a delivery, which is then released.
async fn can_claim(queue: &Queue) -> bool {
    match poll(queue).await {
        Some(delivery) => {
            finish(queue, &delivery, release()).await;
            true
        }
        None => false,
    }
}

conformance! {
    async fn paused_namespace_delivers_nothing(bed) {
        let other = bed.second_queue().await;
        let before = publish(&bed.queue, "t").await;
        assert!(can_claim(&other).await);
        bed.queue.pause().await.unwrap();
        assert!(!can_claim(&bed.queue).await && !can_claim(&other).await);
        let published_while_paused = publish(&other, "t").await;
        publish_new(&other, NewEvent::new("new").tags(["x"])).await;
        assert!(!can_claim(&bed.queue).await && !can_claim(&other).await);
        assert!(other.describe().await.unwrap().paused);
        other.resume().await.unwrap();
        let first = claim_one_soon(&bed.queue).await;
        assert_eq!(first.event.id, before.id);
        let got = claim_all(&bed.queue).await;
        assert_eq!((got.len(), got[0].event.id), (2, published_while_paused.id));
    }

    async fn leased_delivery_can_be_finished_while_paused(bed) {
        publish_many(&bed.queue, "t", 2).await;
        let got = claim_all(&bed.queue).await;
        bed.queue.pause().await.unwrap();
        bed.queue.start(&got[0]).await.unwrap().unwrap();
        bed.queue.extend(&got[0], None).await.unwrap().unwrap();
        done(&bed.queue, &got[0]).await;
        finish(&bed.queue, &got[1], release()).await;
        assert!(poll(&bed.queue).await.is_none());
        bed.queue.resume().await.unwrap();
        assert_eq!(claim_one(&bed.queue).await.event.id, got[1].event.id);
    }

    async fn pause_survives_a_restart(bed) {
        publish(&bed.queue, "t").await;
        bed.queue.pause().await.unwrap();
        let restarted = bed.second_queue().await;
        assert!(!can_claim(&restarted).await);
        restarted.resume().await.unwrap();
        assert!(can_claim(&restarted).await);
    }

    async fn paused_namespace_does_not_affect_others(bed) {
        let ns = bed.namespace(Default::default()).await;
        publish(&bed.queue, "t").await;
        publish(&ns, "t").await;
        ns.pause().await.unwrap();
        assert!(can_claim(&bed.queue).await && !can_claim(&ns).await);
    }

    async fn paused_subscription_accumulates_deliveries(bed) {
        let queue = &bed.queue;
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let other = bed.second_queue().await;
        let audit = |queue: &Queue| {
            let queue = queue.clone();
            async move { claim(&queue, ClaimRequest::new("w").subscription("audit").max(10)).await.len() }
        };
        assert_eq!(audit(&other).await, 0);
        queue.pause_subscription("audit").await.unwrap();
        publish_many(queue, "t", 2).await;
        assert_eq!((audit(queue).await, audit(&other).await), (0, 0));
        assert_eq!(claim_all(&other).await.len(), 2);
        let paused: Vec<bool> = queue.subscriptions().await.unwrap().iter().map(|s| s.paused).collect();
        assert_eq!(paused, [true, false]);
        queue.resume_subscription("audit").await.unwrap();
        let got = claim_soon(&other, ClaimRequest::new("w").subscription("audit")).await;
        finish(&other, &got, release()).await;
        assert_eq!(audit(queue).await, 2);
    }

    async fn main_can_be_paused(bed) {
        publish(&bed.queue, "t").await;
        bed.queue.pause_subscription("main").await.unwrap();
        assert!(!can_claim(&bed.queue).await);
        bed.queue.resume_subscription("main").await.unwrap();
        assert!(can_claim(&bed.queue).await);
    }

    async fn paused_type_is_not_delivered(bed) {
        let other = bed.second_queue().await;
        let (a, b) = (publish(&bed.queue, "mail.sent").await, publish(&bed.queue, "order").await);
        assert!(can_claim(&other).await);
        bed.queue.pause_type("mail.sent").await.unwrap();
        for queue in [&bed.queue, &other] {
            let got = claim_all(queue).await;
            assert_eq!(ids(&got), [b.id]);
            finish(queue, &got[0], release()).await;
        }
        assert_eq!(other.describe().await.unwrap().paused_types, ["mail.sent"]);
        bed.queue.resume_type("mail.sent").await.unwrap();
        assert_eq!(sorted(ids(&claim_all(&bed.queue).await)), [a.id, b.id]);
    }

    async fn types_are_paused_by_prefix(bed) {
        publish(&bed.queue, "mail.sent").await;
        publish(&bed.queue, "mail.read").await;
        let other = publish(&bed.queue, "mails").await;
        bed.queue.pause_type("mail.*").await.unwrap();
        bed.queue.pause_type("mail.*").await.unwrap();
        assert_eq!(bed.queue.describe().await.unwrap().paused_types, ["mail.*"]);
        assert_eq!(ids(&claim_all(&bed.queue).await), [other.id]);
        publish(&bed.queue, "mail.new").await;
        assert!(poll(&bed.queue).await.is_none());
        bed.queue.resume_type("mail.*").await.unwrap();
        assert_eq!(claim_all(&bed.queue).await.len(), 3);
    }

    async fn types_are_paused_and_resumed_one_by_one(bed) {
        for event_type in ["a", "b", "c"] {
            publish(&bed.queue, event_type).await;
            bed.queue.pause_type(event_type).await.unwrap();
        }
        bed.queue.pause().await.unwrap();
        bed.queue.resume_type("b").await.unwrap();
        assert!(poll(&bed.queue).await.is_none());
        bed.queue.resume().await.unwrap();
        let got = claim_all(&bed.queue).await;
        assert_eq!(got.iter().map(|delivery| delivery.event.event_type.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    async fn pausing_unknown_subscription_is_an_error(bed) {
        let error = bed.queue.pause_subscription("nope").await.unwrap_err();
        assert_eq!(error.code(), "subscription_not_found");
    }

    async fn paused_queue_still_expires_events_and_leases(bed) {
        let at = after(bed.now(), secs(1));
        publish_new(&bed.queue, NewEvent::new("t").expires_at(at)).await;
        publish(&bed.queue, "t").await;
        claim(&bed.queue, ClaimRequest::new("w").max(2)).await.remove(0);
        publish_new(&bed.queue, NewEvent::new("t").expires_at(at)).await;
        bed.queue.pause().await.unwrap();
        bed.advance(LEASE);
        assert_eq!(bed.queue.release_expired_once().await, Ok(2));
        assert_eq!(bed.queue.expire_once().await, Ok(2));
    }
}
