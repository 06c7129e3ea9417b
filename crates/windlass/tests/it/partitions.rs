//! Monthly partitions of the history on PostgreSQL: they are created ahead and dropped after retention, without
//! disturbing concurrent calls.

use std::time::Duration;

use sqlx::{Connection, Executor};
use windlass::{
    ClaimRequest, DeadLetterFilter, ListFilter, NamespacePolicy, NewEvent, Partitions, Policy, PolicyOverrides, Queue,
    Report, RetentionReport, Status, SubscriptionSpec,
};
use windlass_testkit::Kind;
use windlass_testkit::postgres as server;

use crate::bed::{Bed, run};
use crate::support::*;

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn ms(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

/// Runs a test at 2025-12-24 with monthly partitions and a retention of 60 days.
fn with_partitions(test: impl AsyncFnOnce(&Bed, Queue)) {
    run(Kind::Postgres, async |bed: &Bed| {
        // Drops the partitions that were created for the real date.
        for table in partitions(bed).await {
            server::execute(&bed.database.url, &format!("DROP TABLE windlass.{table}")).await;
        }
        let policy = Policy { keep_completed_ms: Some(ms(60 * DAY)), ..Policy::default() };
        bed.queue.put_namespace("default", Some(policy.clone().into()), None).await.unwrap();
        let queue = bed.namespace(policy).await;
        assert_eq!(run_partition_task(&queue).await, Partitions { made: 6, ..Partitions::default() });
        test(bed, queue).await;
    });
}

async fn run_partition_task(queue: &Queue) -> Partitions {
    queue.partitions_once().await.unwrap()
}

/// Runs the task until no drop is postponed, and returns the number of dropped partitions. Other tests slow down the
/// drops.
async fn drop_all(queue: &Queue) -> usize {
    drop_all_but(queue, 0).await.dropped
}

/// Like [`drop_all`], where up to `postponed_max` partitions cannot be dropped.
async fn drop_all_but(queue: &Queue, postponed_max: usize) -> Partitions {
    let mut all = Partitions::default();
    for _ in 0..50 {
        let done = run_partition_task(queue).await;
        all.made += done.made;
        all.dropped += done.dropped;
        all.strays += done.strays;
        all.postponed = done.postponed;
        if done.postponed <= postponed_max {
            return all;
        }
    }
    panic!("drops are still postponed: {all:?}");
}

const PARTITIONS: &str = "
SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'windlass'::regnamespace AND c.relkind = 'r'
  AND c.relname ~ '_[0-9]{4}_[0-9]{2}' ORDER BY 1";

async fn partitions(bed: &Bed) -> Vec<String> {
    server::lines(&bed.database.url, PARTITIONS).await
}

async fn count(bed: &Bed, table: &str) -> i64 {
    bed.database.select_numbers(&format!("SELECT count(*) FROM windlass.{table}")).await[0]
}

async fn publish_and_complete(queue: &Queue) -> i64 {
    publish_and_complete_type(queue, "t").await
}

async fn publish_and_complete_type(queue: &Queue, event_type: &str) -> i64 {
    let event = publish(queue, event_type).await;
    let claimed = claim(queue, ClaimRequest::new("w").types([event_type])).await;
    done(queue, &claimed[0]).await;
    event.id
}

/// Advances the clock until all events of December are past retention.
async fn advance_to_march(bed: &Bed) {
    bed.advance_to_without_jump("2026-02-05T00:00:00Z".parse().unwrap()).await;
    drop_all_but(&bed.queue, 0).await;
    bed.advance_to_without_jump("2026-03-03T00:00:00Z".parse().unwrap()).await;
}

#[test]
fn monthly_partitions_are_created_ahead() {
    with_partitions(async |bed, queue| {
        let made = ["event_attempts_2025_12", "event_attempts_2026_01", "event_attempts_2026_02"];
        assert_eq!(
            partitions(bed).await,
            [&made[..], &["events_2025_12", "events_2026_01", "events_2026_02"]].concat()
        );
        publish_and_complete(&queue).await;
        assert_eq!((count(bed, "events_2025_12").await, count(bed, "event_attempts_2025_12").await), (1, 1));
        assert_eq!(run_partition_task(&queue).await, Partitions::default());
        bed.advance_without_jump(10 * DAY).await;
        assert_eq!(run_partition_task(&queue).await, Partitions { made: 2, ..Partitions::default() });
    });
}

#[test]
fn default_partition_is_used_when_month_is_missing() {
    with_partitions(async |bed, queue| {
        bed.advance_to_without_jump("2026-03-03T00:00:00Z".parse().unwrap()).await;
        let event = publish_and_complete(&queue).await;
        assert_eq!(count(bed, "events_default").await, 1);
        let done = run_partition_task(&queue).await;
        // April and May are created. March is postponed, because the default partition already has rows of it.
        assert_eq!((done.made, done.postponed), (4, 2));
        assert_eq!(status(&queue, event).await, Status::Completed);
    });
}

// C13
#[test]
fn month_past_retention_is_dropped() {
    with_partitions(async |bed, queue| {
        let old = publish_and_complete(&queue).await;
        bed.advance_to_without_jump("2026-01-05T00:00:00Z".parse().unwrap()).await;
        let new = publish_and_complete(&queue).await;
        // Retention of the last events of December ends on March 1, 00:00 UTC.
        bed.advance_to_without_jump("2026-02-28T23:59:59Z".parse().unwrap()).await;
        assert_eq!(drop_all(&queue).await, 0);
        advance_to_march(bed).await;
        assert_eq!(queue.retain_once().await, Ok(RetentionReport::default()));
        assert_eq!(drop_all(&queue).await, 2);
        assert!(queue.get(old).await.is_err());
        assert_eq!(status(&queue, new).await, Status::Completed);
        assert!(partitions(bed).await.iter().all(|name| !name.contains("2025_12")));
        assert_eq!(drop_all(&queue).await, 0);
        let fresh = publish_and_complete(&queue).await;
        assert_eq!(status(&queue, fresh).await, Status::Completed);
    });
}

#[test]
fn clock_jump_drops_nothing_for_a_day() {
    with_partitions(async |bed, queue| {
        let event = publish_and_complete(&queue).await;
        bed.test_clock.set("2026-03-03T00:00:00Z".parse().unwrap());
        assert_eq!(drop_all(&queue).await, 0);
        bed.advance(DAY - MINUTE);
        assert_eq!(drop_all(&queue).await, 0);
        assert_eq!(status(&queue, event).await, Status::Completed);
        bed.advance(MINUTE);
        assert_eq!(drop_all(&queue).await, 2);
    });
}

#[test]
fn longest_retention_of_any_policy_applies_to_months() {
    with_partitions(async |bed, queue| {
        publish_and_complete(&queue).await;
        let keep = |duration: Option<Duration>| PolicyOverrides {
            keep_completed_ms: Some(duration.map(ms)),
            ..Default::default()
        };
        let forever = NamespacePolicy { base: Policy::default(), types: [("a".to_owned(), keep(None))].into() };
        bed.queue.put_namespace("default", Some(forever), None).await.unwrap();
        advance_to_march(bed).await;
        assert_eq!(drop_all(&queue).await, 0);
        // Retention deletes the finished events row by row instead.
        assert_eq!(queue.retain_once().await.unwrap().events, 1);
        let default = Policy { keep_completed_ms: Some(ms(61 * DAY)), ..Policy::default() };
        bed.queue.put_namespace("default", Some(default.into()), None).await.unwrap();
        queue.add_subscription(SubscriptionSpec::new("s").policy(keep(Some(70 * DAY)))).await.unwrap();
        assert_eq!(drop_all(&queue).await, 0);
        bed.advance_without_jump(10 * DAY).await;
        assert_eq!(drop_all(&queue).await, 2);
    });
}

// C13: pending events and unresolved dead letters are never dropped
#[test]
fn pending_events_and_dead_letters_survive_month_drop() {
    with_partitions(async |bed, queue| {
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let all = publish_many(&queue, "t", 6).await;
        let [gone, pending, retried, dead, late, redriven] = all[..] else { panic!() };
        for delivery in claim_all(&queue).await {
            match delivery.event.id {
                id if id == retried => drop(fail(&queue, &delivery).await),
                id if id == dead || id == redriven => drop(finish(&queue, &delivery, Report::dead("x")).await),
                id if id == late => drop(fail(&queue, &delivery).await),
                _ => done(&queue, &delivery).await,
            }
        }
        for delivery in claim(&queue, ClaimRequest::new("w").subscription("second").max(9)).await {
            if delivery.event.id != pending {
                done(&queue, &delivery).await;
            } else {
                finish(&queue, &delivery, release()).await;
            }
        }
        let before = [event_snapshot(&queue, retried).await, event_snapshot(&queue, dead).await];
        bed.advance_to_without_jump("2026-02-10T00:00:00Z".parse().unwrap()).await;
        let again = claim(&queue, ClaimRequest::new("w").max(9)).await;
        for delivery in again {
            if delivery.event.id == late {
                done(&queue, &delivery).await;
            } else {
                finish(&queue, &delivery, release()).await;
            }
        }
        advance_to_march(bed).await;
        let before_late = event_snapshot(&queue, late).await;
        assert_eq!(drop_all(&queue).await, 2);
        assert!(queue.get(gone).await.is_err());
        assert_eq!(event_snapshot(&queue, late).await, before_late);
        assert_eq!(view_of(&queue, pending, "second").await.status, Status::Pending);
        assert_eq!(status(&queue, retried).await, Status::Pending);
        assert_eq!(event_snapshot(&queue, dead).await, before[1]);
        assert_eq!(trail(&queue, retried).await.len(), 6);
        assert_eq!(sorted(crate::support::dead_letter_ids(&queue).await), [dead, redriven]);
        // All kept events can still be redriven and handled.
        let filter = DeadLetterFilter { event_ids: vec![redriven], ..Default::default() };
        assert_eq!(queue.redrive(filter).await, Ok(1));
        let ready = claim_all(&queue).await;
        assert_eq!(sorted(ids(&ready)), [retried, redriven]);
        for delivery in &ready {
            done(&queue, delivery).await;
        }
        let second = claim(&queue, ClaimRequest::new("w").subscription("second").max(9)).await;
        assert_eq!(ids(&second), [pending]);
        done(&queue, &second[0]).await;
        // Once they are finished, they are deleted too: with their months or row by row.
        assert_eq!(queue.purge(DeadLetterFilter::default()).await, Ok(1));
        bed.advance_to_without_jump("2026-06-20T00:00:00Z".parse().unwrap()).await;
        assert!(drop_all(&queue).await >= 4);
        queue.retain_once().await.unwrap();
        assert_eq!((count(bed, "events").await, count(bed, "event_attempts").await), (0, 0));
    });
}

// Reads wait until the month is detached, and then see the rows that were moved out of it.
#[test]
fn reads_wait_for_month_detach_and_find_kept_rows() {
    with_partitions(async |bed, queue| {
        let event = publish(&queue, "t").await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute(
            "ALTER TABLE windlass.events DETACH PARTITION windlass.events_2025_12;
             INSERT INTO windlass.events SELECT * FROM windlass.events_2025_12",
        )
        .await
        .unwrap();
        let committing = async {
            server::wait_for_blocked_connections(&bed.database.url, 2).await;
            tx.commit().await.unwrap();
        };
        let (found, listed, ()) = tokio::join!(queue.get(event.id), queue.list(ListFilter::default()), committing);
        assert_eq!((found.unwrap().event.id, listed.unwrap().total), (event.id, 1));
    });
}

/// The number of pending deliveries and dead letters without an event.
async fn orphans(bed: &Bed) -> i64 {
    let of = |table: &str| {
        format!(
            "SELECT count(*) FROM windlass.{table} t WHERE NOT EXISTS (
                SELECT FROM windlass.events e WHERE e.id = t.event_id AND e.created_at = t.created_at)"
        )
    };
    bed.database.select_numbers(&of("event_queue")).await[0] + bed.database.select_numbers(&of("dead_letters")).await[0]
}

