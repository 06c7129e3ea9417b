//! Deadlines: who is near his goes first, and who missed it never starts.

use windlass::{Action, NewEvent, Policy, Queue, Report, Status};

use crate::support::*;

async fn expiring(bed: &crate::bed::Bed, queue: &Queue, seconds: u64) -> i64 {
    publish_new(queue, NewEvent::new("t").expires_at(after(bed.now(), secs(seconds)))).await.id
}

conformance! {
    // O3
    async fn an_event_near_its_deadline_goes_first(bed) {
        let queue = &bed.queue;
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
    async fn near_deadlines_go_first_within_one_claim(bed) {
        let usual = publish_many(&bed.queue, "t", 3).await;
        let (later, sooner) = (expiring(bed, &bed.queue, 20).await, expiring(bed, &bed.queue, 10).await);
        let got = ids(&take_all(&bed.queue).await);
        assert_eq!(got, [sooner, later, usual[0], usual[1], usual[2]]);
    }

    async fn the_policy_says_how_near_is_near(bed) {
        let queue = bed.namespace(Policy { deadline_horizon_ms: 5_000, ..Policy::default() }).await;
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
        assert_eq!(bed.queue.sweep_once().await.unwrap() + bed.queue.expire_once().await.unwrap(), 1);
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
        let held = windlass::Held::by_worker(event, "w");
        assert!(bed.queue.finish(held, Report::done()).await.unwrap().is_lost());
    }
}
