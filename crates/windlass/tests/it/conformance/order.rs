//! The claim order: near deadlines first, then higher priority, then earliest ready, for any number of tag sets.

use std::cmp::Reverse;
use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection};
use windlass::{ClaimRequest, Delivery, Event, LeasedEvent, NewEvent, Outcome, Queue, Report, Timestamp};
use windlass_testkit::Kind;

use crate::bed::Bed;
use crate::support::*;

/// The position of an event in the claim order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    without_deadline: bool,
    deadline: Option<Timestamp>,
    priority: Reverse<i16>,
    ready_at: Timestamp,
    id: i64,
}

impl Rank {
    fn of(event: &Event) -> Rank {
        Rank {
            without_deadline: event.expires_at.is_none(),
            deadline: event.expires_at,
            priority: Reverse(event.priority),
            ready_at: event.run_at.unwrap_or(event.created_at),
            id: event.id,
        }
    }
}

/// How long the last events of a mix are delayed.
const DELAY: Duration = Duration::from_millis(1_500);

/// The n-th event of a mix of priorities and deadlines.
fn mixed(n: usize, tag_sets: usize) -> NewEvent {
    let priority = [0, 0, 5, 0, 0, -5, 0, 0, 0, 0][n % 10];
    let event = NewEvent::new("t").tags(["all".to_owned(), format!("set-{}", n * 7 % tag_sets)]).priority(priority);
    let deadline = secs(40) + millis(n as u64 * 7_919 % 15_000);
    if n % 60 == 7 { event.expires_in(deadline) } else { event }
}

/// Publishes a mix, and then delayed events of priority 0 and lower.
async fn publish_mixed(queue: &Queue, events: usize, tag_sets: usize) -> Vec<Rank> {
    let (mut ranks, delayed) = (Vec::new(), (0..30).map(|n| mixed(n * 10 + n % 2 * 5, tag_sets).delay(DELAY)));
    let new: Vec<NewEvent> = (0..events).map(|n| mixed(n, tag_sets)).chain(delayed).collect();
    for batch in new.chunks(1_000) {
        let published = queue.publish_all(batch.to_vec()).await.unwrap();
        ranks.extend(published.iter().map(|published| Rank::of(&published.event)));
    }
    ranks
}

async fn claim_batch(queue: &Queue, tags: &[&str], max: usize) -> Vec<Delivery> {
    claim(queue, ClaimRequest::new("w").tags(tags.to_vec()).max(max)).await
}

/// Publishes a mix, has some of it retried, adds near deadlines, and claims everything in order.
async fn claims_in_order(bed: &Bed, queue: &Queue, tag_sets: usize, tags: &[&str]) {
    let real_clock = queue.clock().now() != bed.now();
    let mut ranks = publish_mixed(queue, tag_sets.max(600), tag_sets).await;
    ranks.sort();
    let first = claim_batch(queue, tags, 80).await;
    let expected: Vec<i64> = ranks.iter().map(|rank| rank.id).collect();
    assert_eq!(ids(&first), expected[..80], "{tag_sets} tag sets, first claim");
    bed.advance_without_jump(millis(5)).await;
    // Retried deliveries become ready now; released deliveries keep their position.
    let (retried, released) = first.split_at(40);
    let retry = Report::new(Outcome::Retry { after: Some(millis(0)) });
    let reports = retried.iter().map(|delivery| (LeasedEvent::from(delivery), retry.clone()));
    let reports = reports.chain(released.iter().map(|delivery| (LeasedEvent::from(delivery), release())));
    for (delivery, finished) in first.iter().zip(queue.finish_all(reports.collect()).await.unwrap()) {
        let retry_at = finished.unwrap().attempt().and_then(|attempt| attempt.next_retry_at);
        if let (Some(at), Some(rank)) = (retry_at, ranks.iter_mut().find(|rank| rank.id == delivery.event.id)) {
            rank.ready_at = at;
        }
    }
    bed.advance_without_jump(DELAY).await;
    if real_clock {
        tokio::time::sleep(DELAY).await;
    }
    let urgent = NewEvent::new("u").tags(["all"]).expires_in(secs(30));
    let urgent = publish_new(queue, urgent).await.id;
    ranks.sort();
    let mut got = Vec::new();
    loop {
        let batch = claim_batch(queue, tags, 70).await;
        if batch.is_empty() {
            break;
        }
        got.extend(ids(&batch));
    }
    assert_eq!(got[0], urgent, "{tag_sets} tag sets");
    let expected: Vec<i64> = ranks.iter().map(|rank| rank.id).collect();
    assert_eq!(got[1..], expected, "{tag_sets} tag sets");
}