// The events are within the limit of rows to move, and the deliveries exceed it.
#[test]
fn pending_events_of_several_subscriptions_survive_month_drop() {
    with_partitions(async |bed, queue| {
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let waiting = publish_many(&queue, "t", 600).await;
        advance_to_march(bed).await;
        assert_eq!(drop_all(&queue).await, 2);
        assert_eq!((count(bed, "events").await, orphans(bed).await), (waiting.len() as i64, 0));
    });
}

#[test]
fn dead_letters_of_several_subscriptions_survive_month_drop() {
    with_partitions(async |bed, queue| {
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let all = publish_many(&queue, "t", 600).await;
        for subscription in ["main", "second"] {
            let claimed = claim(&queue, ClaimRequest::new("w").subscription(subscription).max(1_000)).await;
            assert_eq!(claimed.len(), all.len());
            for delivery in &claimed {
                finish(&queue, delivery, Report::dead("x")).await;
            }
        }
        advance_to_march(bed).await;
        // Their attempts exceed the number of rows that can be moved.
        for _ in 0..3 {
            run_partition_task(&queue).await;
        }
        assert_eq!((count(bed, "events").await, orphans(bed).await), (all.len() as i64, 0));
        assert_eq!(count(bed, "event_attempts").await, 2 * all.len() as i64);
    });
}

