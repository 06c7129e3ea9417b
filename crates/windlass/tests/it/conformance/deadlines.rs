//! Deadlines: the earliest deadline is claimed first, and a delivery that missed its deadline is never started.

use windlass::{
    Action, ClaimRequest, NamespacePolicy, NewEvent, Policy, PolicyOverrides, Queue, Report, Status, SubscriptionSpec,
};

use crate::bed::Bed;
use crate::support::*;

async fn expiring(bed: &Bed, queue: &Queue, seconds: u64) -> i64 {
    publish_new(queue, NewEvent::new("t").expires_at(after(bed.now(), secs(seconds)))).await.id
}

conformance! {
    // O3
    async fn deadlines_within_the_horizon_beat_priority(bed) {
        let queue = &bed.namespace(Policy { deadline_horizon_ms: Some(60_000), ..Policy::default() }).await;
        let urgent = publish_new(queue, NewEvent::new("t").priority(9)).await.id;
        let usual = publish(queue, "t").await.id;
        let far = expiring(bed, queue, 61).await;
        let (later, sooner) = (expiring(bed, queue, 60).await, expiring(bed, queue, 30).await);
        let of_type = NewEvent::new("u").priority(-9).expires_at(after(bed.now(), secs(45)));
        let between = publish_new(queue, of_type).await.id;
        let mut got = Vec::new();
        for _ in 0..6 {
            got.push(take(queue).await.event.id);
        }
        assert_eq!(got, [sooner, between, later, urgent, usual, far]);
    }

    // O3
    async fn without_a_horizon_every_deadline_beats_priority(bed) {
        let queue = &bed.queue;
        let urgent = publish_new(queue, NewEvent::new("t").priority(9)).await.id;
        let (later, sooner) = (expiring(bed, queue, 86_400).await, expiring(bed, queue, 3_600).await);
        assert_eq!(ids(&take_all(queue).await), [sooner, later, urgent]);
    }

    async fn the_horizon_is_a_minute_if_every_event_expires(bed) {
        let queue = bed.namespace(Policy { expires_after_ms: Some(3_600_000), ..Policy::default() }).await;
        let usual = publish(&queue, "t").await.id;
        let urgent = publish_new(&queue, NewEvent::new("t").priority(9)).await.id;
        let near = expiring(bed, &queue, 60).await;
        assert_eq!(ids(&take_all(&queue).await), [near, urgent, usual]);
    }

    // O3
    async fn a_backlog_does_not_keep_events_from_their_deadline(bed) {
        publish_many(&bed.queue, "t", 200).await;
        let events = (0..100).map(|_| NewEvent::new("t").expires_in(secs(110)));
        bed.queue.publish_all(events.collect()).await.unwrap();
        for second in 0..100 {
            let delivery = take(&bed.queue).await;
            assert!(delivery.event.expires_at.is_some(), "second {second}");
            done(&bed.queue, &delivery).await;
            bed.advance(secs(1));
        }
    }

    // O3
    async fn near_deadlines_go_first_within_one_claim(bed) {
        let usual = publish_many(&bed.queue, "t", 3).await;
        let (later, sooner) = (expiring(bed, &bed.queue, 20).await, expiring(bed, &bed.queue, 10).await);
        let got = ids(&take_all(&bed.queue).await);
        assert_eq!(got, [sooner, later, usual[0], usual[1], usual[2]]);
    }

    async fn the_policy_says_how_near_is_near(bed) {
        let queue = bed.namespace(Policy { deadline_horizon_ms: Some(5_000), ..Policy::default() }).await;
        let usual = publish(&queue, "t").await.id;
        let (far, near) = (expiring(bed, &queue, 6).await, expiring(bed, &queue, 5).await);
        assert_eq!(ids(&take_all(&queue).await), [near, usual, far]);
    }

    // O3
    async fn an_event_that_missed_its_deadline_is_never_started(bed) {
        let event = expiring(bed, &bed.queue, 10).await;
        let in_time = expiring(bed, &bed.queue, 11).await;
        bed.advance(secs(10));
        assert_eq!(ids(&take_all(&bed.queue).await), [in_time]);
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
    async fn an_event_can_start_until_the_last_moment(bed) {
        let event = expiring(bed, &bed.queue, 10).await;
        bed.advance(secs(10) - MICRO);
        assert_eq!(bed.queue.expire_once().await, Ok(0));
        assert_eq!(take(&bed.queue).await.event.id, event);
    }

    async fn an_event_that_started_in_time_may_end_late(bed) {
        expiring(bed, &bed.queue, 10).await;
        let delivery = take(&bed.queue).await;
        bed.advance(secs(20));
        assert_eq!(bed.queue.expire_once().await, Ok(0));
        done(&bed.queue, &delivery).await;
    }

    async fn an_abandoned_event_past_its_deadline_is_not_started_again(bed) {
        let event = expiring(bed, &bed.queue, 10).await;
        take(&bed.queue).await;
        bed.advance(LEASE);
        assert!(poll(&bed.queue).await.is_none());
        assert_eq!(bed.queue.release_expired_once().await.unwrap() + bed.queue.expire_once().await.unwrap(), 1);
        assert_eq!(status(&bed.queue, event).await, Status::Expired);
        assert_eq!(trail(&bed.queue, event).await, [Action::Picked, Action::Abandoned, Action::Expired]);
    }

    async fn an_event_that_waits_for_its_retry_can_expire(bed) {
        let event = expiring(bed, &bed.queue, 60).await;
        fail(&bed.queue, &take(&bed.queue).await).await;
        bed.advance(secs(60));
        assert_eq!(bed.queue.expire_once().await, Ok(1));
        let view = view(&bed.queue, event).await;
        assert_eq!((view.status, view.attempts, view.retry_count), (Status::Expired, 1, 1));
    }

    async fn many_events_expire_in_one_go(bed) {
        let at = after(bed.now(), secs(1));
        let events = (0..1_100).map(|n| NewEvent::new(format!("t{}", n % 3)).expires_at(at)).collect();
        bed.queue.publish_all(events).await.unwrap();
        let kept = publish(&bed.queue, "t0").await.id;
        bed.advance(secs(1));
        assert_eq!(bed.queue.expire_once().await, Ok(1_100));
        assert_eq!(bed.queue.expire_once().await, Ok(0));
        assert_eq!(ids(&take_all(&bed.queue).await), [kept]);
    }

    async fn an_expired_first_member_frees_its_group(bed) {
        let member = || NewEvent::new("t").group("g");
        let first = publish_new(&bed.queue, member().expires_at(after(bed.now(), secs(5)))).await.id;
        let waiting = publish_new(&bed.queue, member().expires_at(after(bed.now(), secs(6)))).await.id;
        let last = publish_new(&bed.queue, member()).await.id;
        bed.advance(secs(6));
        assert_eq!(bed.queue.expire_once().await, Ok(2));
        assert_eq!(ids(&take_all(&bed.queue).await), [last]);
        assert_eq!([status(&bed.queue, first).await, status(&bed.queue, waiting).await], [Status::Expired; 2]);
    }

    async fn a_deadline_does_not_pass_over_a_group(bed) {
        let member = || NewEvent::new("t").group("g");
        let first = publish_new(&bed.queue, member()).await.id;
        publish_new(&bed.queue, member().expires_at(after(bed.now(), secs(5)))).await;
        assert_eq!(ids(&take_all(&bed.queue).await), [first]);
    }

    async fn an_expired_event_cannot_be_finished(bed) {
        let event = expiring(bed, &bed.queue, 1).await;
        bed.advance(secs(1));
        bed.queue.expire_once().await.unwrap();
        let held = windlass::LeasedEvent::by_worker(event, "w");
        assert!(bed.queue.finish(held, Report::done()).await.unwrap().is_lost());
    }

    async fn a_deadline_can_be_a_time_to_wait(bed) {
        let event = publish_new(&bed.queue, NewEvent::new("t").expires_in(secs(10))).await;
        assert_eq!(event.expires_at, Some(after(bed.now(), secs(10))));
        assert_eq!(bed.queue.get(event.id).await.unwrap().event.expires_at, event.expires_at);
        bed.advance(secs(10));
        assert!(poll(&bed.queue).await.is_none());
        assert_eq!(bed.queue.expire_once().await, Ok(1));
    }

    async fn the_time_to_wait_begins_when_it_may_start(bed) {
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
        assert_eq!(take_all(&bed.queue).await.len(), 2);
    }

    // O2
    async fn a_policy_lets_old_unprocessed_events_expire(bed) {
        let of_type = PolicyOverrides { expires_after_ms: Some(Some(5_000)), ..Default::default() };
        let never = PolicyOverrides { expires_after_ms: Some(None), ..Default::default() };
        let queue = bed
            .namespace_with(NamespacePolicy {
                base: Policy { expires_after_ms: Some(60_000), ..Policy::default() },
                types: [("quick".into(), of_type), ("kept".into(), never)].into(),
            })
            .await;
        let (usual, quick, kept) = (publish(&queue, "t").await, publish(&queue, "quick").await, publish(&queue, "kept").await);
        assert_eq!(usual.expires_at, Some(after(bed.now(), secs(60))));
        assert_eq!((quick.expires_at, kept.expires_at), (Some(after(bed.now(), secs(5))), None));
        let own = publish_new(&queue, NewEvent::new("quick").expires_in(secs(90))).await;
        assert_eq!(own.expires_at, Some(after(bed.now(), secs(90))));
        bed.advance(secs(60));
        assert_eq!(queue.expire_once().await, Ok(2));
        assert_eq!(sorted(dead(&queue).await), [usual.id, quick.id]);
        assert_eq!(sorted(ids(&take_all(&queue).await)), [kept.id, own.id]);
    }

    async fn times_to_wait_are_checked(bed) {
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
    async fn under_overload_more_deadlines_are_met_than_in_the_order_of_arrival(bed) {
        let (by_deadline, in_order) = (started_in_time(bed, None).await, started_in_time(bed, Some(0)).await);
        assert_eq!((by_deadline, in_order), (120, 20));
    }
}

/// For 30 seconds 10 events are published every second, 4 of which cannot wait for longer than 5 seconds, and 5 are
/// handled; how many of the 120 with a deadline start in time. All others of them end EXPIRED.
async fn started_in_time(bed: &Bed, deadline_horizon_ms: Option<u64>) -> usize {
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
