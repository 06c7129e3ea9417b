//! Operations of an administrator: cancel, reset, and list stuck deliveries and workers.

use windlass::{
    Action, ClaimRequest, Error, LeasedEvent, NewEvent, Policy, Report, Status, StuckDelivery, SubscriptionSpec,
    WorkerView,
};

use crate::support::*;

fn wrong(event_id: i64, status: Status, action: &'static str, allowed: &'static str) -> Error {
    Error::WrongStatus { event_id, status: status.as_str(), action, allowed }
}

fn not_cancelled(event_id: i64, status: Status) -> Error {
    wrong(event_id, status, "cancelled", "PENDING")
}

fn not_reset(event_id: i64, status: Status) -> Error {
    wrong(event_id, status, "reset", "PROCESSING, FAILED or EXPIRED")
}

conformance! {
    async fn canceled_event_is_never_delivered(bed) {
        let event = publish(&bed.queue, "t").await.id;
        bed.advance(secs(1));
        assert_eq!(bed.queue.cancel(event, None).await, Ok(1));
        let view = view(&bed.queue, event).await;
        assert_eq!((view.status, view.attempts, view.updated_at), (Status::Cancelled, 0, bed.now()));
        assert!(poll(&bed.queue).await.is_none());
        assert_eq!(trail(&bed.queue, event).await, [Action::Cancelled]);
        assert!(dead_letter_ids(&bed.queue).await.is_empty());
        assert_eq!(bed.queue.cancel(event, None).await, Err(not_cancelled(event, Status::Cancelled)));
    }

    async fn only_pending_event_can_be_canceled(bed) {
        let event = publish(&bed.queue, "t").await.id;
        let delivery = claim_one(&bed.queue).await;
        assert_eq!(bed.queue.cancel(event, None).await, Err(not_cancelled(event, Status::Processing)));
        done(&bed.queue, &delivery).await;
        assert_eq!(bed.queue.cancel(event, None).await, Err(not_cancelled(event, Status::Completed)));
        let unknown = Error::EventNotFound { namespace: "default".into(), event_id: event + 1 };
        assert_eq!(bed.queue.cancel(event + 1, None).await, Err(unknown));
    }

    async fn event_waiting_for_retry_can_be_canceled(bed) {
        let event = publish(&bed.queue, "t").await.id;
        fail(&bed.queue, &claim_one(&bed.queue).await).await;
        assert_eq!(bed.queue.cancel(event, None).await, Ok(1));
        let view = view(&bed.queue, event).await;
        assert_eq!((view.status, view.attempts, view.retry_count), (Status::Cancelled, 1, 1));
        bed.advance(BACKOFF);
        assert!(poll(&bed.queue).await.is_none());
    }

    async fn cancel_applies_to_one_or_all_subscriptions(bed) {
        let queue = &bed.queue;
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let event = publish(queue, "t").await.id;
        assert_eq!(queue.cancel(event, Some("audit")).await, Ok(1));
        assert_eq!(status(queue, event).await, Status::Pending);
        assert_eq!(view_of(queue, event, "audit").await.status, Status::Cancelled);
        let event = publish(queue, "t").await.id;
        assert_eq!(queue.cancel(event, None).await, Ok(2));
        // A worker processes the delivery of `audit`; the delivery of `main` is pending and can be canceled.
        let event = publish(queue, "t").await.id;
        claim(queue, ClaimRequest::new("w").subscription("audit")).await.remove(0);
        assert_eq!(queue.cancel(event, None).await, Ok(1));
        assert_eq!(view_of(queue, event, "audit").await.status, Status::Processing);
        assert_eq!(queue.cancel(event, Some("nope")).await.unwrap_err().code(), "subscription_not_found");
    }

    // B3, H12
    async fn reset_event_is_claimable_immediately(bed) {
        let event = publish(&bed.queue, "t").await.id;
        let delivery = bed.queue.poll("stuck:1").await.unwrap().unwrap();
        bed.queue.start(&delivery).await.unwrap();
        bed.advance(secs(1));
        let other = bed.second_queue().await;
        other.reset(event, "main", "worker_timeout").await.unwrap();
        let view = view(&bed.queue, event).await;
        assert_eq!((view.status, view.attempts, view.retry_count), (Status::Pending, 1, 0));
        assert_eq!((view.worker_id, view.started_at, view.lease_expires_at), (None, None, None));
        assert_eq!(view.updated_at, bed.now());

        assert!(bed.queue.finish(&delivery, Report::done()).await.unwrap().is_lost());
        assert!(bed.queue.finish(LeasedEvent::by_worker(event, "stuck:1"), Report::done()).await.unwrap().is_lost());
        let again = claim_one(&other).await;
        assert_eq!((again.event.id, again.attempts), (event, 2));
        let log = bed.queue.log(event).await.unwrap();
        assert_eq!(log[2].action, Action::Reset);
        assert_eq!(log[2].error_message.as_deref(), Some("worker_timeout"));
    }

    // H12
    async fn resetting_failed_event_redrives_it(bed) {
        let event = publish(&bed.queue, "t").await.id;
        finish(&bed.queue, &claim_one(&bed.queue).await, Report::dead("x")).await;
        bed.queue.reset(event, "main", "try again").await.unwrap();
        assert!(dead_letter_ids(&bed.queue).await.is_empty());
        let again = claim_one(&bed.queue).await;
        assert_eq!((again.event.id, again.retry_count), (event, 0));
        use Action::*;
        assert_eq!(trail(&bed.queue, event).await, [Picked, Failed, Redriven, Picked]);
    }

    // H12
    async fn resetting_expired_event_redrives_it(bed) {
        let event = publish_new(&bed.queue, NewEvent::new("t").expires_at(after(bed.now(), secs(1)))).await.id;
        bed.advance(secs(1));
        bed.queue.expire_once().await.unwrap();
        bed.queue.reset(event, "main", "try again").await.unwrap();
        assert_eq!(claim_one(&bed.queue).await.event.id, event);
    }

    // H12
    async fn pending_or_completed_event_cannot_be_reset(bed) {
        let event = publish(&bed.queue, "t").await.id;
        assert_eq!(bed.queue.reset(event, "main", "x").await, Err(not_reset(event, Status::Pending)));
        done(&bed.queue, &claim_one(&bed.queue).await).await;
        assert_eq!(bed.queue.reset(event, "main", "x").await, Err(not_reset(event, Status::Completed)));
        assert_eq!(trail(&bed.queue, event).await, [Action::Picked, Action::Completed]);
        let unknown = Error::EventNotFound { namespace: "default".into(), event_id: event + 1 };
        assert_eq!(bed.queue.reset(event + 1, "main", "x").await, Err(unknown));
        assert_eq!(bed.queue.reset(event, "nope", "x").await.unwrap_err().code(), "subscription_not_found");
    }

    // Q16: a reset does not give back the attempt.
    async fn reset_attempt_counts_toward_max_attempts(bed) {
        let queue = bed.namespace(Policy { max_attempts: 3, ..Policy::default() }).await;
        let event = publish(&queue, "t").await.id;
        claim_one(&queue).await;
        queue.reset(event, "main", "x").await.unwrap();
        for _ in 0..2 {
            claim_one(&queue).await;
            bed.advance(LEASE);
        }
        assert!(poll(&queue).await.is_none());
        assert_eq!(status(&queue, event).await, Status::Failed);
    }

    // B3, H14
    async fn stuck_deliveries_are_listed_oldest_first(bed) {
        let queue = &bed.queue;
        let start = bed.now();
        let mut claimed = Vec::new();
        for (n, event_type) in ["a", "b", "c"].iter().enumerate() {
            publish(queue, event_type).await;
            claimed.push(queue.poll(format!("w{n}")).await.unwrap().unwrap());
            bed.advance(secs(10));
        }
        publish(queue, "waiting").await;
        queue.start(&claimed[1]).await.unwrap();
        // At 30 s, the leases are 30 s, 20 s and 10 s old.
        let stuck = async |seconds| {
            let stuck = queue.stuck(secs(seconds), 10).await.unwrap();
            stuck.iter().map(|stuck| stuck.event_type.clone()).collect::<Vec<_>>()
        };
        assert_eq!(stuck(30).await, Vec::<String>::new());
        assert_eq!(stuck(29).await, ["a"]);
        assert_eq!(stuck(5).await, ["a", "b", "c"]);
        assert_eq!(queue.stuck(secs(5), 2).await.unwrap().len(), 2);
        let expected = StuckDelivery {
            event_id: claimed[1].event.id,
            event_type: "b".into(),
            subscription: "main".into(),
            worker_id: "w1".into(),
            attempts: 1,
            picked_at: after(start, secs(10)),
            started_at: Some(after(start, secs(30))),
            updated_at: after(start, secs(30)),
            lease_expires_at: after(start, secs(70)),
        };
        assert_eq!(queue.stuck(secs(5), 10).await.unwrap()[1], expected);
        queue.reset(claimed[0].event.id, "main", "stuck").await.unwrap();
        assert_eq!(stuck(5).await, ["b", "c"]);
    }

    // H14
    async fn workers_are_listed_with_stale_ones_marked(bed) {
        let queue = &bed.queue;
        let start = bed.now();
        publish_many(queue, "t", 5).await;
        let busy = claim(queue, ClaimRequest::new("busy").max(2)).await;
        claim(queue, ClaimRequest::new("silent").max(1)).await;
        let quick = claim(queue, ClaimRequest::new("quick").max(1)).await;
        bed.advance(secs(10));
        done(queue, &quick[0]).await;
        bed.advance(secs(25));
        queue.extend(&busy[0], None).await.unwrap().unwrap();
        let worker = |name: &str, held, oldest: Option<u64>, seen: u64, stale| WorkerView {
            worker_id: name.into(),
            held,
            oldest_picked_at: oldest.map(|at| after(start, secs(at))),
            last_seen_at: after(start, secs(seen)),
            stale,
        };
        let expected = [
            worker("busy", 2, Some(0), 35, false),
            worker("quick", 0, None, 10, false),
            worker("silent", 1, Some(0), 0, true),
        ];
        let mut workers = queue.workers(secs(30)).await.unwrap();
        workers.sort_by_key(|worker| worker.worker_id.clone());
        assert_eq!(workers, expected);
        // A worker without leases is not listed after an hour.
        bed.advance(secs(3_600));
        let names: Vec<_> = queue.workers(secs(30)).await.unwrap().into_iter().map(|w| w.worker_id).collect();
        assert_eq!(sorted(names), ["busy", "silent"]);
    }
}