/// Checks the order under both clocks, for claims without a filter and with a tag that all events have.
async fn order_holds(bed: &Bed, tag_sets: usize) {
    for (name, queue) in [("test", bed.queue.clone()), ("real", bed.real_time_queue().await)] {
        for tags in [&[][..], &["all"]] {
            let namespace = format!("{name}-{}", tags.len());
            let queue = queue.put_namespace(&namespace, None, None).await.unwrap();
            claims_in_order(bed, &queue, tag_sets, tags).await;
        }
    }
}

fn lane_count(bed: &Bed) -> &'static str {
    match bed.database.kind {
        Kind::Sqlite => "SELECT count(*) FROM lanes",
        Kind::Postgres => "SELECT count(*) FROM windlass.lanes",
    }
}

/// More empty lanes than pruning leaves in place.
const LANES: usize = 600;

/// Publishes and completes an event in each of `LANES` lanes, then advances the clock until they can be pruned.
async fn use_lanes(bed: &Bed) {
    let events = (0..LANES).map(|n| NewEvent::new("t").tags([format!("tenant-{n}")]));
    bed.queue.publish_all(events.collect()).await.unwrap();
    let claimed = claim(&bed.queue, ClaimRequest::new("w").max(LANES)).await;
    let reports = claimed.iter().map(|delivery| (LeasedEvent::from(delivery), Report::done())).collect();
    bed.queue.finish_all(reports).await.unwrap();
    bed.advance(secs(601));
}

/// How many tag sets the test of their removal uses.
fn many_tag_sets() -> usize {
    std::env::var("WINDLASS_TEST_TAG_SETS").map_or(3_000, |sets| sets.parse().unwrap())
}

