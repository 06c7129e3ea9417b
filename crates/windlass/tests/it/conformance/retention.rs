//! What is kept, for how long, and what never goes.

use std::time::Duration;

use windlass::{
    ClaimRequest, DeadLetterFilter, Delivery, NamespacePolicy, NewEvent, Policy, PolicyOverrides, Queue, Report,
    RetentionReport, Status, SubscriptionSpec,
};

use crate::bed::{Bed, Kind};
use crate::support::*;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// How much longer than asked for things are kept at least.
const LATE: Duration = Duration::from_secs(10);

fn ms(span: Duration) -> u64 {
    span.as_millis() as u64
}

fn keeping(completed: Option<Duration>) -> Policy {
    Policy { keep_completed_ms: completed.map(ms), ..Policy::default() }
}

fn completed(keep: Option<Duration>) -> PolicyOverrides {
    PolicyOverrides { keep_completed_ms: Some(keep.map(ms)), ..Default::default() }
}

async fn retain(queue: &Queue) -> RetentionReport {
    queue.retain_once().await.unwrap()
}

fn gone(deliveries: usize, events: usize) -> RetentionReport {
    RetentionReport { deliveries, events, ..RetentionReport::default() }
}

async fn is_kept(queue: &Queue, event_id: i64) -> bool {
    queue.get(event_id).await.is_ok()
}

/// An event of this type that is done.
async fn completed_one(queue: &Queue, event_type: &str) -> i64 {
    let event = publish(queue, event_type).await;
    done(queue, &take(queue).await).await;
    event.id
}

async fn taken_by(queue: &Queue, subscription: &str) -> Delivery {
    claim(queue, ClaimRequest::new("w").subscription(subscription)).await.remove(0)
}

/// A dead letter of this type.
async fn given_up(queue: &Queue, event_type: &str) -> i64 {
    let event = publish(queue, event_type).await;
    finish(queue, &take(queue).await, Report::dead("x")).await;
    event.id
}

/// How many rows the history has in all.
async fn rows(bed: &Bed) -> [i64; 4] {
    let mut counts = [0; 4];
    let tables = ["events", "event_attempts", "dead_letters", "retention_leftovers"];
    for (count, table) in counts.iter_mut().zip(tables) {
        let schema = if bed.database.kind == Kind::Postgres { "windlass." } else { "" };
        *count = bed.database.ids(&format!("SELECT count(*) FROM {schema}{table}")).await[0];
    }
    counts
}