#[test]
fn event_moved_out_of_dropped_month_is_deleted_later() {
    with_partitions(async |bed, queue| {
        publish(&queue, "t").await;
        advance_to_march(bed).await;
        assert_eq!(drop_all(&queue).await, 2);
        assert_eq!(count(bed, "events_default").await, 1);
        done(&queue, &claim_one(&queue).await).await;
        bed.advance_to_without_jump("2026-06-20T00:00:00Z".parse().unwrap()).await;
        assert!(drop_all(&queue).await >= 2);
        assert_eq!((count(bed, "events").await, count(bed, "event_attempts").await), (0, 0));
    });
}

#[test]
fn month_with_many_kept_events_is_deleted_row_by_row() {
    with_partitions(async |bed, queue| {
        let gone = publish_and_complete(&queue).await;
        let waiting = publish_many(&queue, "t", 1_001).await;
        advance_to_march(bed).await;
        // No attempts must be kept, so their partition is dropped.
        assert_eq!(drop_all_but(&queue, 1).await, Partitions { made: 2, dropped: 1, postponed: 1, strays: 1 });
        assert!(queue.get(gone).await.is_err());
        assert_eq!(count_events(&queue).await, waiting.len() as u64);
    });
}

// Unresolved dead letters of one month do not keep later months.
#[test]
fn kept_month_does_not_block_dropping_later_months() {
    with_partitions(async |bed, queue| {
        let letters = publish_many(&queue, "dead", 1_001).await;
        let old = publish_and_complete_type(&queue, "t").await;
        for delivery in [claim_all(&queue).await, claim_all(&queue).await].concat() {
            finish(&queue, &delivery, Report::dead("x")).await;
        }
        bed.advance_to_without_jump("2026-01-05T00:00:00Z".parse().unwrap()).await;
        let new = publish_and_complete_type(&queue, "t").await;
        bed.advance_to_without_jump("2026-02-05T00:00:00Z".parse().unwrap()).await;
        drop_all_but(&queue, 0).await;
        bed.advance_to_without_jump("2026-04-10T00:00:00Z".parse().unwrap()).await;
        drop_all_but(&queue, 2).await;
        assert!(queue.get(new).await.is_err());
        let left = partitions(bed).await;
        assert!(left.iter().all(|name| !name.contains("2026_01")), "{left:?}");
        assert_eq!(dead_letter_ids(&queue).await.len(), 1_000);
        // The other events of their month are deleted row by row.
        assert_eq!(queue.retain_once().await.unwrap().events, 1);
        assert!(queue.get(old).await.is_err());
        assert_eq!(count_events(&queue).await, letters.len() as u64);
    });
}