conformance! {
    // O3
    async fn order_holds_with_one_tag_set(bed) {
        order_holds(bed, 1).await;
    }

    // O3
    async fn order_holds_with_10_tag_sets(bed) {
        order_holds(bed, 10).await;
    }

    // O3
    async fn order_holds_with_40_tag_sets(bed) {
        order_holds(bed, 40).await;
    }

    // O3
    async fn order_holds_with_400_tag_sets(bed) {
        order_holds(bed, 400).await;
    }

    // O3
    async fn order_holds_with_5000_tag_sets(bed) {
        order_holds(bed, 5_000).await;
    }

    // O3
    async fn near_deadline_is_in_the_next_claim(bed) {
        let queue = bed.real_time_queue().await;
        for chunk in 0..10 {
            let events = (0..1_000).map(|n| NewEvent::new("t").tags([format!("set-{}", (chunk * 1_000 + n) % 400)]));
            queue.publish_all(events.collect()).await.unwrap();
        }
        for round in 0..1_000 {
            let urgent = NewEvent::new("t").tags([format!("set-{}", round * 7 % 400)]).expires_in(secs(40));
            let urgent = publish_new(&queue, urgent).await.id;
            let got = claim_batch(&queue, &[], 9).await;
            assert_eq!((got.len(), got[0].event.id), (9, urgent), "round {round}");
        }
    }

    async fn released_delivery_is_in_the_next_claim(bed) {
        for queue in [bed.queue.clone(), bed.real_time_queue().await] {
            publish_mixed(&queue, 2_000, 50).await;
            let first = claim_batch(&queue, &[], 100).await;
            claim_batch(&queue, &[], 100).await;
            finish(&queue, &first[99], release()).await;
            let next = claim_batch(&queue, &[], 100).await;
            assert_eq!(next[0].event.id, first[99].event.id);
            while !claim_batch(&queue, &[], 1_000).await.is_empty() {}
        }
    }

    async fn empty_lanes_are_removed_and_publishing_continues(bed) {
        let (queue, tag_sets) = (&bed.queue, many_tag_sets());
        for start in (0..tag_sets).step_by(1_000) {
            let events = (start..tag_sets.min(start + 1_000)).map(|n| NewEvent::new("t").tags([format!("tenant-{n}")]));
            queue.publish_all(events.collect()).await.unwrap();
        }
        assert_eq!(bed.database.select_numbers(lane_count(bed)).await, [tag_sets as i64]);
        let in_progress = claim(queue, ClaimRequest::new("w").tags(["tenant-5"])).await;
        let mut handled = 0;
        loop {
            let batch = claim(queue, ClaimRequest::new("w").max(1_000)).await;
            if batch.is_empty() {
                break;
            }
            handled += batch.len();
            let done = batch.iter().map(|delivery| (LeasedEvent::from(delivery), Report::done())).collect();
            queue.finish_all(done).await.unwrap();
        }
        assert_eq!(handled, tag_sets - 1);
        assert_eq!(queue.prune_once().await, Ok(0), "the lanes are new");
        bed.advance(secs(601));
        queue.extend(&in_progress[0], None).await.unwrap();
        queue.prune_once().await.unwrap();
        assert_eq!(bed.database.select_numbers(lane_count(bed)).await, [1], "one lane has a delivery in progress");
        done(queue, &in_progress[0]).await;
        let tags = |tag: &str| ClaimRequest::new("w").tags([tag]);
        for tag in ["tenant-1", "new"] {
            let event = publish_new(queue, NewEvent::new("t").tags([tag])).await;
            assert_eq!(ids(&claim(queue, tags(tag)).await), [event.id]);
        }
    }

    async fn lane_removed_by_another_process_is_not_used(bed) {
        let other = bed.second_queue().await;
        use_lanes(bed).await;
        assert_eq!(other.prune_once().await, Ok(LANES));
        // This process still has the lane in its cache.
        let event = publish_new(&bed.queue, NewEvent::new("t").tags(["tenant-7"])).await;
        let got = claim(&other, ClaimRequest::new("w").tags(["tenant-7"])).await;
        assert_eq!(ids(&got), [event.id]);
    }

    async fn few_empty_lanes_are_kept(bed) {
        publish_new(&bed.queue, NewEvent::new("t").tags(["a"])).await;
        done(&bed.queue, &claim_one(&bed.queue).await).await;
        bed.advance(secs(601));
        assert_eq!(bed.queue.prune_once().await, Ok(0));
        assert_eq!(bed.database.select_numbers(lane_count(bed)).await, [1]);
    }

    async fn poll_notices_resume_by_another_process(bed) {
        let other = bed.second_queue().await;
        let event = publish(&bed.queue, "t").await.id;
        bed.queue.pause().await.unwrap();
        assert_eq!(ids(&claim_batch(&bed.queue, &[], 1).await), [0; 0]);
        other.resume().await.unwrap();
        assert_eq!(ids(&claim_batch(&bed.queue, &[], 1).await), [event]);
    }

    async fn lease_expires_after_the_clock_was_set_back(bed) {
        claim_batch(&bed.queue, &[], 1).await;
        bed.test_clock.set(bed.now() - chrono::TimeDelta::seconds(7_200));
        let event = publish(&bed.queue, "t").await.id;
        assert_eq!(ids(&claim_batch(&bed.queue, &[], 1).await), [event]);
        bed.advance(LEASE + secs(30));
        assert_eq!(ids(&claim_batch(&bed.queue, &[], 1).await), [event]);
    }

    async fn clock_jump_loses_no_event(bed) {
        let queue = &bed.queue;
        let first = publish_new(queue, NewEvent::new("t").tags(["a"])).await.id;
        bed.test_clock.set(after(bed.now(), secs(3_600)));
        let second = publish_new(queue, NewEvent::new("t").tags(["b"])).await.id;
        let delayed = publish_new(queue, NewEvent::new("t").tags(["b"]).delay(secs(60))).await.id;
        bed.test_clock.set(bed.now() - chrono::TimeDelta::seconds(7_200));
        let third = publish_new(queue, NewEvent::new("t").tags(["c"])).await.id;
        // Published events are ready even though the clock is now behind their timestamps.
        let got = ids(&claim_batch(queue, &[], 10).await);
        assert_eq!(sorted(got), [first, second, third]);
        bed.test_clock.set(after(bed.now(), secs(7_200 + 61)));
        let got = ids(&claim_batch(queue, &[], 10).await);
        assert_eq!(sorted(got), [first, second, delayed, third], "leases have expired, and the delayed event is ready");
    }
}