conformance! {
    // C13
    async fn what_is_done_goes_when_its_time_is_over(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        let first = completed_one(&queue, "t").await;
        bed.advance(HOUR / 2);
        let second = completed_one(&queue, "t").await;
        bed.advance(HOUR / 2 + LATE);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        bed.advance(MICRO);
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert!(!is_kept(&queue, first).await && is_kept(&queue, second).await);
        bed.advance(HOUR / 2);
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert_eq!(rows(bed).await, [0; 4]);
    }

    async fn history_is_kept_for_half_a_year_unless_somebody_says_otherwise(bed) {
        let event = completed_one(&bed.queue, "t").await;
        bed.advance(183 * DAY);
        assert_eq!(retain(&bed.queue).await, RetentionReport::default());
        // On PostgreSQL it goes with its month; what did not, goes when every month should be gone.
        bed.let_pass(33 * DAY + HOUR).await;
        assert_eq!(retain(&bed.queue).await, gone(1, 1));
        assert!(!is_kept(&bed.queue, event).await);
    }

    async fn every_end_but_a_dead_letter_counts_as_completed(bed) {
        let queue = bed.namespace(Policy { max_retries: Some(1), ..keeping(Some(HOUR)) }).await;
        completed_one(&queue, "t").await;
        publish(&queue, "t").await;
        queue.finalize(&take(&queue).await, &["e".to_owned()]).await.unwrap().attempt().unwrap();
        let cancelled = publish(&queue, "t").await;
        queue.cancel(cancelled.id, Some("main")).await.unwrap();
        given_up(&queue, "t").await;
        bed.advance(HOUR + 2 * LATE);
        assert_eq!(retain(&queue).await, gone(3, 3));
        assert_eq!(rows(bed).await, [1, 1, 1, 0]);
    }

    // The attempts before the last one go with it, and not before it.
    async fn earlier_attempts_stay_with_the_last_one(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        let event = publish(&queue, "t").await;
        fail(&queue, &take(&queue).await).await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        done(&queue, &take(&queue).await).await;
        bed.advance(HOUR / 2);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert_eq!(trail(&queue, event.id).await.len(), 4);
        bed.advance(HOUR);
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert_eq!(rows(bed).await, [0; 4]);
    }

    // O9: per type
    async fn a_type_may_be_kept_for_another_time(bed) {
        let types = [("audit.*", None), ("noise", Some(HOUR))];
        let types = types.map(|(pattern, keep)| (pattern.to_owned(), completed(keep))).into();
        let queue = bed.namespace_with(NamespacePolicy { base: keeping(Some(DAY)), types }).await;
        let [noise, order, audit] =
            [completed_one(&queue, "noise").await, completed_one(&queue, "order").await, completed_one(&queue, "audit.x").await];
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert!(!is_kept(&queue, noise).await && is_kept(&queue, order).await);
        bed.advance(DAY);
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert!(!is_kept(&queue, order).await);
        bed.let_pass(1_000 * DAY).await;
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert!(is_kept(&queue, audit).await);
    }

    // O9: per subscription
    async fn an_event_stays_as_long_as_any_subscription_keeps_it(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        queue.add_subscription(SubscriptionSpec::new("long").policy(completed(Some(DAY)))).await.unwrap();
        let event = publish(&queue, "t").await;
        done(&queue, &take(&queue).await).await;
        done(&queue, &taken_by(&queue, "long").await).await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, gone(1, 0));
        let view = queue.get(event.id).await.unwrap();
        assert!(view.delivery("main").is_none());
        assert_eq!(view.delivery("long").unwrap().status, Status::Completed);
        bed.advance(DAY);
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert_eq!(rows(bed).await, [0; 4]);
    }

    // C13: never a live event
    async fn what_is_live_stays_whatever_its_age(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let waiting = publish(&queue, "t").await;
        done(&queue, &take(&queue).await).await;
        let held = publish_new(&queue, NewEvent::new("t")).await;
        let first = taken_by(&queue, "second").await;
        fail(&queue, &first).await;
        let delivery = take(&queue).await;
        bed.advance(1_000 * DAY);
        // What `main` did with the first one may go; the event may not.
        assert_eq!(retain(&queue).await, gone(1, 0));
        assert_eq!(view_of(&queue, waiting.id, "second").await.status, Status::Pending);
        assert_eq!(status(&queue, held.id).await, Status::Processing);
        assert_eq!(delivery.event.id, held.id);
        queue.release_expired_once().await.unwrap();
        let again = claim(&queue, ClaimRequest::new("w").subscription("second").max(9)).await;
        assert_eq!(sorted(ids(&again)), [waiting.id, held.id]);
        for delivery in &again {
            done(&queue, delivery).await;
        }
        done(&queue, &take(&queue).await).await;
        bed.advance(HOUR + 2 * LATE);
        assert_eq!(retain(&queue).await, gone(3, 2));
        assert_eq!(rows(bed).await, [0; 4]);
    }

    // C13: never an unresolved dead letter; O9: per status
    async fn dead_letters_have_their_own_clocks(bed) {
        let policy = Policy { keep_failed_ms: Some(ms(DAY)), keep_expired_ms: Some(ms(2 * DAY)), ..keeping(Some(HOUR)) };
        let types = [("keep".to_owned(), PolicyOverrides { keep_failed_ms: Some(None), ..Default::default() })].into();
        let queue = bed.namespace_with(NamespacePolicy { base: policy, types }).await;
        let failed = given_up(&queue, "t").await;
        let kept = given_up(&queue, "keep").await;
        let expired = publish_new(&queue, NewEvent::new("t").expires_at(after(bed.now(), MINUTE))).await.id;
        bed.advance(MINUTE);
        assert_eq!(queue.expire_once().await, Ok(1));
        bed.advance(DAY - MINUTE);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        bed.advance(2 * LATE);
        assert_eq!(retain(&queue).await, RetentionReport { dead_letters: 1, ..gone(1, 1) });
        assert!(!is_kept(&queue, failed).await);
        assert_eq!(sorted(dead(&queue).await), [kept, expired]);
        bed.advance(DAY + MINUTE);
        assert_eq!(retain(&queue).await, RetentionReport { dead_letters: 1, ..gone(1, 1) });
        assert!(!is_kept(&queue, expired).await);
        bed.let_pass(1_000 * DAY).await;
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert_eq!(queue.redrive(DeadLetterFilter::default()).await, Ok(1));
        done(&queue, &take(&queue).await).await;
        bed.advance(HOUR + 2 * LATE);
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert_eq!(rows(bed).await, [0; 4]);
    }

    async fn a_redriven_dead_letter_is_new_when_it_fails_again(bed) {
        let queue = bed.namespace(Policy { keep_failed_ms: Some(ms(DAY)), ..keeping(Some(HOUR)) }).await;
        let event = given_up(&queue, "t").await;
        bed.advance(DAY / 2);
        assert_eq!(queue.redrive(DeadLetterFilter::default()).await, Ok(1));
        finish(&queue, &take(&queue).await, Report::dead("x")).await;
        bed.advance(DAY / 2 + HOUR);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert_eq!(dead(&queue).await, [event]);
        bed.advance(DAY / 2);
        assert_eq!(retain(&queue).await, RetentionReport { dead_letters: 1, ..gone(1, 1) });
        assert_eq!(rows(bed).await, [0; 4]);
    }

    // A dead letter of one subscription keeps the event, and nothing else of it.
    async fn a_dead_letter_keeps_its_event(bed) {
        let queue = bed.namespace(Policy { keep_failed_ms: Some(ms(2 * DAY)), ..keeping(Some(DAY)) }).await;
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let event = given_up(&queue, "t").await;
        done(&queue, &taken_by(&queue, "second").await).await;
        bed.advance(DAY + HOUR);
        assert_eq!(retain(&queue).await, gone(1, 0));
        assert_eq!(dead(&queue).await, [event]);
        bed.advance(DAY);
        assert_eq!(retain(&queue).await, RetentionReport { dead_letters: 1, ..gone(1, 1) });
        assert_eq!(rows(bed).await, [0; 4]);
    }

    // A purged letter's event is kept as if it had been completed when it was given up.
    async fn what_a_purge_leaves_goes_too(bed) {
        let types = [("short".to_owned(), completed(Some(HOUR)))].into();
        let queue = bed.namespace_with(NamespacePolicy { base: keeping(Some(DAY)), types }).await;
        let [old, short] = [given_up(&queue, "t").await, given_up(&queue, "short").await];
        bed.advance(2 * DAY);
        // The walk has gone by them while they were letters.
        assert_eq!(retain(&queue).await, RetentionReport::default());
        let new = given_up(&queue, "t").await;
        assert_eq!(queue.purge(DeadLetterFilter::default()).await, Ok(3));
        assert_eq!(retain(&queue).await, gone(2, 2));
        assert!(!is_kept(&queue, old).await && !is_kept(&queue, short).await && is_kept(&queue, new).await);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        bed.advance(DAY + 2 * LATE);
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert_eq!(rows(bed).await, [0; 4]);
    }

    async fn what_a_purge_leaves_goes_by_the_policy_of_the_day(bed) {
        let queue = bed.namespace(keeping(None)).await;
        given_up(&queue, "t").await;
        assert_eq!(queue.purge(DeadLetterFilter::default()).await, Ok(1));
        bed.advance(9 * DAY);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        bed.namespace(keeping(Some(10 * DAY))).await;
        assert_eq!(retain(&queue).await, RetentionReport::default());
        bed.namespace(keeping(Some(DAY))).await;
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert_eq!(rows(bed).await, [0; 4]);
    }

    async fn what_a_removed_subscription_leaves_goes_too(bed) {
        let forgets = Policy { history: windlass::History::None, ..keeping(Some(HOUR)) };
        let queue = bed.namespace(forgets).await;
        let keeps = PolicyOverrides { history: Some(windlass::History::Keep), ..completed(None) };
        queue.add_subscription(SubscriptionSpec::new("second").policy(keeps)).await.unwrap();
        for _ in 0..4 {
            publish(&queue, "t").await;
            done(&queue, &take(&queue).await).await;
        }
        // One is never tried, one is being tried, one is a dead letter, and one is done.
        finish(&queue, &taken_by(&queue, "second").await, Report::dead("x")).await;
        done(&queue, &taken_by(&queue, "second").await).await;
        fail(&queue, &taken_by(&queue, "second").await).await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, RetentionReport::default());
        assert_eq!(rows(bed).await, [4, 3, 1, 0]);
        queue.remove_subscription("second").await.unwrap();
        assert_eq!(retain(&queue).await, gone(4, 4));
        assert_eq!(rows(bed).await, [0; 4]);
    }

    async fn many_go_in_batches(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        let count = if bed.database.kind == Kind::Sqlite { 350 } else { 2_500 };
        publish_many(&queue, "t", count).await;
        let mut left = count;
        while left > 0 {
            let taken = take_all(&queue).await;
            left -= taken.len();
            let reports = taken.iter().map(|delivery| (delivery.clone(), Report::done())).collect::<Vec<_>>();
            for (delivery, report) in reports {
                finish(&queue, &delivery, report).await;
            }
        }
        bed.advance(HOUR + 2 * LATE);
        assert_eq!(retain(&queue).await, gone(count, count));
        assert_eq!(rows(bed).await, [0; 4]);
    }

    async fn a_shorter_keep_catches_what_was_passed_by(bed) {
        let types = [("a".to_owned(), completed(Some(HOUR))), ("b".to_owned(), completed(Some(DAY)))].into();
        let queue = bed.namespace_with(NamespacePolicy { base: keeping(None), types }).await;
        let [a, b, c] = [completed_one(&queue, "a").await, completed_one(&queue, "b").await, completed_one(&queue, "c").await];
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert!(!is_kept(&queue, a).await);
        // `b` joins a time for which everything was looked at already, and `c` one that is new.
        let types = [("b".to_owned(), completed(Some(HOUR))), ("c".to_owned(), completed(Some(MINUTE)))].into();
        bed.namespace_with(NamespacePolicy { base: keeping(None), types }).await;
        assert_eq!(retain(&queue).await, gone(2, 2));
        assert!(!is_kept(&queue, b).await && !is_kept(&queue, c).await);
    }

    async fn a_longer_keep_holds_at_once(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        let other = bed.other().await.in_namespace("ns").unwrap();
        let event = completed_one(&queue, "t").await;
        assert_eq!(retain(&other).await, RetentionReport::default());
        bed.advance(2 * HOUR);
        bed.namespace(keeping(Some(DAY))).await;
        assert_eq!(retain(&other).await, RetentionReport::default());
        assert!(is_kept(&queue, event).await);
    }

    async fn namespaces_go_by_their_own_policies(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        completed_one(&queue, "t").await;
        let other = completed_one(&bed.queue, "t").await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&bed.queue).await, RetentionReport::default());
        assert_eq!(retain(&queue).await, gone(1, 1));
        assert!(is_kept(&bed.queue, other).await);
    }

    // SQLite gives the ids of deleted rows out again.
    async fn what_comes_after_everything_went_goes_as_well(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        for round in 1..4 {
            for _ in 0..round * 2 {
                completed_one(&queue, "t").await;
                bed.advance(MINUTE);
            }
            bed.advance(HOUR + 2 * LATE);
            assert_eq!(retain(&queue).await, gone(round * 2, round * 2));
            assert_eq!(rows(bed).await, [0; 4]);
        }
    }

    async fn a_clock_that_goes_back_holds_nothing_up(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        let now = bed.now();
        bed.advance(30 * DAY);
        let ahead = completed_one(&queue, "t").await;
        bed.hand.set(now);
        let event = publish(&bed.other().await.in_namespace("ns").unwrap(), "t").await;
        let other = bed.other().await.in_namespace("ns").unwrap();
        done(&other, &take(&other).await).await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&other).await, gone(1, 1));
        assert!(!is_kept(&queue, event.id).await && is_kept(&queue, ahead).await);
        bed.let_pass(31 * DAY).await;
        assert_eq!(retain(&other).await, gone(1, 1));
        assert_eq!(rows(bed).await, [0; 4]);
    }

    // What was looked at by a clock that ran ahead is looked at again.
    async fn a_clock_that_was_put_back_hides_nothing(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        let now = bed.now();
        bed.advance(365 * DAY);
        for _ in 0..3 {
            completed_one(&queue, "t").await;
        }
        bed.advance(2 * HOUR);
        assert_eq!(retain(&queue).await, gone(3, 3));
        bed.hand.set(now);
        let other = bed.other().await.in_namespace("ns").unwrap();
        for _ in 0..3 {
            completed_one(&other, "t").await;
        }
        bed.advance(2 * HOUR);
        assert_eq!(retain(&other).await, gone(3, 3));
        completed_one(&other, "t").await;
        bed.advance(2 * HOUR);
        assert_eq!(retain(&other).await, gone(1, 1));
        assert_eq!(rows(bed).await, [0; 4]);
    }

    // One hour of a clock a year ahead would cost all history.
    async fn a_clock_that_leaps_deletes_nothing(bed) {
        let queue = bed.namespace(keeping(Some(20 * DAY))).await;
        let event = completed_one(&queue, "t").await;
        assert_eq!(retain(&queue).await, RetentionReport::default());
        let now = bed.now();
        bed.advance(365 * DAY);
        for _ in 0..24 {
            assert_eq!(retain(&queue).await, RetentionReport { withheld: true, ..RetentionReport::default() });
            bed.advance(HOUR - MINUTE);
        }
        bed.hand.set(now);
        let other = bed.other().await.in_namespace("ns").unwrap();
        assert_eq!(retain(&other).await, RetentionReport::default());
        assert!(is_kept(&other, event).await);
        // Nobody can tell it from a database that was not used for long: that one goes on after a day.
        bed.advance(30 * DAY);
        assert!(retain(&other).await.withheld);
        bed.advance(DAY);
        assert_eq!(retain(&other).await, gone(1, 1));
    }

    async fn two_processes_at_once_delete_everything_once(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        queue.add_subscription(SubscriptionSpec::new("long").policy(completed(Some(2 * HOUR)))).await.unwrap();
        publish_many(&queue, "t", 300).await;
        for delivery in take_all(&queue).await {
            done(&queue, &delivery).await;
        }
        for delivery in claim(&queue, ClaimRequest::new("w").subscription("long").max(1_000)).await {
            done(&queue, &delivery).await;
        }
        bed.advance(3 * HOUR);
        let other = bed.other().await.in_namespace("ns").unwrap();
        let (one, two) = tokio::join!(queue.retain_once(), other.retain_once());
        let third = retain(&queue).await;
        let all = [one.unwrap(), two.unwrap(), third];
        assert_eq!(all.iter().map(|found| found.deliveries).sum::<usize>(), 600);
        assert_eq!(all.iter().map(|found| found.events).sum::<usize>(), 300);
        assert_eq!(rows(bed).await, [0; 4]);
    }

    async fn a_subscription_may_still_get_what_is_kept(bed) {
        let queue = bed.namespace(keeping(Some(HOUR))).await;
        let begin = bed.now();
        completed_one(&queue, "t").await;
        bed.advance(2 * HOUR);
        let kept = completed_one(&queue, "t").await;
        retain(&queue).await;
        queue.add_subscription(SubscriptionSpec::new("late").since(begin)).await.unwrap();
        let delivery = taken_by(&queue, "late").await;
        assert_eq!(delivery.event.id, kept);
        bed.advance(HOUR + 2 * LATE);
        assert_eq!(retain(&queue).await, gone(1, 0));
        assert_eq!(finish(&queue, &delivery, Report::done()).await.event_id, kept);
    }
}
