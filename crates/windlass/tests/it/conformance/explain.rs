//! Explaining why a delivery is not being processed.

use windlass::{ClaimRequest, Error, Explanation, NewEvent, Queue, Report, SubscriptionSpec, WaitReason};

use crate::support::*;

async fn explain(queue: &Queue, event_id: i64) -> Explanation {
    queue.explain(event_id, "main").await.expect("an event can be explained")
}

async fn reason_of(queue: &Queue, event_id: i64) -> WaitReason {
    explain(queue, event_id).await.reason
}

conformance! {
    async fn delayed_event_explains_when_it_is_due(bed) {
        let queue = &bed.queue;
        let later = after(bed.now(), secs(600));
        let scheduled = publish_new(queue, NewEvent::new("t").run_at(later)).await.id;
        let explanation = explain(queue, scheduled).await;
        assert_eq!((explanation.reason, explanation.until), (WaitReason::Scheduled, Some(later)));
        let failed = publish(queue, "t").await.id;
        fail(queue, &claim_one(queue).await).await;
        let explanation = explain(queue, failed).await;
        assert_eq!((explanation.reason, explanation.until), (WaitReason::Backoff, Some(after(bed.now(), BACKOFF))));
        let snoozed = publish(queue, "t").await.id;
        finish(queue, &claim_one(queue).await, snooze(secs(60))).await;
        let explanation = explain(queue, snoozed).await;
        assert_eq!((explanation.reason, explanation.until), (WaitReason::Scheduled, Some(after(bed.now(), MINUTE))));
    }

    async fn group_member_names_the_event_it_waits_for(bed) {
        let queue = &bed.queue;
        let first = publish_new(queue, NewEvent::new("t").group("g")).await.id;
        let second = publish_new(queue, NewEvent::new("t").group("g")).await.id;
        let third = publish_new(queue, NewEvent::new("t").group("g")).await.id;
        publish_new(queue, NewEvent::new("t").group("h")).await;
        for waiting in [second, third] {
            let explanation = explain(queue, waiting).await;
            assert_eq!((explanation.reason, explanation.behind), (WaitReason::BehindGroup, Some(first)));
            assert!(explanation.sentence.contains("has not been claimed"), "{}", explanation.sentence);
        }
        assert_ne!(reason_of(queue, first).await, WaitReason::BehindGroup);
        let claimed = claim_one(queue).await;
        assert_eq!(claimed.event.id, first);
        assert!(explain(queue, second).await.sentence.contains("which worker 'w' holds"));
        fail(queue, &claimed).await;
        let explanation = explain(queue, second).await;
        assert_eq!((explanation.behind, explanation.until), (Some(first), Some(after(bed.now(), BACKOFF))));
        bed.advance(BACKOFF);
        for delivery in claim_all(queue).await {
            done(queue, &delivery).await;
        }
        assert_eq!(explain(queue, third).await.behind, Some(second));
    }

    async fn pause_is_explained_immediately(bed) {
        let (queue, other) = (&bed.queue, bed.second_queue().await);
        let id = publish(queue, "order.paid").await.id;
        reason_of(queue, id).await;
        other.pause_type("order.*").await.unwrap();
        assert_eq!(reason_of(queue, id).await, WaitReason::TypePaused);
        other.pause_subscription("main").await.unwrap();
        assert_eq!(reason_of(queue, id).await, WaitReason::SubscriptionPaused);
        other.pause().await.unwrap();
        assert_eq!(reason_of(queue, id).await, WaitReason::NamespacePaused);
        other.resume().await.unwrap();
        other.resume_subscription("main").await.unwrap();
        other.resume_type("order.*").await.unwrap();
        assert_eq!(reason_of(queue, id).await, WaitReason::NoWorker);
    }

    async fn processing_event_names_its_worker(bed) {
        let queue = &bed.queue;
        let id = publish(queue, "t").await.id;
        claim_one(queue).await;
        let explanation = explain(queue, id).await;
        assert_eq!((explanation.reason, explanation.until), (WaitReason::Running, Some(after(bed.now(), LEASE))));
        assert!(explanation.sentence.starts_with("Worker 'w' has held it since 2025-12-24T10:30:00Z"));
        bed.advance(LEASE);
        assert_eq!(reason_of(queue, id).await, WaitReason::AbandonedSoon);
        queue.release_expired_once().await.unwrap();
        assert_ne!(reason_of(queue, id).await, WaitReason::AbandonedSoon);
    }

    async fn finished_event_explains_its_outcome(bed) {
        let events = super::inspect::publish_one_per_status(bed).await;
        let expected = [
            WaitReason::Running,
            WaitReason::Completed,
            WaitReason::CompletedWithErrors,
            WaitReason::Failed,
            WaitReason::Expired,
            WaitReason::Cancelled,
        ];
        for (event, reason) in events.into_iter().skip(1).zip(expected) {
            assert_eq!(reason_of(&bed.queue, event).await, reason);
        }
        let failed = explain(&bed.queue, events[4]).await;
        assert!(failed.sentence.ends_with(": Handler error (x)."), "{}", failed.sentence);
        assert!(failed.advice.unwrap().starts_with("Redrive it"));
        bed.queue.purge(windlass::DeadLetterFilter::default()).await.unwrap();
        assert!(explain(&bed.queue, events[4]).await.advice.unwrap().contains("cannot be redriven"));
    }

    async fn event_past_its_deadline_is_about_to_expire(bed) {
        let id = publish_new(&bed.queue, NewEvent::new("t").expires_at(after(bed.now(), secs(5)))).await.id;
        assert!(explain(&bed.queue, id).await.sentence.ends_with("Unless it starts before 2025-12-24T10:30:05Z, it expires."));
        bed.advance(secs(5));
        assert_eq!(reason_of(&bed.queue, id).await, WaitReason::Expiring);
    }

    async fn consumers_are_known_to_other_processes(bed) {
        let (queue, other) = (&bed.queue, bed.second_queue().await);
        // Consumers with other filters, another subscription or another namespace.
        let other_queue = bed.namespace(windlass::Policy::default()).await;
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        claim(&other_queue, ClaimRequest::new("w")).await;
        claim(&other, ClaimRequest::new("w").subscription("audit")).await;
        claim(&other, ClaimRequest::new("w").types(["user.*"])).await;
        claim(&other, ClaimRequest::new("w").tags(["sms"])).await;
        claim(&other, ClaimRequest::new("w").except_types(["order.*"])).await;
        assert_eq!(other.record_consumers_once().await.unwrap(), 4);
        assert_eq!(queue.record_consumers_once().await.unwrap(), 1);
        let id = publish_new(queue, NewEvent::new("order.paid").tags(["email"])).await.id;
        let explanation = explain(queue, id).await;
        assert_eq!(explanation.reason, WaitReason::NoWorker);
        let sentence = "No worker has requested events of type 'order.paid' with these tags in the last minute.";
        assert_eq!(explanation.sentence, sentence);

        // A consumer whose filter matches the event and whose claim returns another event.
        publish_new(queue, NewEvent::new("order.lost").tags(["email"]).priority(9)).await;
        let claimed = claim(&other, ClaimRequest::new("w").types(["order.*"]).tags(["email", "fax"])).await;
        assert_eq!(claimed[0].event.event_type, "order.lost");
        other.record_consumers_once().await.unwrap();
        assert_eq!(reason_of(queue, id).await, WaitReason::AboutToRun);
        bed.advance(MINUTE);
        assert_eq!(reason_of(queue, id).await, WaitReason::AboutToRun);
        bed.advance(MICRO);
        assert_eq!(reason_of(queue, id).await, WaitReason::NoWorker);
        assert!(explain(queue, id).await.sentence.ends_with("The last request was at 2025-12-24T10:30:00Z."));
        other.record_consumers_once().await.unwrap();
        assert_eq!(reason_of(queue, id).await, WaitReason::AboutToRun);
    }

    async fn consumers_are_listed_and_pruned(bed) {
        let queue = &bed.queue;
        assert_eq!(queue.consumers().await.unwrap(), []);
        for worker in ["a", "b"] {
            claim(queue, ClaimRequest::new(worker).types(["t*", "s"]).tags(["x"]).lease(secs(5))).await;
        }
        // A claim with another lease duration is the same consumer.
        claim(queue, ClaimRequest::new("b").types(["s", "t*"]).tags(["x"])).await;
        queue.record_consumers_once().await.unwrap();
        let consumers = queue.consumers().await.unwrap();
        assert_eq!(consumers.len(), 1);
        let consumer = &consumers[0];
        assert_eq!((consumer.worker_id.as_str(), consumer.subscription.as_deref()), ("b", Some("main")));
        assert_eq!((&consumer.types[..], &consumer.tags[..]), (&["s".to_owned(), "t*".into()][..], &["x".to_owned()][..]));
        assert_eq!(consumer.seen_at, bed.now());
        bed.advance(60 * MINUTE);
        assert_eq!(queue.prune_once().await.unwrap(), 0);
        bed.advance(MICRO);
        assert_eq!(queue.prune_once().await.unwrap(), 1);
        assert_eq!(queue.consumers().await.unwrap(), []);
    }

    async fn unknown_event_or_subscription_is_refused(bed) {
        let queue = &bed.queue;
        let unknown = Error::EventNotFound { namespace: "default".into(), event_id: 4711 };
        assert_eq!(queue.explain(4711, "main").await.unwrap_err(), unknown);
        let id = publish(queue, "t").await.id;
        assert!(matches!(queue.explain(id, "nobody").await.unwrap_err(), Error::SubscriptionNotFound { .. }));
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        assert!(matches!(queue.explain(id, "audit").await.unwrap_err(), Error::EventNotFound { .. }));
        let other = bed.namespace(windlass::Policy::default()).await;
        assert!(matches!(other.explain(id, "main").await.unwrap_err(), Error::EventNotFound { .. }));
        finish(queue, &claim_one(queue).await, Report::done()).await;
        assert_eq!(reason_of(queue, id).await, WaitReason::Completed);
    }
}
