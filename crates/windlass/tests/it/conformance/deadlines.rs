//! Deadlines: the earliest deadline is claimed first, and a delivery that missed its deadline is never started.

use windlass::{
    Action, ClaimRequest, NamespacePolicy, NewEvent, Policy, PolicyOverrides, Queue, Report, Status, SubscriptionSpec,
};

use crate::bed::Bed;
use crate::support::*;

async fn publish_expiring(bed: &Bed, queue: &Queue, seconds: u64) -> i64 {
    publish_new(queue, NewEvent::new("t").expires_at(after(bed.now(), secs(seconds)))).await.id
}

conformance! {
    // O3
    async fn deadlines_within_horizon_beat_priority(bed) {
        let queue = &bed.namespace(Policy { deadline_horizon_ms: Some(60_000), ..Policy::default() }).await;
        let urgent = publish_new(queue, NewEvent::new("t").priority(9)).await.id;
        let normal = publish(queue, "t").await.id;
        let far = publish_expiring(bed, queue, 61).await;
        let (later, sooner) = (publish_expiring(bed, queue, 60).await, publish_expiring(bed, queue, 30).await);
        let of_type = NewEvent::new("u").priority(-9).expires_at(after(bed.now(), secs(45)));
        let between = publish_new(queue, of_type).await.id;
        let mut got = Vec::new();
        for _ in 0..6 {
            got.push(claim_one(queue).await.event.id);
        }
        assert_eq!(got, [sooner, between, later, urgent, normal, far]);
    }

    // O3
    async fn without_horizon_every_deadline_beats_priority(bed) {
        let queue = &bed.queue;
        let urgent = publish_new(queue, NewEvent::new("t").priority(9)).await.id;
        let (later, sooner) = (publish_expiring(bed, queue, 86_400).await, publish_expiring(bed, queue, 3_600).await);
        assert_eq!(ids(&claim_all(queue).await), [sooner, later, urgent]);
    }

    async fn horizon_is_one_minute_if_policy_expires_all_events(bed) {
        let queue = bed.namespace(Policy { expires_after_ms: Some(3_600_000), ..Policy::default() }).await;
        let normal = publish(&queue, "t").await.id;
        let urgent = publish_new(&queue, NewEvent::new("t").priority(9)).await.id;
        let near = publish_expiring(bed, &queue, 60).await;
        assert_eq!(ids(&claim_all(&queue).await), [near, urgent, normal]);
    }

    // O3
    async fn backlog_does_not_delay_near_deadlines(bed) {
        publish_many(&bed.queue, "t", 200).await;
        let events = (0..100).map(|_| NewEvent::new("t").expires_in(secs(110)));
        bed.queue.publish_all(events.collect()).await.unwrap();
        for second in 0..100 {
            let delivery = claim_one(&bed.queue).await;
            assert!(delivery.event.expires_at.is_some(), "second {second}");
            done(&bed.queue, &delivery).await;
            bed.advance(secs(1));
        }
    }

    // O3
    async fn near_deadlines_come_first_within_one_claim(bed) {
        let normal = publish_many(&bed.queue, "t", 3).await;
        let (later, sooner) =
            (publish_expiring(bed, &bed.queue, 20).await, publish_expiring(bed, &bed.queue, 10).await);
        let got = ids(&claim_all(&bed.queue).await);
        assert_eq!(got, [sooner, later, normal[0], normal[1], normal[2]]);
    }

    async fn policy_sets_the_deadline_horizon(bed) {
        let queue = bed.namespace(Policy { deadline_horizon_ms: Some(5_000), ..Policy::default() }).await;
        let normal = publish(&queue, "t").await.id;
        let (far, near) = (publish_expiring(bed, &queue, 6).await, publish_expiring(bed, &queue, 5).await);
        assert_eq!(ids(&claim_all(&queue).await), [near, normal, far]);
    }

    // O3
    async fn event_past_its_deadline_is_never_started(bed) {
        let event = publish_expiring(bed, &bed.queue, 10).await;
        let in_time = publish_expiring(bed, &bed.queue, 11).await;
        bed.advance(secs(10));
        assert_eq!(ids(&claim_all(&bed.queue).await), [in_time]);
        assert_eq!(bed.queue.expire_once().await, Ok(1));
        let view = view(&bed.queue, event).await;
        assert_eq!((view.status, view.attempts, view.updated_at), (Status::Expired, 0, bed.now()));
        let letter = bed.queue.dead_letters(Default::default()).await.unwrap().items.remove(0);
        assert_eq!((letter.event.id, letter.status, letter.failed_at), (event, Status::Expired, bed.now()));
        assert_eq!(letter.reason, "Expired before it could start");
        assert_eq!(trail(&bed.queue, event).await, [Action::Expired]);
        assert_eq!(bed.queue.expire_once().await, Ok(0));
    }

    // O3
    async fn event_can_start_until_its_deadline(bed) {
        let event = publish_expiring(bed, &bed.queue, 10).await;
        bed.advance(secs(10) - MICRO);
        assert_eq!(bed.queue.expire_once().await, Ok(0));
        assert_eq!(claim_one(&bed.queue).await.event.id, event);
    }

    async fn event_started_in_time_may_finish_late(bed) {
        publish_expiring(bed, &bed.queue, 10).await;
        let delivery = claim_one(&bed.queue).await;
        bed.advance(secs(20));
        assert_eq!(bed.queue.expire_once().await, Ok(0));
        done(&bed.queue, &delivery).await;
    }

    async fn expired_lease_past_deadline_is_not_redelivered(bed) {
        let event = publish_expiring(bed, &bed.queue, 10).await;
        claim_one(&bed.queue).await;
        bed.advance(LEASE);
        assert!(poll(&bed.queue).await.is_none());
        assert_eq!(bed.queue.release_expired_once().await.unwrap() + bed.queue.expire_once().await.unwrap(), 1);
        assert_eq!(status(&bed.queue, event).await, Status::Expired);
        assert_eq!(trail(&bed.queue, event).await, [Action::Picked, Action::Abandoned, Action::Expired]);
    }

    async fn event_waiting_for_retry_can_expire(bed) {
        let event = publish_expiring(bed, &bed.queue, 60).await;
        fail(&bed.queue, &claim_one(&bed.queue).await).await;
        bed.advance(secs(60));
        assert_eq!(bed.queue.expire_once().await, Ok(1));
        let view = view(&bed.queue, event).await;
        assert_eq!((view.status, view.attempts, view.retry_count), (Status::Expired, 1, 1));
    }

    async fn many_events_expire_in_one_run(bed) {
        let at = after(bed.now(), secs(1));
        let events = (0..1_100).map(|n| NewEvent::new(format!("t{}", n % 3)).expires_at(at)).collect();
        bed.queue.publish_all(events).await.unwrap();
        let kept = publish(&bed.queue, "t0").await.id;
        bed.advance(secs(1));
        assert_eq!(bed.queue.expire_once().await, Ok(1_100));
        assert_eq!(bed.queue.expire_once().await, Ok(0));
        assert_eq!(ids(&claim_all(&bed.queue).await), [kept]);
    }

    async fn expired_head_frees_its_group(bed) {
        let member = || NewEvent::new("t").group("g");
        let first = publish_new(&bed.queue, member().expires_at(after(bed.now(), secs(5)))).await.id;
        let waiting = publish_new(&bed.queue, member().expires_at(after(bed.now(), secs(6)))).await.id;
        let last = publish_new(&bed.queue, member()).await.id;
        bed.advance(secs(6));
        assert_eq!(bed.queue.expire_once().await, Ok(2));
        assert_eq!(ids(&claim_all(&bed.queue).await), [last]);
        assert_eq!([status(&bed.queue, first).await, status(&bed.queue, waiting).await], [Status::Expired; 2]);
    }

    async fn deadline_does_not_override_group_order(bed) {
        let member = || NewEvent::new("t").group("g");
        let first = publish_new(&bed.queue, member()).await.id;
        publish_new(&bed.queue, member().expires_at(after(bed.now(), secs(5)))).await;
        assert_eq!(ids(&claim_all(&bed.queue).await), [first]);
    }

    async fn expired_event_cannot_be_finished(bed) {
        let event = publish_expiring(bed, &bed.queue, 1).await;
        bed.advance(secs(1));
        bed.queue.expire_once().await.unwrap();
        let lease = windlass::LeasedEvent::by_worker(event, "w");
        assert!(bed.queue.finish(lease, Report::done()).await.unwrap().is_lost());
    }

    async fn deadline_can_be_given_as_a_duration(bed) {
        let event = publish_new(&bed.queue, NewEvent::new("t").expires_in(secs(10))).await;
        assert_eq!(event.expires_at, Some(after(bed.now(), secs(10))));
        assert_eq!(bed.queue.get(event.id).await.unwrap().event.expires_at, event.expires_at);
        bed.advance(secs(10));
        assert!(poll(&bed.queue).await.is_none());
        assert_eq!(bed.queue.expire_once().await, Ok(1));
    }

    async fn expires_in_counts_from_run_at(bed) {
        let later = NewEvent::new("t").delay(secs(60)).expires_in(secs(10));
        let at = NewEvent::new("t").run_at(after(bed.now(), secs(60))).expires_in(secs(10));
        let past = NewEvent::new("t").run_at(bed.now() - secs(60)).expires_in(secs(10));
        let published = bed.queue.publish_all(vec![later, at, past]).await.unwrap();
        let expected = [70, 70, 10].map(|wait| Some(after(bed.now(), secs(wait))));
        for (published, expected) in published.iter().zip(expected) {
            assert_eq!(published.event.expires_at, expected);
            assert_eq!(bed.queue.get(published.event.id).await.unwrap().event.expires_at, expected);
        }
        bed.advance(secs(60));
        assert_eq!(bed.queue.expire_once().await, Ok(1));
        assert_eq!(claim_all(&bed.queue).await.len(), 2);
    }

    // O2
    async fn policy_expires_old_pending_events(bed) {
        let of_type = PolicyOverrides { expires_after_ms: Some(Some(5_000)), ..Default::default() };
        let never = PolicyOverrides { expires_after_ms: Some(None), ..Default::default() };
        let queue = bed
            .namespace_with(NamespacePolicy {
                base: Policy { expires_after_ms: Some(60_000), ..Policy::default() },
                types: [("quick".into(), of_type), ("kept".into(), never)].into(),
            })
            .await;
        let (normal, quick, kept) = (publish(&queue, "t").await, publish(&queue, "quick").await, publish(&queue, "kept").await);
        assert_eq!(normal.expires_at, Some(after(bed.now(), secs(60))));
        assert_eq!((quick.expires_at, kept.expires_at), (Some(after(bed.now(), secs(5))), None));
        let own = publish_new(&queue, NewEvent::new("quick").expires_in(secs(90))).await;
        assert_eq!(own.expires_at, Some(after(bed.now(), secs(90))));
        bed.advance(secs(60));
        assert_eq!(queue.expire_once().await, Ok(2));
        assert_eq!(sorted(dead_letter_ids(&queue).await), [normal.id, quick.id]);
        assert_eq!(sorted(ids(&claim_all(&queue).await)), [kept.id, own.id]);
    }

    async fn invalid_expiry_durations_are_refused(bed) {
        let both = NewEvent::new("t").expires_in(secs(1)).expires_at(after(bed.now(), secs(1)));
        let over = secs(101 * 366 * 24 * 3600);
        for event in [both, NewEvent::new("t").expires_in(secs(0)), NewEvent::new("t").expires_in(over)] {
            let error = bed.queue.publish(event).await.unwrap_err();
            assert!(error.to_string().contains("expires_in_ms"), "{error}");
        }
        for expires_after_ms in [Some(0), Some(u64::MAX)] {
            let policy = Policy { expires_after_ms, ..Policy::default() };
            let error = bed.queue.put_namespace("ns", Some(policy.into()), None).await.err().unwrap();
            assert!(error.to_string().contains("expires_after_ms"), "{error}");
        }
        let overrides = PolicyOverrides { expires_after_ms: Some(Some(1)), ..Default::default() };
        let spec = SubscriptionSpec::new("s").policy(overrides);
        let error = bed.queue.add_subscription(spec).await.unwrap_err();
        assert!(error.to_string().contains("expires_after_ms"), "{error}");
    }

    // O3
    async fn overload_meets_more_deadlines_than_publish_order(bed) {
        let (by_deadline, in_order) =
            (count_started_in_time(bed, None).await, count_started_in_time(bed, Some(0)).await);
        assert_eq!((by_deadline, in_order), (120, 20));
    }
}

/// Counts the events with a deadline that start in time under overload; the others expire.
///
/// Each second for 30 seconds, 10 events are published and 5 are handled. 4 of the 10 expire after 5 seconds.
async fn count_started_in_time(bed: &Bed, deadline_horizon_ms: Option<u64>) -> usize {
    let policy = Policy { deadline_horizon_ms, ..Policy::default() };
    let namespace = if deadline_horizon_ms.is_some() { "bounded" } else { "unbounded" };
    let queue = bed.queue.put_namespace(namespace, Some(policy.into()), None).await.unwrap();
    let event = |n| if n % 5 < 2 { NewEvent::new("t").expires_in(secs(5)) } else { NewEvent::new("t") };
    let mut started = 0;
    for _ in 0..30 {
        queue.publish_all((0..10).map(event).collect()).await.unwrap();
        for delivery in claim(&queue, ClaimRequest::new("w").max(5)).await {
            done(&queue, &delivery).await;
            started += usize::from(delivery.event.expires_at.is_some());
        }
        bed.advance(secs(1));
    }
    bed.advance(secs(5));
    assert_eq!(queue.expire_once().await.unwrap() + started, 120);
    started
}