// The policy is changed to a longer retention while the month is about to be dropped.
#[test]
fn concurrent_retention_increase_prevents_month_drop() {
    with_partitions(async |bed, queue| {
        let event = publish_and_complete(&queue).await;
        advance_to_march(bed).await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        let longer = "UPDATE windlass.namespaces SET version = version + 1,
            policy = jsonb_set(policy::jsonb, '{base,keep_completed_ms}', '8640000000')::json WHERE namespace = 'ns'";
        tx.execute(longer).await.unwrap();
        let committing = async {
            server::wait_for_blocked_connections(&bed.database.url, 1).await;
            tx.commit().await.unwrap();
        };
        let (done, ()) = tokio::join!(run_partition_task(&queue), committing);
        assert_eq!((done.dropped, done.postponed), (0, 1));
        assert_eq!(drop_all(&queue).await, 0);
        assert_eq!(status(&queue, event).await, Status::Completed);
    });
}

// A transaction that reads a detached partition delays only the drop of that partition.
#[test]
fn detached_partition_in_use_does_not_block_drops() {
    with_partitions(async |bed, queue| {
        publish_and_complete(&queue).await;
        server::execute(&bed.database.url, "CREATE TABLE windlass.events_2020_01_dropped (id bigint)").await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("SELECT FROM windlass.events_2020_01_dropped").await.unwrap();
        advance_to_march(bed).await;
        assert_eq!(drop_all(&queue).await, 2);
        assert!(partitions(bed).await.contains(&"events_2020_01_dropped".to_owned()));
        tx.commit().await.unwrap();
        assert_eq!(drop_all(&queue).await, 1);
    });
}

