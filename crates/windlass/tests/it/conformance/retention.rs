//! Retention: how long history and dead letters are kept, and what is never deleted.

use std::time::Duration;

use windlass::{
    ClaimRequest, DeadLetterFilter, Delivery, NamespacePolicy, NewEvent, Policy, PolicyOverrides, Queue, Report,
    RetentionReport, Status, SubscriptionSpec,
};
use windlass_testkit::Kind;

use crate::bed::Bed;
use crate::support::*;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Rows are kept at least this much longer than the policy says.
const SLACK: Duration = Duration::from_secs(10);

fn ms(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

fn keep_completed(completed: Option<Duration>) -> Policy {
    Policy { keep_completed_ms: completed.map(ms), ..Policy::default() }
}

fn keep_for(keep: Option<Duration>) -> PolicyOverrides {
    PolicyOverrides { keep_completed_ms: Some(keep.map(ms)), ..Default::default() }
}

async fn retain(queue: &Queue) -> RetentionReport {
    queue.retain_once().await.unwrap()
}

fn deleted(deliveries: usize, events: usize) -> RetentionReport {
    RetentionReport { deliveries, events, ..RetentionReport::default() }
}

async fn is_kept(queue: &Queue, event_id: i64) -> bool {
    queue.get(event_id).await.is_ok()
}

/// Publishes and completes an event of this type.
async fn publish_completed(queue: &Queue, event_type: &str) -> i64 {
    let event = publish(queue, event_type).await;
    done(queue, &claim_one(queue).await).await;
    event.id
}

async fn claim_for(queue: &Queue, subscription: &str) -> Delivery {
    claim(queue, ClaimRequest::new("w").subscription(subscription)).await.remove(0)
}

/// Publishes an event of this type that becomes a dead letter.
async fn publish_dead_letter(queue: &Queue, event_type: &str) -> i64 {
    let event = publish(queue, event_type).await;
    finish(queue, &claim_one(queue).await, Report::dead("x")).await;
    event.id
}

/// The number of rows in each table of the history.
async fn history_rows(bed: &Bed) -> [i64; 4] {
    let mut counts = [0; 4];
    let tables = ["events", "event_attempts", "dead_letters", "retention_leftovers"];
    for (count, table) in counts.iter_mut().zip(tables) {
        let schema = if bed.database.kind == Kind::Postgres { "windlass." } else { "" };
        *count = bed.database.select_numbers(&format!("SELECT count(*) FROM {schema}{table}")).await[0];
    }
    counts
}

conformance! {
    // C13
    async fn completed_event_is_deleted_after_its_retention(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        let first = publish_completed(&queue, "t").await;
        bed.advance(HOUR / 2);
        let second = publish_completed(&queue, "t").await;
        bed.advance(HOUR / 2 + SLACK);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        bed.advance(MICRO);
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert!(!is_kept(&queue, first).await && is_kept(&queue, second).await);
        bed.advance(HOUR / 2);
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    async fn default_retention_is_half_a_year(bed) {
        let event = publish_completed(&bed.queue, "t").await;
        bed.advance(183 * DAY);
        assert_eq!(retain(&bed.queue).await, RetentionReport::default());
        // PostgreSQL deletes whole months; after 33 more days the month of the event is past its retention.
        bed.advance_without_jump(33 * DAY + HOUR).await;
        assert_eq!(retain(&bed.queue).await, deleted(1, 1));
        assert!(!is_kept(&bed.queue, event).await);
    }

    async fn every_end_but_a_dead_letter_counts_as_completed(bed) {
        let queue = bed.namespace(Policy { max_retries: Some(1), ..keep_completed(Some(HOUR)) }).await;
        publish_completed(&queue, "t").await;
        publish(&queue, "t").await;
        queue.finalize(&claim_one(&queue).await, &["e".to_owned()]).await.unwrap().attempt().unwrap();
        let cancelled = publish(&queue, "t").await;
        queue.cancel(cancelled.id, Some("main")).await.unwrap();
        publish_dead_letter(&queue, "t").await;
        bed.advance(HOUR + 2 * SLACK);
        assert_eq!(retain(&queue).await, deleted(3, 3));
        assert_eq!(history_rows(bed).await, [1, 1, 1, 0]);
    }

    // Earlier attempts are deleted together with the last one.
    async fn earlier_attempts_are_deleted_with_the_last_one(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        let event = publish(&queue, "t").await;
        fail(&queue, &claim_one(&queue).await).await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        done(&queue, &claim_one(&queue).await).await;
        bed.advance(HOUR / 2);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert_eq!(trail(&queue, event.id).await.len(), 4);
        bed.advance(HOUR);
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    // O9: per type
    async fn type_can_have_its_own_retention(bed) {
        let types = [("audit.*", None), ("noise", Some(HOUR))];
        let types = types.map(|(pattern, keep)| (pattern.to_owned(), keep_for(keep))).into();
        let queue = bed.namespace_with(NamespacePolicy { base: keep_completed(Some(DAY)), types }).await;
        let [noise, order, audit] =
            [publish_completed(&queue, "noise").await, publish_completed(&queue, "order").await, publish_completed(&queue, "audit.x").await];
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert!(!is_kept(&queue, noise).await && is_kept(&queue, order).await);
        bed.advance(DAY);
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert!(!is_kept(&queue, order).await);
        bed.advance_without_jump(1_000 * DAY).await;
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert!(is_kept(&queue, audit).await);
    }

    // O9: per subscription
    async fn event_is_kept_while_any_subscription_keeps_it(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        queue.add_subscription(SubscriptionSpec::new("long").policy(keep_for(Some(DAY)))).await.unwrap();
        let event = publish(&queue, "t").await;
        done(&queue, &claim_one(&queue).await).await;
        done(&queue, &claim_for(&queue, "long").await).await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, deleted(1, 0));
        let view = queue.get(event.id).await.unwrap();
        assert!(view.delivery("main").is_none());
        assert_eq!(view.delivery("long").unwrap().status, Status::Completed);
        bed.advance(DAY);
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    // C13: never a pending or processing event
    async fn pending_and_processing_events_are_never_deleted(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let pending = publish(&queue, "t").await;
        done(&queue, &claim_one(&queue).await).await;
        let processing = publish_new(&queue, NewEvent::new("t")).await;
        let first = claim_for(&queue, "second").await;
        fail(&queue, &first).await;
        let delivery = claim_one(&queue).await;
        bed.advance(1_000 * DAY);
        // The completed delivery of `main` is deleted; the event stays for `second`.
        assert_eq!(retain(&queue).await, deleted(1, 0));
        assert_eq!(view_of(&queue, pending.id, "second").await.status, Status::Pending);
        assert_eq!(status(&queue, processing.id).await, Status::Processing);
        assert_eq!(delivery.event.id, processing.id);
        queue.release_expired_once().await.unwrap();
        let again = claim(&queue, ClaimRequest::new("w").subscription("second").max(9)).await;
        assert_eq!(sorted(ids(&again)), [pending.id, processing.id]);
        for delivery in &again {
            done(&queue, delivery).await;
        }
        done(&queue, &claim_one(&queue).await).await;
        bed.advance(HOUR + 2 * SLACK);
        assert_eq!(retain(&queue).await, deleted(3, 2));
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    // C13: never an unresolved dead letter; O9: per status
    async fn dead_letters_have_their_own_retention(bed) {
        let policy = Policy { keep_failed_ms: Some(ms(DAY)), keep_expired_ms: Some(ms(2 * DAY)), ..keep_completed(Some(HOUR)) };
        let types = [("keep".to_owned(), PolicyOverrides { keep_failed_ms: Some(None), ..Default::default() })].into();
        let queue = bed.namespace_with(NamespacePolicy { base: policy, types }).await;
        let failed = publish_dead_letter(&queue, "t").await;
        let kept = publish_dead_letter(&queue, "keep").await;
        let expired = publish_new(&queue, NewEvent::new("t").expires_at(after(bed.now(), MINUTE))).await.id;
        bed.advance(MINUTE);
        assert_eq!(queue.expire_once().await, Ok(1));
        bed.advance(DAY - MINUTE);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        bed.advance(2 * SLACK);
        assert_eq!(retain(&queue).await, RetentionReport { dead_letters: 1, ..deleted(1, 1) });
        assert!(!is_kept(&queue, failed).await);
        assert_eq!(sorted(dead_letter_ids(&queue).await), [kept, expired]);
        bed.advance(DAY + MINUTE);
        assert_eq!(retain(&queue).await, RetentionReport { dead_letters: 1, ..deleted(1, 1) });
        assert!(!is_kept(&queue, expired).await);
        bed.advance_without_jump(1_000 * DAY).await;
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert_eq!(queue.redrive(DeadLetterFilter::default()).await, Ok(1));
        done(&queue, &claim_one(&queue).await).await;
        bed.advance(HOUR + 2 * SLACK);
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    async fn redriven_dead_letter_that_fails_again_counts_as_new(bed) {
        let queue = bed.namespace(Policy { keep_failed_ms: Some(ms(DAY)), ..keep_completed(Some(HOUR)) }).await;
        let event = publish_dead_letter(&queue, "t").await;
        bed.advance(DAY / 2);
        assert_eq!(queue.redrive(DeadLetterFilter::default()).await, Ok(1));
        finish(&queue, &claim_one(&queue).await, Report::dead("x")).await;
        bed.advance(DAY / 2 + HOUR);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert_eq!(dead_letter_ids(&queue).await, [event]);
        bed.advance(DAY / 2);
        assert_eq!(retain(&queue).await, RetentionReport { dead_letters: 1, ..deleted(1, 1) });
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    // A dead letter of one subscription keeps the event, not the deliveries of other subscriptions.
    async fn dead_letter_keeps_its_event(bed) {
        let queue = bed.namespace(Policy { keep_failed_ms: Some(ms(2 * DAY)), ..keep_completed(Some(DAY)) }).await;
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let event = publish_dead_letter(&queue, "t").await;
        done(&queue, &claim_for(&queue, "second").await).await;
        bed.advance(DAY + HOUR);
        assert_eq!(retain(&queue).await, deleted(1, 0));
        assert_eq!(dead_letter_ids(&queue).await, [event]);
        bed.advance(DAY);
        assert_eq!(retain(&queue).await, RetentionReport { dead_letters: 1, ..deleted(1, 1) });
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    // After a purge, the event counts as completed at the time it became a dead letter.
    async fn events_of_purged_dead_letters_are_deleted(bed) {
        let types = [("short".to_owned(), keep_for(Some(HOUR)))].into();
        let queue = bed.namespace_with(NamespacePolicy { base: keep_completed(Some(DAY)), types }).await;
        let [old, short] = [publish_dead_letter(&queue, "t").await, publish_dead_letter(&queue, "short").await];
        bed.advance(2 * DAY);
        // Retention passes over them while they are dead letters.
        assert_eq!(retain(&queue).await, RetentionReport::default());
        let new = publish_dead_letter(&queue, "t").await;
        assert_eq!(queue.purge(DeadLetterFilter::default()).await, Ok(3));
        assert_eq!(retain(&queue).await, deleted(2, 2));
        assert!(!is_kept(&queue, old).await && !is_kept(&queue, short).await && is_kept(&queue, new).await);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        bed.advance(DAY + 2 * SLACK);
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    async fn purged_events_follow_the_current_policy(bed) {
        let queue = bed.namespace(keep_completed(None)).await;
        publish_dead_letter(&queue, "t").await;
        assert_eq!(queue.purge(DeadLetterFilter::default()).await, Ok(1));
        bed.advance(9 * DAY);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        bed.namespace(keep_completed(Some(10 * DAY))).await;
        assert_eq!(retain(&queue).await, RetentionReport::default());
        bed.namespace(keep_completed(Some(DAY))).await;
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    async fn events_of_removed_subscription_are_deleted(bed) {
        let policy = Policy { history: windlass::History::None, ..keep_completed(Some(HOUR)) };
        let queue = bed.namespace(policy).await;
        let overrides = PolicyOverrides { history: Some(windlass::History::Keep), ..keep_for(None) };
        queue.add_subscription(SubscriptionSpec::new("second").policy(overrides)).await.unwrap();
        for _ in 0..4 {
            publish(&queue, "t").await;
            done(&queue, &claim_one(&queue).await).await;
        }
        // In `second`, one event is pending, one waits for a retry, one is a dead letter and one is completed.
        finish(&queue, &claim_for(&queue, "second").await, Report::dead("x")).await;
        done(&queue, &claim_for(&queue, "second").await).await;
        fail(&queue, &claim_for(&queue, "second").await).await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert_eq!(history_rows(bed).await, [4, 3, 1, 0]);
        queue.remove_subscription("second").await.unwrap();
        assert_eq!(retain(&queue).await, deleted(4, 4));
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    async fn many_events_are_deleted_in_batches(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        let count = if bed.database.kind == Kind::Sqlite { 350 } else { 2_500 };
        publish_many(&queue, "t", count).await;
        let mut remaining = count;
        while remaining > 0 {
            let claimed = claim_all(&queue).await;
            remaining -= claimed.len();
            let reports = claimed.iter().map(|delivery| (delivery.clone(), Report::done())).collect::<Vec<_>>();
            for (delivery, report) in reports {
                finish(&queue, &delivery, report).await;
            }
        }
        bed.advance(HOUR + 2 * SLACK);
        assert_eq!(retain(&queue).await, deleted(count, count));
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    async fn shorter_retention_deletes_events_kept_before(bed) {
        let types = [("a".to_owned(), keep_for(Some(HOUR))), ("b".to_owned(), keep_for(Some(DAY)))].into();
        let queue = bed.namespace_with(NamespacePolicy { base: keep_completed(None), types }).await;
        let [a, b, c] = [publish_completed(&queue, "a").await, publish_completed(&queue, "b").await, publish_completed(&queue, "c").await];
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert!(!is_kept(&queue, a).await);
        // `b` gets a duration for which retention has passed these events already, `c` a new one.
        let types = [("b".to_owned(), keep_for(Some(HOUR))), ("c".to_owned(), keep_for(Some(MINUTE)))].into();
        bed.namespace_with(NamespacePolicy { base: keep_completed(None), types }).await;
        assert_eq!(retain(&queue).await, deleted(2, 2));
        assert!(!is_kept(&queue, b).await && !is_kept(&queue, c).await);
    }

    async fn longer_retention_applies_immediately(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        let other = bed.second_queue().await.in_namespace("ns").unwrap();
        let event = publish_completed(&queue, "t").await;
        assert_eq!(retain(&other).await, RetentionReport::default());
        bed.advance(2 * HOUR);
        bed.namespace(keep_completed(Some(DAY))).await;
        assert_eq!(retain(&other).await, RetentionReport::default());
        assert!(is_kept(&queue, event).await);
    }

    async fn namespaces_follow_their_own_retention(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        publish_completed(&queue, "t").await;
        let other = publish_completed(&bed.queue, "t").await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&bed.queue).await, RetentionReport::default());
        assert_eq!(retain(&queue).await, deleted(1, 1));
        assert!(is_kept(&bed.queue, other).await);
    }

    // SQLite reuses the ids of deleted rows.
    async fn events_published_after_full_deletion_are_deleted(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        for round in 1..4 {
            for _ in 0..round * 2 {
                publish_completed(&queue, "t").await;
                bed.advance(MINUTE);
            }
            bed.advance(HOUR + 2 * SLACK);
            assert_eq!(retain(&queue).await, deleted(round * 2, round * 2));
            assert_eq!(history_rows(bed).await, [0; 4]);
        }
    }

    async fn clock_set_back_does_not_block_deletion(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        let now = bed.now();
        bed.advance(30 * DAY);
        let ahead = publish_completed(&queue, "t").await;
        bed.test_clock.set(now);
        let event = publish(&bed.second_queue().await.in_namespace("ns").unwrap(), "t").await;
        let other = bed.second_queue().await.in_namespace("ns").unwrap();
        done(&other, &claim_one(&other).await).await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&other).await, deleted(1, 1));
        assert!(!is_kept(&queue, event.id).await && is_kept(&queue, ahead).await);
        bed.advance_without_jump(31 * DAY).await;
        assert_eq!(retain(&other).await, deleted(1, 1));
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    // Retention checks the times again that it passed while the clock was ahead.
    async fn events_after_clock_was_set_back_are_deleted(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        let now = bed.now();
        bed.advance(365 * DAY);
        for _ in 0..3 {
            publish_completed(&queue, "t").await;
        }
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, deleted(3, 3));
        bed.test_clock.set(now);
        let other = bed.second_queue().await.in_namespace("ns").unwrap();
        for _ in 0..3 {
            publish_completed(&other, "t").await;
        }
        bed.advance(2 * HOUR);
        assert_eq!(retain(&other).await, deleted(3, 3));
        publish_completed(&other, "t").await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&other).await, deleted(1, 1));
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    // Without the check, a clock that is a year ahead would delete all history.
    async fn clock_that_jumps_ahead_deletes_nothing(bed) {
        let queue = bed.namespace(keep_completed(Some(20 * DAY))).await;
        let event = publish_completed(&queue, "t").await;
        assert_eq!(retain(&queue).await, RetentionReport::default());
        let now = bed.now();
        bed.advance(365 * DAY);
        for _ in 0..24 {
            assert_eq!(retain(&queue).await, RetentionReport { withheld: true, ..RetentionReport::default() });
            bed.advance(HOUR - MINUTE);
        }
        bed.test_clock.set(now);
        let other = bed.second_queue().await.in_namespace("ns").unwrap();
        assert_eq!(retain(&other).await, RetentionReport::default());
        assert!(is_kept(&other, event).await);
        // A database that was unused for a long time looks the same, so deletion continues after a day.
        bed.advance(30 * DAY);
        assert!(retain(&other).await.withheld);
        bed.advance(DAY);
        assert_eq!(retain(&other).await, deleted(1, 1));
    }

    async fn two_concurrent_processes_delete_everything_once(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        queue.add_subscription(SubscriptionSpec::new("long").policy(keep_for(Some(2 * HOUR)))).await.unwrap();
        publish_many(&queue, "t", 300).await;
        for delivery in claim_all(&queue).await {
            done(&queue, &delivery).await;
        }
        for delivery in claim(&queue, ClaimRequest::new("w").subscription("long").max(1_000)).await {
            done(&queue, &delivery).await;
        }
        bed.advance(3 * HOUR);
        let other = bed.second_queue().await.in_namespace("ns").unwrap();
        let (one, two) = tokio::join!(queue.retain_once(), other.retain_once());
        let third = retain(&queue).await;
        let all = [one.unwrap(), two.unwrap(), third];
        assert_eq!(all.iter().map(|found| found.deliveries).sum::<usize>(), 600);
        assert_eq!(all.iter().map(|found| found.events).sum::<usize>(), 300);
        assert_eq!(history_rows(bed).await, [0; 4]);
    }

    async fn new_subscription_gets_events_still_kept(bed) {
        let queue = bed.namespace(keep_completed(Some(HOUR))).await;
        let start = bed.now();
        publish_completed(&queue, "t").await;
        bed.advance(2 * HOUR);
        let kept = publish_completed(&queue, "t").await;
        retain(&queue).await;
        queue.add_subscription(SubscriptionSpec::new("late").since(start)).await.unwrap();
        let delivery = claim_for(&queue, "late").await;
        assert_eq!(delivery.event.id, kept);
        bed.advance(HOUR + 2 * SLACK);
        assert_eq!(retain(&queue).await, deleted(1, 0));
        assert_eq!(finish(&queue, &delivery, Report::done()).await.event_id, kept);
    }
}