on_postgres! {
    async fn lanes_are_kept_while_a_process_uses_them(bed) {
        use_lanes(bed).await;
        let mut tx = PgConnection::connect(&bed.database.url).await.unwrap();
        tx.execute("BEGIN; SELECT windlass._hold_topology('default', NULL)").await.unwrap();
        assert_eq!(bed.queue.prune_once().await, Ok(0), "the process may be publishing");
        tx.execute("COMMIT").await.unwrap();
        assert_eq!(bed.queue.prune_once().await, Ok(LANES));
    }

    async fn open_transaction_that_published_keeps_no_lanes(bed) {
        use_lanes(bed).await;
        let mut tx = PgConnection::connect(&bed.database.url).await.unwrap();
        tx.execute("BEGIN; SELECT windlass.publish('t', tags => 'tenant-7')").await.unwrap();
        assert_eq!(bed.queue.prune_once().await, Ok(LANES));
        tx.execute("COMMIT").await.unwrap();
        assert_eq!(claim_batch(&bed.real_time_queue().await, &["tenant-7"], 1).await.len(), 1);
    }

    async fn commit_after_lane_removal_loses_no_event(bed) {
        use_lanes(bed).await;
        let mut tx = PgConnection::connect(&bed.database.url).await.unwrap();
        tx.execute("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT 1").await.unwrap();
        assert_eq!(bed.queue.prune_once().await, Ok(LANES));
        tx.execute("SELECT windlass.publish('t', tags => 'tenant-7')").await.unwrap();
        let filtered = tokio::spawn({
            let queue = bed.real_time_queue().await;
            async move { claim(&queue, ClaimRequest::new("w").tags(["tenant-7"]).wait(secs(20))).await }
        });
        tokio::time::sleep(millis(20)).await;
        tx.execute("COMMIT").await.unwrap();
        assert_eq!(filtered.await.unwrap().len(), 1);
    }

    async fn lane_created_by_late_commit_is_claimed(bed) {
        // More lanes than a claim reads one by one.
        let events = (0..50).map(|n| NewEvent::new("t").tags(["all".to_owned(), format!("set-{n}")]));
        bed.queue.publish_all(events.collect()).await.unwrap();
        let mut tx = PgConnection::connect(&bed.database.url).await.unwrap();
        let late = "BEGIN;
            INSERT INTO windlass.lanes (namespace, subscription_id, subscription, event_type, tags, priority)
            SELECT 'default', subscription_id, 'main', 't', 'all,late', 0 FROM windlass.subscriptions;
            INSERT INTO windlass.events (namespace, event_type, tags, payload, priority, created_at)
            VALUES ('default', 't', 'all,late', 'null', 0, '2025-12-24');
            INSERT INTO windlass.event_queue (subscription_id, event_id, lane_id, ready_at, created_at, attempts_limit,
                priority, out_of_order, namespace, subscription, event_type, updated_at)
            SELECT l.subscription_id, e.id, l.lane_id, e.created_at, e.created_at, 20, 0, false, 'default', 'main', 't',
                e.created_at
            FROM windlass.lanes l, windlass.events e WHERE l.tags = 'all,late' AND e.tags = 'all,late'";
        tx.execute(late).await.unwrap();
        let later = publish_new(&bed.queue, NewEvent::new("t").tags(["all"])).await.id;
        let got = ids(&claim_batch(&bed.queue, &["all"], 100).await);
        assert_eq!((got.len(), got.last()), (51, Some(&later)));
        tx.execute("COMMIT").await.unwrap();
        assert_eq!(claim_batch(&bed.queue, &["all"], 100).await.len(), 1);
        assert_eq!(claim_batch(&bed.queue, &["all"], 100).await.len(), 0);
    }
}