// Only the owner can drop a table. Other roles continue without dropping it.
#[test]
fn role_without_ownership_does_not_drop_months() {
    with_partitions(async |bed, queue| {
        let event = publish_and_complete(&queue).await;
        advance_to_march(bed).await;
        let role = format!("windlass_reader_{}", std::process::id());
        let url = &bed.database.url;
        let make = format!(
            "DROP ROLE IF EXISTS {role}; CREATE ROLE {role}; GRANT ALL ON SCHEMA windlass TO {role};
             GRANT ALL ON ALL TABLES IN SCHEMA windlass TO {role}"
        );
        server::execute(url, &make).await;
        let other = format!("{url}?options[role]={role}");
        let other = Queue::options(&other).clock(queue.clock().clone()).open().await.unwrap();
        let done = other.partitions_once().await.unwrap();
        assert_eq!((done.dropped, done.made), (0, 0));
        assert!(done.postponed > 0);
        assert_eq!(status(&queue, event).await, Status::Completed);
        other.close().await;
        server::execute(url, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
        assert_eq!(drop_all(&queue).await, 2);
    });
}

// Events that are not archived yet are moved out of the month before it is dropped.
#[test]
fn month_drop_keeps_unarchived_events() {
    with_partitions(async |bed, queue| {
        let archived = Policy { archive: true, keep_completed_ms: Some(ms(60 * DAY)), ..Policy::default() };
        let archived = bed.queue.put_namespace("archived", Some(archived.into()), None).await.unwrap();
        let (gone, spared) = (publish_and_complete(&queue).await, publish_and_complete(&archived).await);
        advance_to_march(bed).await;
        let before = event_snapshot(&archived, spared).await;
        assert_eq!(drop_all(&queue).await, 2);
        assert!(queue.get(gone).await.is_err());
        assert_eq!(event_snapshot(&archived, spared).await, before);
        let folder = tempfile::tempdir().unwrap();
        let options = Queue::options(&bed.database.url).clock(bed.queue.clock().clone()).archive_to(folder.path());
        let archiver = options.open().await.unwrap().in_namespace("archived").unwrap();
        assert_eq!(archiver.retain_once().await.unwrap().events, 1);
        assert_eq!(std::fs::read_dir(folder.path().join("archived")).unwrap().count(), 1);
    });
}

// A process dies after it detached a month. The next process drops it.
#[test]
fn detached_partition_of_dead_process_is_dropped() {
    with_partitions(async |bed, queue| {
        publish_and_complete(&queue).await;
        let url = &bed.database.url;
        server::execute(
            url,
            "ALTER TABLE windlass.events DETACH PARTITION windlass.events_2025_12;
            ALTER TABLE windlass.events_2025_12 RENAME TO events_2025_12_dropped",
        )
        .await;
        // A partition that an operator detached is not dropped.
        server::execute(url, "ALTER TABLE windlass.events DETACH PARTITION windlass.events_2026_01").await;
        let done = run_partition_task(&queue).await;
        // One partition replaces the first. The name of the second is still in use.
        assert_eq!((done.dropped, done.made, done.postponed), (1, 1, 1));
        let left = partitions(bed).await;
        assert!(left.contains(&"events_2026_01".to_owned()) && !left.iter().any(|name| name.contains("dropped")));
    });
}

// While one process waits for the table, the other one skips it.
#[test]
fn two_processes_drop_a_month_once() {
    with_partitions(async |bed, queue| {
        publish_and_complete(&queue).await;
        let waiting = publish(&queue, "t").await;
        advance_to_march(bed).await;
        let other = bed.second_queue().await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("LOCK TABLE windlass.events_2025_12 IN ROW EXCLUSIVE MODE").await.unwrap();
        let second = async {
            server::wait_for_blocked_connections(&bed.database.url, 1).await;
            let done = run_partition_task(&other).await;
            tx.rollback().await.unwrap();
            done
        };
        let (one, two) = tokio::join!(run_partition_task(&queue), second);
        assert_eq!(two.dropped, 0);
        assert!(two.postponed > 0);
        assert_eq!(one.dropped + drop_all(&queue).await, 2);
        assert!(partitions(bed).await.iter().all(|name| !name.contains("2025_12")));
        assert_eq!(claim_one(&queue).await.event.id, waiting.id);
        assert_eq!(count(bed, "events").await, 1);
    });
}

// A long transaction has published: the drop is postponed, and no other call waits for it.
#[test]
fn table_in_use_is_not_dropped() {
    with_partitions(async |bed, queue| {
        let old = publish_and_complete(&queue).await;
        advance_to_march(bed).await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("LOCK TABLE windlass.events, windlass.event_attempts IN ROW EXCLUSIVE MODE").await.unwrap();
        let publishing = async { publish_and_complete(&queue).await };
        let (done, fresh) = tokio::join!(run_partition_task(&queue), publishing);
        assert_eq!((done.dropped, done.made), (0, 0));
        assert!(done.postponed > 0);
        assert_eq!(status(&queue, fresh).await, Status::Completed);
        assert_eq!(status(&queue, old).await, Status::Completed);
        tx.rollback().await.unwrap();
        assert_eq!(drop_all(&queue).await, 2);
        assert!(queue.get(old).await.is_err());
    });
}

#[test]
fn month_is_dropped_while_publishing_and_working() {
    with_partitions(async |bed, queue| {
        let old = publish_many(&queue, "old", 500).await;
        for delivery in claim_all(&queue).await.iter().take(400) {
            done(&queue, delivery).await;
        }
        bed.advance(DAY);
        queue.release_expired_once().await.unwrap();
        advance_to_march(bed).await;
        let (publishing, stop) = (queue.clone(), stop_signal());
        let stopped = stop.1.clone();
        let publisher = tokio::spawn(async move {
            let mut published = Vec::new();
            while !*stopped.borrow() {
                published.push(publishing.publish(NewEvent::new("new")).await.unwrap().event.id);
            }
            published
        });
        let (working, stopped) = (queue.clone(), stop.1.clone());
        let worker = tokio::spawn(async move {
            let mut handled = Vec::new();
            while !*stopped.borrow() {
                for delivery in claim_all(&working).await {
                    done(&working, &delivery).await;
                    handled.push(delivery.event.id);
                }
            }
            handled
        });
        assert_eq!(drop_all(&queue).await, 2);
        stop.0.send_replace(true);
        let (published, mut handled) = (publisher.await.unwrap(), worker.await.unwrap());
        for delivery in claim_all(&queue).await {
            done(&queue, &delivery).await;
            handled.push(delivery.event.id);
        }
        let mut expected = [&old[400..], &published[..]].concat();
        expected.sort_unstable();
        assert_eq!(sorted(handled), expected);
        for id in published {
            assert_eq!(status(&queue, id).await, Status::Completed);
        }
    });
}

fn stop_signal() -> (tokio::sync::watch::Sender<bool>, tokio::sync::watch::Receiver<bool>) {
    tokio::sync::watch::channel(false)
}

// The month is dropped after a backfill has read its events and before it adds their deliveries.
#[test]
fn backfill_skips_events_dropped_meanwhile() {
    with_partitions(async |bed, queue| {
        queue.add_subscription(SubscriptionSpec::new("past").since(bed.now())).await.unwrap();
        for _ in 0..20 {
            publish_and_complete(&queue).await;
        }
        server::execute(
            &bed.database.url,
            "DELETE FROM windlass.event_queue; UPDATE windlass.subscriptions SET backfill_from = 0
             WHERE subscription = 'past'",
        )
        .await;
        advance_to_march(bed).await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("SELECT FROM windlass.subscriptions WHERE subscription = 'past' FOR UPDATE").await.unwrap();
        let dropping = async {
            server::wait_for_blocked_connections(&bed.database.url, 1).await;
            assert_eq!(drop_all(&bed.queue).await, 2);
            tx.commit().await.unwrap();
        };
        let (added, ()) = tokio::join!(queue.backfill_once(), dropping);
        added.unwrap();
        assert_eq!((count(bed, "events").await, count(bed, "event_queue").await), (0, 0));
    });
}

// A backfill has added deliveries, and commits while another process waits to drop the month.
#[test]
fn month_drop_keeps_events_being_backfilled() {
    with_partitions(async |bed, queue| {
        queue.add_subscription(SubscriptionSpec::new("past")).await.unwrap();
        let event = publish_and_complete(&queue).await;
        server::execute(
            &bed.database.url,
            "CREATE TABLE aside AS SELECT * FROM windlass.event_queue; DELETE FROM windlass.event_queue",
        )
        .await;
        advance_to_march(bed).await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("SELECT FROM windlass.events_2025_12 FOR KEY SHARE").await.unwrap();
        tx.execute("INSERT INTO windlass.event_queue SELECT * FROM aside").await.unwrap();
        let committing = async {
            server::wait_for_blocked_connections(&bed.database.url, 1).await;
            tx.commit().await.unwrap();
        };
        let (done, ()) = tokio::join!(run_partition_task(&queue), committing);
        assert_eq!(done.dropped + drop_all(&queue).await, 2);
        assert_eq!(orphans(bed).await, 0);
        assert_eq!(claim_soon(&queue, ClaimRequest::new("w").subscription("past")).await.event.id, event);
    });
}
