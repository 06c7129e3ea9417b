//! Pausing: nothing is handed out, and nothing is lost.

use windlass::{ClaimRequest, NewEvent, Queue, SubscriptionSpec};

use crate::support::*;

/// What another process, which knew the queue before, can take.
async fn can_take(queue: &Queue) -> bool {
    match poll(queue).await {
        Some(delivery) => {
            finish(queue, &delivery, release()).await;
            true
        }
        None => false,
    }
}

conformance! {
    async fn a_paused_namespace_hands_out_nothing(bed) {
        let other = bed.other().await;
        let before = publish(&bed.queue, "t").await;
        assert!(can_take(&other).await);
        bed.queue.pause().await.unwrap();
        assert!(!can_take(&bed.queue).await && !can_take(&other).await);
        let meanwhile = publish(&other, "t").await;
        publish_new(&other, NewEvent::new("new").tags(["x"])).await;
        assert!(!can_take(&bed.queue).await && !can_take(&other).await);
        assert!(other.describe().await.unwrap().paused);
        other.resume().await.unwrap();
        let first = take_soon(&bed.queue).await;
        assert_eq!(first.event.id, before.id);
        let got = take_all(&bed.queue).await;
        assert_eq!((got.len(), got[0].event.id), (2, meanwhile.id));
    }

    async fn what_is_held_can_be_finished_while_paused(bed) {
        publish_many(&bed.queue, "t", 2).await;
        let got = take_all(&bed.queue).await;
        bed.queue.pause().await.unwrap();
        bed.queue.start(&got[0]).await.unwrap().unwrap();
        bed.queue.extend(&got[0], None).await.unwrap().unwrap();
        done(&bed.queue, &got[0]).await;
        finish(&bed.queue, &got[1], release()).await;
        assert!(poll(&bed.queue).await.is_none());
        bed.queue.resume().await.unwrap();
        assert_eq!(take(&bed.queue).await.event.id, got[1].event.id);
    }

    async fn a_pause_outlives_a_restart(bed) {
        publish(&bed.queue, "t").await;
        bed.queue.pause().await.unwrap();
        let restarted = bed.other().await;
        assert!(!can_take(&restarted).await);
        restarted.resume().await.unwrap();
        assert!(can_take(&restarted).await);
    }

    async fn a_paused_namespace_does_not_stop_another(bed) {
        let ns = bed.namespace(Default::default()).await;
        publish(&bed.queue, "t").await;
        publish(&ns, "t").await;
        ns.pause().await.unwrap();
        assert!(can_take(&bed.queue).await && !can_take(&ns).await);
    }

    async fn a_paused_subscription_gathers_its_deliveries(bed) {
        let queue = &bed.queue;
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let other = bed.other().await;
        let audit = |queue: &Queue| {
            let queue = queue.clone();
            async move { claim(&queue, ClaimRequest::new("w").subscription("audit").max(10)).await.len() }
        };
        assert_eq!(audit(&other).await, 0);
        queue.pause_subscription("audit").await.unwrap();
        publish_many(queue, "t", 2).await;
        assert_eq!((audit(queue).await, audit(&other).await), (0, 0));
        assert_eq!(take_all(&other).await.len(), 2);
        let paused: Vec<bool> = queue.subscriptions().await.unwrap().iter().map(|s| s.paused).collect();
        assert_eq!(paused, [true, false]);
        queue.resume_subscription("audit").await.unwrap();
        let got = claim_soon(&other, ClaimRequest::new("w").subscription("audit")).await;
        finish(&other, &got, release()).await;
        assert_eq!(audit(queue).await, 2);
    }

    async fn main_can_be_paused_too(bed) {
        publish(&bed.queue, "t").await;
        bed.queue.pause_subscription("main").await.unwrap();
        assert!(!can_take(&bed.queue).await);
        bed.queue.resume_subscription("main").await.unwrap();
        assert!(can_take(&bed.queue).await);
    }

    async fn a_paused_type_is_left_out(bed) {
        let other = bed.other().await;
        let (a, b) = (publish(&bed.queue, "mail.sent").await, publish(&bed.queue, "order").await);
        assert!(can_take(&other).await);
        bed.queue.pause_type("mail.sent").await.unwrap();
        for queue in [&bed.queue, &other] {
            let got = take_all(queue).await;
            assert_eq!(ids(&got), [b.id]);
            finish(queue, &got[0], release()).await;
        }
        assert_eq!(other.describe().await.unwrap().paused_types, ["mail.sent"]);
        bed.queue.resume_type("mail.sent").await.unwrap();
        assert_eq!(sorted(ids(&take_all(&bed.queue).await)), [a.id, b.id]);
    }

    async fn types_are_paused_by_prefix(bed) {
        publish(&bed.queue, "mail.sent").await;
        publish(&bed.queue, "mail.read").await;
        let other = publish(&bed.queue, "mails").await;
        bed.queue.pause_type("mail.*").await.unwrap();
        bed.queue.pause_type("mail.*").await.unwrap();
        assert_eq!(bed.queue.describe().await.unwrap().paused_types, ["mail.*"]);
        assert_eq!(ids(&take_all(&bed.queue).await), [other.id]);
        publish(&bed.queue, "mail.new").await;
        assert!(poll(&bed.queue).await.is_none());
        bed.queue.resume_type("mail.*").await.unwrap();
        assert_eq!(take_all(&bed.queue).await.len(), 3);
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
        let got = take_all(&bed.queue).await;
        assert_eq!(got.iter().map(|delivery| delivery.event.event_type.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    async fn pausing_an_unknown_subscription_is_an_error(bed) {
        let error = bed.queue.pause_subscription("nope").await.unwrap_err();
        assert_eq!(error.code(), "subscription_not_found");
    }

    async fn a_paused_queue_still_expires_and_sweeps(bed) {
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
