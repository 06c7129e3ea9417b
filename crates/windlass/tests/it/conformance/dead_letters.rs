//! Dead letters: listed, redriven and purged.

use windlass::{
    Action, ClaimRequest, DeadLetterFilter, Error, NewEvent, Outcome, Queue, Report, Status, SubscriptionSpec,
};

use crate::support::*;

/// Publishes an event of this type that becomes a dead letter.
async fn publish_dead_letter(queue: &Queue, event_type: &str, reason: &str) -> i64 {
    let event = publish(queue, event_type).await;
    let delivery = claim(queue, ClaimRequest::new("w").types([event_type])).await.remove(0);
    let report = Report::new(Outcome::Dead { reason: reason.into() }).error(format!("{reason}, in full"));
    finish(queue, &delivery, report).await;
    event.id
}

async fn ids_of(queue: &Queue, filter: DeadLetterFilter) -> Vec<i64> {
    let page = queue.dead_letters(filter).await.unwrap();
    assert_eq!(page.total, page.items.len() as u64);
    page.items.iter().map(|letter| letter.event.id).collect()
}

fn all() -> DeadLetterFilter {
    DeadLetterFilter::default()
}

conformance! {
    // C9, O2
    async fn dead_letter_shows_event_and_reason(bed) {
        let event = publish_new(&bed.queue, NewEvent::new("t").tags(["x"]).max_retries(2).priority(4)).await;
        fail(&bed.queue, &claim_one(&bed.queue).await).await;
        bed.advance(BACKOFF);
        finish(&bed.queue, &claim_one(&bed.queue).await, release()).await;
        let delivery = claim_one(&bed.queue).await;
        bed.advance(secs(5));
        finish(&bed.queue, &delivery, Report::failed("at last").status_code(500)).await;
        let page = bed.queue.dead_letters(all()).await.unwrap();
        assert_eq!((page.total, page.items.len()), (1, 1));
        let letter = &page.items[0];
        assert_eq!(json(&letter.event), json(&event));
        assert_eq!((letter.subscription.as_str(), letter.status), ("main", Status::Failed));
        assert_eq!((letter.reason.as_str(), letter.error.as_deref()), ("Max retries exceeded", Some("at last")));
        assert_eq!((letter.attempts, letter.retry_count, letter.max_retries), (3, 2, Some(2)));
        assert_eq!(letter.failed_at, bed.now());
    }

    async fn listing_without_payloads_keeps_payloads_stored(bed) {
        let queue = &bed.queue;
        let event = publish_new(queue, NewEvent::new("t").payload("large").unwrap().tags(["x"])).await;
        finish(queue, &claim_one(queue).await, Report::dead("x")).await;
        let bare = DeadLetterFilter { without_payloads: true, ..all() };
        let letter = queue.dead_letters(bare).await.unwrap().items.remove(0);
        assert_eq!(letter.event.payload.get(), "null");
        assert_eq!((letter.event.id, &letter.event.tags, letter.event.created_at), (event.id, &event.tags, event.created_at));
        assert_eq!(json(&queue.dead_letters(all()).await.unwrap().items[0].event), json(&event));
        assert_eq!(queue.redrive(all()).await, Ok(1));
        assert_eq!(claim_one(queue).await.event.payload.get(), "\"large\"");
    }

    // C9
    async fn dead_letters_are_filtered_by_each_field(bed) {
        let queue = &bed.queue;
        let a = publish_dead_letter(queue, "a.x", "first").await;
        bed.advance(secs(10));
        let b = publish_dead_letter(queue, "a.y", "second").await;
        bed.advance(secs(10));
        let expired = publish_new(queue, NewEvent::new("b").expires_at(after(bed.now(), secs(1)))).await.id;
        bed.advance(secs(1));
        assert_eq!(queue.expire_once().await, Ok(1));
        bed.advance(secs(10));
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let failed_in_second = publish(queue, "c").await.id;
        let delivery = claim(queue, ClaimRequest::new("w").subscription("second")).await.remove(0);
        finish(queue, &delivery, Report::dead("x")).await;

        assert_eq!(ids_of(queue, all()).await, [failed_in_second, expired, b, a]);
        assert_eq!(ids_of(queue, DeadLetterFilter { event_ids: vec![b, a, 77_777], ..all() }).await, [b, a]);
        let of = |name: &str| DeadLetterFilter { subscription: Some(name.into()), ..all() };
        assert_eq!(ids_of(queue, of("second")).await, [failed_in_second]);
        assert_eq!(ids_of(queue, of("main")).await, [expired, b, a]);
        let with = |status| DeadLetterFilter { status: Some(status), ..all() };
        assert_eq!(ids_of(queue, with(Status::Expired)).await, [expired]);
        assert_eq!(ids_of(queue, with(Status::Failed)).await, [failed_in_second, b, a]);
        let of_types =
            |types: &[&str]| DeadLetterFilter { types: types.iter().map(ToString::to_string).collect(), ..all() };
        assert_eq!(ids_of(queue, of_types(&["a.*"])).await, [b, a]);
        assert_eq!(ids_of(queue, of_types(&["a.x", "c"])).await, [failed_in_second, a]);
        assert_eq!(ids_of(queue, of_types(&["a"])).await, Vec::<i64>::new());
        assert_eq!(ids_of(queue, DeadLetterFilter { reason: Some("second".into()), ..all() }).await, [b]);
        let b_failed_at =
            queue.dead_letters(DeadLetterFilter { event_ids: vec![b], ..all() }).await.unwrap().items[0].failed_at;
        let before = |at| DeadLetterFilter { failed_before: Some(at), ..all() };
        assert_eq!(ids_of(queue, before(b_failed_at)).await, [a]);
        assert_eq!(ids_of(queue, before(after(b_failed_at, MICRO))).await, [b, a]);
        let mixed = DeadLetterFilter { status: Some(Status::Failed), ..of_types(&["a.*", "b"]) };
        assert_eq!(ids_of(queue, mixed).await, [b, a]);
    }

    async fn dead_letters_are_listed_in_pages(bed) {
        let mut newest_first = Vec::new();
        for _ in 0..25 {
            bed.advance(secs(1));
            newest_first.push(publish_dead_letter(&bed.queue, "t", "x").await);
        }
        newest_first.reverse();
        let page = async |limit, offset| {
            let page = bed.queue.dead_letters(DeadLetterFilter { limit, offset, ..all() }).await.unwrap();
            assert_eq!(page.total, 25);
            page.items.iter().map(|letter| letter.event.id).collect::<Vec<_>>()
        };
        assert_eq!(page(0, 0).await, newest_first[..20]);
        assert_eq!(page(10, 20).await, newest_first[20..]);
        assert_eq!(page(3, 4).await, newest_first[4..7]);
        assert_eq!(page(3, 100).await, Vec::<i64>::new());
    }

    // C9, O9: restore of dead events
    async fn redriven_event_starts_with_no_retries(bed) {
        let event = publish_new(&bed.queue, NewEvent::new("t").max_retries(2).tags(["x"])).await;
        for _ in 0..2 {
            fail(&bed.queue, &claim_one(&bed.queue).await).await;
            bed.advance(BACKOFF);
        }
        assert_eq!(dead_letter_ids(&bed.queue).await, [event.id]);
        let only = DeadLetterFilter { event_ids: vec![event.id], ..all() };
        assert_eq!(bed.queue.redrive(only.clone()).await, Ok(1));
        assert_eq!(dead_letter_ids(&bed.queue).await, Vec::<i64>::new());
        let view = view(&bed.queue, event.id).await;
        assert_eq!((view.status, view.retry_count, view.max_retries), (Status::Pending, 0, Some(2)));
        assert_eq!((view.ready_at, view.next_retry_at), (Some(bed.now()), None));

        let again = claim_one(&bed.queue).await;
        assert_eq!(json(&again.event), json(&event));
        assert_eq!((again.attempts, again.retry_count), (3, 0));
        let failed = fail(&bed.queue, &again).await;
        assert_eq!((failed.retry_count, failed.next_retry_at), (1, Some(after(bed.now(), BACKOFF))));
        use Action::*;
        let expected = [Picked, Failed, Picked, Failed, Redriven, Picked, Failed];
        assert_eq!(trail(&bed.queue, event.id).await, expected);
        assert_eq!(bed.queue.redrive(only).await, Ok(0));
    }

    // Q16, C9
    async fn redriven_poison_event_gets_all_attempts_again(bed) {
        let policy = windlass::Policy { max_attempts: 2, ..Default::default() };
        let queue = bed.namespace(policy).await;
        let event = publish(&queue, "t").await;
        for life in 0..2 {
            for _ in 0..2 {
                claim_one(&queue).await;
                bed.advance(LEASE);
            }
            assert!(poll(&queue).await.is_none());
            assert_eq!(dead_letter_ids(&queue).await, [event.id], "life {life}");
            assert_eq!(queue.redrive(all()).await, Ok(1));
        }
        assert_eq!(claim_one(&queue).await.attempts, 5);
    }

    // C9
    async fn redrive_applies_to_all_that_match_the_filter(bed) {
        let matching = publish_many(&bed.queue, "wanted", 1_200).await;
        let other = publish_many(&bed.queue, "other", 5).await;
        loop {
            let got = claim_all(&bed.queue).await;
            if got.is_empty() {
                break;
            }
            let reports = got.iter().map(|delivery| (delivery.into(), Report::dead("x")));
            for finished in bed.queue.finish_all(reports.collect()).await.unwrap() {
                assert!(finished.unwrap().attempt().is_some());
            }
        }
        let filter = DeadLetterFilter { types: vec!["wanted".into()], ..all() };
        assert_eq!(bed.queue.redrive(filter).await, Ok(1_200));
        assert_eq!(sorted(dead_letter_ids(&bed.queue).await), other);
        let mut got = ids(&claim_all(&bed.queue).await);
        got.extend(ids(&claim_all(&bed.queue).await));
        assert_eq!(sorted(got), matching);
    }

    async fn redriven_expired_event_can_be_claimed(bed) {
        let event = publish_new(&bed.queue, NewEvent::new("t").expires_at(after(bed.now(), secs(1)))).await;
        bed.advance(secs(2));
        assert_eq!(bed.queue.expire_once().await, Ok(1));
        assert_eq!(bed.queue.redrive(all()).await, Ok(1));
        assert_eq!(bed.queue.expire_once().await, Ok(0));
        let again = claim_one(&bed.queue).await;
        assert_eq!((again.event.id, again.attempts), (event.id, 1));
        done(&bed.queue, &again).await;
        use Action::*;
        assert_eq!(trail(&bed.queue, event.id).await, [Expired, Redriven, Picked, Completed]);
    }

    async fn concurrent_redrives_redrive_each_letter_once(bed) {
        for _ in 0..30 {
            publish_dead_letter(&bed.queue, "t", "x").await;
        }
        let other = bed.second_queue().await;
        let (a, b) = tokio::join!(bed.queue.redrive(all()), other.redrive(all()));
        assert_eq!(a.unwrap() + b.unwrap(), 30);
        assert_eq!(claim_all(&bed.queue).await.len(), 30);
    }

    async fn redriven_member_waits_for_its_group(bed) {
        let first = publish_new(&bed.queue, NewEvent::new("t").group("g")).await;
        let second = publish_new(&bed.queue, NewEvent::new("t").group("g")).await;
        let third = publish_new(&bed.queue, NewEvent::new("t").group("g")).await;
        finish(&bed.queue, &claim_one(&bed.queue).await, Report::dead("x")).await;
        let running = claim_one(&bed.queue).await;
        assert_eq!(running.event.id, second.id);
        assert_eq!(bed.queue.redrive(all()).await, Ok(1));
        assert!(poll(&bed.queue).await.is_none());
        done(&bed.queue, &running).await;
        // It was published before the third.
        for expected in [first.id, third.id] {
            let got = claim_all(&bed.queue).await;
            assert_eq!(ids(&got), [expected]);
            done(&bed.queue, &got[0]).await;
        }
    }

    // O4
    async fn members_redriven_together_keep_their_order(bed) {
        let mut members = Vec::new();
        for _ in 0..3 {
            members.push(publish_new(&bed.queue, NewEvent::new("t").group("g")).await.id);
            bed.advance(secs(1));
            finish(&bed.queue, &claim_one(&bed.queue).await, Report::dead("x")).await;
        }
        assert_eq!(bed.queue.redrive(all()).await, Ok(3));
        for member in members {
            let got = claim_all(&bed.queue).await;
            assert_eq!(ids(&got), [member]);
            done(&bed.queue, &got[0]).await;
        }
    }

    async fn redriven_member_of_empty_group_is_ready(bed) {
        let event = publish_new(&bed.queue, NewEvent::new("t").group("g")).await;
        finish(&bed.queue, &claim_one(&bed.queue).await, Report::dead("x")).await;
        assert_eq!(bed.queue.redrive(all()).await, Ok(1));
        let next = publish_new(&bed.queue, NewEvent::new("t").group("g")).await;
        let got = claim_one(&bed.queue).await;
        assert_eq!(got.event.id, event.id);
        done(&bed.queue, &got).await;
        assert_eq!(claim_one(&bed.queue).await.event.id, next.id);
    }

    // C9
    async fn purge_deletes_dead_letters_and_keeps_events(bed) {
        let purged = publish_dead_letter(&bed.queue, "a", "x").await;
        let kept = publish_dead_letter(&bed.queue, "b", "x").await;
        let filter = DeadLetterFilter { types: vec!["a".into()], ..all() };
        assert_eq!(bed.queue.purge(filter).await, Ok(1));
        assert_eq!(dead_letter_ids(&bed.queue).await, [kept]);
        assert_eq!(status(&bed.queue, purged).await, Status::Failed);
        assert_eq!(trail(&bed.queue, purged).await, [Action::Picked, Action::Failed]);
        assert_eq!(bed.queue.redrive(all()).await, Ok(1));
        assert_eq!(ids(&claim_all(&bed.queue).await), [kept]);
    }

    async fn many_dead_letters_are_purged(bed) {
        publish_many(&bed.queue, "t", 1_000).await;
        let reports = claim_all(&bed.queue).await.iter().map(|delivery| (delivery.into(), Report::dead("x"))).collect();
        assert_eq!(bed.queue.finish_all(reports).await.unwrap().len(), 1_000);
        assert_eq!(bed.queue.purge(all()).await, Ok(1_000));
        assert_eq!(dead_letter_ids(&bed.queue).await, Vec::<i64>::new());
        assert_eq!(count_events(&bed.queue).await, 1_000);
    }

    // A backfilled delivery is newer than its event.
    async fn dead_letter_of_backfilled_event_can_be_redriven(bed) {
        let queue = &bed.queue;
        let event = publish_new(queue, NewEvent::new("t").max_retries(1)).await;
        let since = bed.now();
        bed.advance(secs(100));
        queue.add_subscription(SubscriptionSpec::new("late").since(since)).await.unwrap();
        let request = || ClaimRequest::new("w").subscription("late");
        finish(queue, &claim(queue, request()).await[0], Report::dead("x")).await;
        let letter = queue.dead_letters(all()).await.unwrap().items.remove(0);
        assert_eq!((json(&letter.event), letter.subscription.as_str()), (json(&event), "late"));
        let rows = queue.stats(bed.now()).await.unwrap();
        assert_eq!(rows.iter().filter(|row| row.status == Status::Failed).map(|row| row.count).sum::<u64>(), 1);
        let types = vec!["t".to_owned()];
        assert_eq!(queue.redrive(DeadLetterFilter { types, ..all() }).await, Ok(1));
        assert_eq!(json(&claim(queue, request()).await[0].event), json(&event));
    }

    async fn filter_with_unknown_subscription_is_refused(bed) {
        let event = publish_dead_letter(&bed.queue, "t", "x").await;
        let filter = DeadLetterFilter { subscription: Some("nope".into()), ..all() };
        let unknown = Error::SubscriptionNotFound { namespace: "default".into(), subscription: "nope".into() };
        assert_eq!(bed.queue.dead_letters(filter.clone()).await.unwrap_err(), unknown);
        assert_eq!(bed.queue.redrive(filter.clone()).await, Err(unknown.clone()));
        assert_eq!(bed.queue.purge(filter).await, Err(unknown));
        assert_eq!(dead_letter_ids(&bed.queue).await, [event]);
    }
}
