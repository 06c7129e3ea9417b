//! Months of history on PostgreSQL: made ahead, dropped when all in them is over, and nobody notices.

use std::time::Duration;

use sqlx::{Connection, Executor};
use windlass::{
    ClaimRequest, DeadLetterFilter, ListFilter, NamespacePolicy, NewEvent, Partitions, Policy, PolicyOverrides, Queue,
    Report, RetentionReport, Status, SubscriptionSpec,
};

use crate::bed::{Bed, Kind, run};
use crate::postgres as server;
use crate::support::*;

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn ms(span: Duration) -> u64 {
    span.as_millis() as u64
}

/// At 2025-12-24, with months, in a database where everything is kept for 60 days.
fn in_months(test: impl AsyncFnOnce(&Bed, Queue)) {
    run(Kind::Postgres, async |bed: &Bed| {
        // The months of the real time, which have nothing to do with the test's.
        for table in months(bed).await {
            server::execute(&bed.database.url, &format!("DROP TABLE windlass.{table}")).await;
        }
        let policy = Policy { keep_completed_ms: Some(ms(60 * DAY)), ..Policy::default() };
        bed.queue.put_namespace("default", Some(policy.clone().into()), None).await.unwrap();
        let queue = bed.namespace(policy).await;
        assert_eq!(upkeep(&queue).await, Partitions { made: 6, ..Partitions::default() });
        test(bed, queue).await;
    });
}

async fn upkeep(queue: &Queue) -> Partitions {
    queue.partitions_once().await.unwrap()
}

/// Until it is dropped: other tests keep the machine busy.
async fn drop_all(queue: &Queue) -> usize {
    drop_much(queue, 0).await.dropped
}

/// The same, where as many as `stay` cannot be dropped.
async fn drop_much(queue: &Queue, stay: usize) -> Partitions {
    let mut all = Partitions::default();
    for _ in 0..50 {
        let done = upkeep(queue).await;
        all.made += done.made;
        all.dropped += done.dropped;
        all.strays += done.strays;
        all.put_off = done.put_off;
        if done.put_off <= stay {
            return all;
        }
    }
    panic!("never done: {all:?}");
}

const MONTHS: &str = "
SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'windlass'::regnamespace AND c.relkind = 'r'
  AND c.relname ~ '_[0-9]{4}_[0-9]{2}' ORDER BY 1";

async fn months(bed: &Bed) -> Vec<String> {
    server::lines(&bed.database.url, MONTHS).await
}

async fn count(bed: &Bed, table: &str) -> i64 {
    bed.database.ids(&format!("SELECT count(*) FROM windlass.{table}")).await[0]
}

async fn completed_one(queue: &Queue) -> i64 {
    completed_one_of(queue, "t").await
}

async fn completed_one_of(queue: &Queue, event_type: &str) -> i64 {
    let event = publish(queue, event_type).await;
    let taken = claim(queue, ClaimRequest::new("w").types([event_type])).await;
    done(queue, &taken[0]).await;
    event.id
}

/// Past all that was kept of December.
async fn into_march(bed: &Bed) {
    bed.let_pass_until("2026-02-05T00:00:00Z".parse().unwrap()).await;
    drop_much(&bed.queue, 0).await;
    bed.let_pass_until("2026-03-03T00:00:00Z".parse().unwrap()).await;
}

#[test]
fn months_are_made_ahead() {
    in_months(async |bed, queue| {
        let made = ["event_attempts_2025_12", "event_attempts_2026_01", "event_attempts_2026_02"];
        assert_eq!(months(bed).await, [&made[..], &["events_2025_12", "events_2026_01", "events_2026_02"]].concat());
        completed_one(&queue).await;
        assert_eq!((count(bed, "events_2025_12").await, count(bed, "event_attempts_2025_12").await), (1, 1));
        assert_eq!(upkeep(&queue).await, Partitions::default());
        bed.let_pass(10 * DAY).await;
        assert_eq!(upkeep(&queue).await, Partitions { made: 2, ..Partitions::default() });
    });
}

#[test]
fn the_default_serves_where_a_month_cannot_be_made() {
    in_months(async |bed, queue| {
        bed.let_pass_until("2026-03-03T00:00:00Z".parse().unwrap()).await;
        let event = completed_one(&queue).await;
        assert_eq!(count(bed, "events_default").await, 1);
        let done = upkeep(&queue).await;
        // April and May; March has rows already.
        assert_eq!((done.made, done.put_off), (4, 2));
        assert_eq!(status(&queue, event).await, Status::Completed);
    });
}

// C13
#[test]
fn a_month_that_is_over_is_dropped() {
    in_months(async |bed, queue| {
        let old = completed_one(&queue).await;
        bed.let_pass_until("2026-01-05T00:00:00Z".parse().unwrap()).await;
        let new = completed_one(&queue).await;
        // The last of December is over only on the first of March, at 00:00 UTC.
        bed.let_pass_until("2026-02-28T23:59:59Z".parse().unwrap()).await;
        assert_eq!(drop_all(&queue).await, 0);
        into_march(bed).await;
        assert_eq!(queue.retain_once().await, Ok(RetentionReport::default()));
        assert_eq!(drop_all(&queue).await, 2);
        assert!(queue.get(old).await.is_err());
        assert_eq!(status(&queue, new).await, Status::Completed);
        assert!(months(bed).await.iter().all(|name| !name.contains("2025_12")));
        assert_eq!(drop_all(&queue).await, 0);
        let fresh = completed_one(&queue).await;
        assert_eq!(status(&queue, fresh).await, Status::Completed);
    });
}

#[test]
fn a_clock_that_leaps_drops_nothing() {
    in_months(async |bed, queue| {
        let event = completed_one(&queue).await;
        bed.hand.set("2026-03-03T00:00:00Z".parse().unwrap());
        assert_eq!(drop_all(&queue).await, 0);
        bed.advance(DAY - MINUTE);
        assert_eq!(drop_all(&queue).await, 0);
        assert_eq!(status(&queue, event).await, Status::Completed);
        bed.advance(MINUTE);
        assert_eq!(drop_all(&queue).await, 2);
    });
}

#[test]
fn nothing_is_dropped_while_anything_is_kept_longer() {
    in_months(async |bed, queue| {
        completed_one(&queue).await;
        let keep =
            |span: Option<Duration>| PolicyOverrides { keep_completed_ms: Some(span.map(ms)), ..Default::default() };
        let forever = NamespacePolicy { base: Policy::default(), types: [("a".to_owned(), keep(None))].into() };
        bed.queue.put_namespace("default", Some(forever), None).await.unwrap();
        into_march(bed).await;
        assert_eq!(drop_all(&queue).await, 0);
        // Then what is over goes row by row.
        assert_eq!(queue.retain_once().await.unwrap().events, 1);
        let default = Policy { keep_completed_ms: Some(ms(61 * DAY)), ..Policy::default() };
        bed.queue.put_namespace("default", Some(default.into()), None).await.unwrap();
        queue.add_subscription(SubscriptionSpec::new("s").policy(keep(Some(70 * DAY)))).await.unwrap();
        assert_eq!(drop_all(&queue).await, 0);
        bed.let_pass(10 * DAY).await;
        assert_eq!(drop_all(&queue).await, 2);
    });
}

// C13: never a live event, never an unresolved dead letter
#[test]
fn what_must_stay_of_a_month_stays() {
    in_months(async |bed, queue| {
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let all = publish_many(&queue, "t", 6).await;
        let [gone, pending, retried, dead, late, redriven] = all[..] else { panic!() };
        for delivery in take_all(&queue).await {
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
        let before = [everything(&queue, retried).await, everything(&queue, dead).await];
        bed.let_pass_until("2026-02-10T00:00:00Z".parse().unwrap()).await;
        let again = claim(&queue, ClaimRequest::new("w").max(9)).await;
        for delivery in again {
            if delivery.event.id == late {
                done(&queue, &delivery).await;
            } else {
                finish(&queue, &delivery, release()).await;
            }
        }
        into_march(bed).await;
        let before_late = everything(&queue, late).await;
        assert_eq!(drop_all(&queue).await, 2);
        assert!(queue.get(gone).await.is_err());
        assert_eq!(everything(&queue, late).await, before_late);
        assert_eq!(view_of(&queue, pending, "second").await.status, Status::Pending);
        assert_eq!(status(&queue, retried).await, Status::Pending);
        assert_eq!(everything(&queue, dead).await, before[1]);
        assert_eq!(trail(&queue, retried).await.len(), 6);
        assert_eq!(sorted(crate::support::dead(&queue).await), [dead, redriven]);
        // All of it can still be worked on.
        let filter = DeadLetterFilter { event_ids: vec![redriven], ..Default::default() };
        assert_eq!(queue.redrive(filter).await, Ok(1));
        let ready = take_all(&queue).await;
        assert_eq!(sorted(ids(&ready)), [retried, redriven]);
        for delivery in &ready {
            done(&queue, delivery).await;
        }
        let second = claim(&queue, ClaimRequest::new("w").subscription("second").max(9)).await;
        assert_eq!(ids(&second), [pending]);
        done(&queue, &second[0]).await;
        // And when it is over it goes, with its months or without.
        assert_eq!(queue.purge(DeadLetterFilter::default()).await, Ok(1));
        bed.let_pass_until("2026-06-20T00:00:00Z".parse().unwrap()).await;
        assert!(drop_all(&queue).await >= 4);
        queue.retain_once().await.unwrap();
        assert_eq!((count(bed, "events").await, count(bed, "event_attempts").await), (0, 0));
    });
}

// Who reads waits for the month to be taken out, and then sees what was put aside of it.
#[test]
fn who_reads_meanwhile_finds_what_stays() {
    in_months(async |bed, queue| {
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
            server::until_waiting(&bed.database.url, 2).await;
            tx.commit().await.unwrap();
        };
        let (found, listed, ()) = tokio::join!(queue.get(event.id), queue.list(ListFilter::default()), committing);
        assert_eq!((found.unwrap().event.id, listed.unwrap().total), (event.id, 1));
    });
}

/// Deliveries that are live or dead letters, and have lost their event.
async fn orphans(bed: &Bed) -> i64 {
    let of = |table: &str| {
        format!(
            "SELECT count(*) FROM windlass.{table} t WHERE NOT EXISTS (
                SELECT FROM windlass.events e WHERE e.id = t.event_id AND e.created_at = t.created_at)"
        )
    };
    bed.database.ids(&of("event_queue")).await[0] + bed.database.ids(&of("dead_letters")).await[0]
}

// Fewer events than may be put aside, and more deliveries.
#[test]
fn live_events_of_several_subscriptions_stay() {
    in_months(async |bed, queue| {
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let waiting = publish_many(&queue, "t", 600).await;
        into_march(bed).await;
        assert_eq!(drop_all(&queue).await, 2);
        assert_eq!((count(bed, "events").await, orphans(bed).await), (waiting.len() as i64, 0));
    });
}

#[test]
fn dead_letters_of_several_subscriptions_stay() {
    in_months(async |bed, queue| {
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let all = publish_many(&queue, "t", 600).await;
        for subscription in ["main", "second"] {
            let taken = claim(&queue, ClaimRequest::new("w").subscription(subscription).max(1_000)).await;
            assert_eq!(taken.len(), all.len());
            for delivery in &taken {
                finish(&queue, delivery, Report::dead("x")).await;
            }
        }
        into_march(bed).await;
        // Of their attempts there are more than can be put aside.
        for _ in 0..3 {
            upkeep(&queue).await;
        }
        assert_eq!((count(bed, "events").await, orphans(bed).await), (all.len() as i64, 0));
        assert_eq!(count(bed, "event_attempts").await, 2 * all.len() as i64);
    });
}

#[test]
fn events_whose_attempts_went_with_a_month_go_too() {
    in_months(async |bed, queue| {
        publish(&queue, "t").await;
        into_march(bed).await;
        assert_eq!(drop_all(&queue).await, 2);
        assert_eq!(count(bed, "events_default").await, 1);
        done(&queue, &take(&queue).await).await;
        bed.let_pass_until("2026-06-20T00:00:00Z".parse().unwrap()).await;
        assert!(drop_all(&queue).await >= 2);
        assert_eq!((count(bed, "events").await, count(bed, "event_attempts").await), (0, 0));
    });
}

#[test]
fn a_month_with_much_that_must_stay_goes_row_by_row() {
    in_months(async |bed, queue| {
        let gone = completed_one(&queue).await;
        let waiting = publish_many(&queue, "t", 1_001).await;
        into_march(bed).await;
        // Of the attempts nothing must stay.
        assert_eq!(drop_much(&queue, 1).await, Partitions { made: 2, dropped: 1, put_off: 1, strays: 1 });
        assert!(queue.get(gone).await.is_err());
        assert_eq!(total(&queue).await, waiting.len() as u64);
    });
}

// Dead letters that nobody looks at do not keep what comes after them.
#[test]
fn a_month_that_stays_does_not_keep_later_ones() {
    in_months(async |bed, queue| {
        let letters = publish_many(&queue, "dead", 1_001).await;
        let old = completed_one_of(&queue, "t").await;
        for delivery in [take_all(&queue).await, take_all(&queue).await].concat() {
            finish(&queue, &delivery, Report::dead("x")).await;
        }
        bed.let_pass_until("2026-01-05T00:00:00Z".parse().unwrap()).await;
        let new = completed_one_of(&queue, "t").await;
        bed.let_pass_until("2026-02-05T00:00:00Z".parse().unwrap()).await;
        drop_much(&queue, 0).await;
        bed.let_pass_until("2026-04-10T00:00:00Z".parse().unwrap()).await;
        drop_much(&queue, 2).await;
        assert!(queue.get(new).await.is_err());
        let left = months(bed).await;
        assert!(left.iter().all(|name| !name.contains("2026_01")), "{left:?}");
        assert_eq!(dead(&queue).await.len(), 1_000);
        // What else is in their month goes row by row.
        assert_eq!(queue.retain_once().await.unwrap().events, 1);
        assert!(queue.get(old).await.is_err());
        assert_eq!(total(&queue).await, letters.len() as u64);
    });
}

// Somebody wants to keep things for longer while they are about to be dropped.
#[test]
fn a_longer_keep_holds_also_for_months() {
    in_months(async |bed, queue| {
        let event = completed_one(&queue).await;
        into_march(bed).await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        let longer = "UPDATE windlass.namespaces SET version = version + 1,
            policy = jsonb_set(policy::jsonb, '{base,keep_completed_ms}', '8640000000')::json WHERE namespace = 'ns'";
        tx.execute(longer).await.unwrap();
        let committing = async {
            server::until_waiting(&bed.database.url, 1).await;
            tx.commit().await.unwrap();
        };
        let (done, ()) = tokio::join!(upkeep(&queue), committing);
        assert_eq!((done.dropped, done.put_off), (0, 1));
        assert_eq!(drop_all(&queue).await, 0);
        assert_eq!(status(&queue, event).await, Status::Completed);
    });
}

// Who reads what was taken out keeps it for as long as he does, and nothing else.
#[test]
fn what_was_taken_out_and_is_in_use_holds_nothing_up() {
    in_months(async |bed, queue| {
        completed_one(&queue).await;
        server::execute(&bed.database.url, "CREATE TABLE windlass.events_2020_01_dropped (id bigint)").await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("SELECT FROM windlass.events_2020_01_dropped").await.unwrap();
        into_march(bed).await;
        assert_eq!(drop_all(&queue).await, 2);
        assert!(months(bed).await.contains(&"events_2020_01_dropped".to_owned()));
        tx.commit().await.unwrap();
        assert_eq!(drop_all(&queue).await, 1);
    });
}

// Only the owner can drop a table. Who is not goes on without.
#[test]
fn who_may_not_drop_a_month_leaves_it() {
    in_months(async |bed, queue| {
        let event = completed_one(&queue).await;
        into_march(bed).await;
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
        assert!(done.put_off > 0);
        assert_eq!(status(&queue, event).await, Status::Completed);
        other.close().await;
        server::execute(url, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
        assert_eq!(drop_all(&queue).await, 2);
    });
}

// What is to be archived first does not go with its month.
#[test]
fn a_month_spares_what_must_be_archived() {
    in_months(async |bed, queue| {
        let archived = Policy { archive: true, keep_completed_ms: Some(ms(60 * DAY)), ..Policy::default() };
        let archived = bed.queue.put_namespace("archived", Some(archived.into()), None).await.unwrap();
        let (gone, spared) = (completed_one(&queue).await, completed_one(&archived).await);
        into_march(bed).await;
        let before = everything(&archived, spared).await;
        assert_eq!(drop_all(&queue).await, 2);
        assert!(queue.get(gone).await.is_err());
        assert_eq!(everything(&archived, spared).await, before);
        let folder = tempfile::tempdir().unwrap();
        let options = Queue::options(&bed.database.url).clock(bed.queue.clock().clone()).archive_to(folder.path());
        let archiver = options.open().await.unwrap().in_namespace("archived").unwrap();
        assert_eq!(archiver.retain_once().await.unwrap().events, 1);
        assert_eq!(std::fs::read_dir(folder.path().join("archived")).unwrap().count(), 1);
    });
}

// A process that dies after it took a month out of the history leaves it to the next one.
#[test]
fn what_was_taken_out_is_dropped_by_somebody_else() {
    in_months(async |bed, queue| {
        completed_one(&queue).await;
        let url = &bed.database.url;
        server::execute(
            url,
            "ALTER TABLE windlass.events DETACH PARTITION windlass.events_2025_12;
            ALTER TABLE windlass.events_2025_12 RENAME TO events_2025_12_dropped",
        )
        .await;
        // What somebody took out by hand is his.
        server::execute(url, "ALTER TABLE windlass.events DETACH PARTITION windlass.events_2026_01").await;
        let done = upkeep(&queue).await;
        // One to take the place of the first; the second's name is taken.
        assert_eq!((done.dropped, done.made, done.put_off), (1, 1, 1));
        let left = months(bed).await;
        assert!(left.contains(&"events_2026_01".to_owned()) && !left.iter().any(|name| name.contains("dropped")));
    });
}

// While one waits for the table, the other leaves it alone.
#[test]
fn two_processes_drop_a_month_once() {
    in_months(async |bed, queue| {
        completed_one(&queue).await;
        let waiting = publish(&queue, "t").await;
        into_march(bed).await;
        let other = bed.other().await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("LOCK TABLE windlass.events_2025_12 IN ROW EXCLUSIVE MODE").await.unwrap();
        let second = async {
            server::until_waiting(&bed.database.url, 1).await;
            let done = upkeep(&other).await;
            tx.rollback().await.unwrap();
            done
        };
        let (one, two) = tokio::join!(upkeep(&queue), second);
        assert_eq!(two.dropped, 0);
        assert!(two.put_off > 0);
        assert_eq!(one.dropped + drop_all(&queue).await, 2);
        assert!(months(bed).await.iter().all(|name| !name.contains("2025_12")));
        assert_eq!(take(&queue).await.event.id, waiting.id);
        assert_eq!(count(bed, "events").await, 1);
    });
}

// Somebody's long transaction has published: the month stays for now, and nobody waits for it.
#[test]
fn a_table_in_use_is_left_alone() {
    in_months(async |bed, queue| {
        let old = completed_one(&queue).await;
        into_march(bed).await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("LOCK TABLE windlass.events, windlass.event_attempts IN ROW EXCLUSIVE MODE").await.unwrap();
        let publishing = async { completed_one(&queue).await };
        let (done, fresh) = tokio::join!(upkeep(&queue), publishing);
        assert_eq!((done.dropped, done.made), (0, 0));
        assert!(done.put_off > 0);
        assert_eq!(status(&queue, fresh).await, Status::Completed);
        assert_eq!(status(&queue, old).await, Status::Completed);
        tx.rollback().await.unwrap();
        assert_eq!(drop_all(&queue).await, 2);
        assert!(queue.get(old).await.is_err());
    });
}

#[test]
fn a_month_is_dropped_under_those_who_publish_and_work() {
    in_months(async |bed, queue| {
        let old = publish_many(&queue, "old", 500).await;
        for delivery in take_all(&queue).await.iter().take(400) {
            done(&queue, delivery).await;
        }
        bed.advance(DAY);
        queue.release_expired_once().await.unwrap();
        into_march(bed).await;
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
                for delivery in take_all(&working).await {
                    done(&working, &delivery).await;
                    handled.push(delivery.event.id);
                }
            }
            handled
        });
        assert_eq!(drop_all(&queue).await, 2);
        stop.0.send_replace(true);
        let (published, mut handled) = (publisher.await.unwrap(), worker.await.unwrap());
        for delivery in take_all(&queue).await {
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

// A subscription that begins in the past gets what is kept, and nothing that is on its way out: here, the month goes after
// the backfill has read its events, and before it adds them.
#[test]
fn a_backfill_adds_nothing_that_was_dropped_meanwhile() {
    in_months(async |bed, queue| {
        queue.add_subscription(SubscriptionSpec::new("past").since(bed.now())).await.unwrap();
        for _ in 0..20 {
            completed_one(&queue).await;
        }
        server::execute(
            &bed.database.url,
            "DELETE FROM windlass.event_queue; UPDATE windlass.subscriptions SET backfill_from = 0
             WHERE subscription = 'past'",
        )
        .await;
        into_march(bed).await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("SELECT FROM windlass.subscriptions WHERE subscription = 'past' FOR UPDATE").await.unwrap();
        let dropping = async {
            server::until_waiting(&bed.database.url, 1).await;
            assert_eq!(drop_all(&bed.queue).await, 2);
            tx.commit().await.unwrap();
        };
        let (added, ()) = tokio::join!(queue.backfill_once(), dropping);
        added.unwrap();
        assert_eq!((count(bed, "events").await, count(bed, "event_queue").await), (0, 0));
    });
}

// Here, the backfill has added them, and commits while somebody waits to drop the month.
#[test]
fn a_drop_leaves_what_a_backfill_is_adding() {
    in_months(async |bed, queue| {
        queue.add_subscription(SubscriptionSpec::new("past")).await.unwrap();
        let event = completed_one(&queue).await;
        server::execute(
            &bed.database.url,
            "CREATE TABLE aside AS SELECT * FROM windlass.event_queue; DELETE FROM windlass.event_queue",
        )
        .await;
        into_march(bed).await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("SELECT FROM windlass.events_2025_12 FOR KEY SHARE").await.unwrap();
        tx.execute("INSERT INTO windlass.event_queue SELECT * FROM aside").await.unwrap();
        let committing = async {
            server::until_waiting(&bed.database.url, 1).await;
            tx.commit().await.unwrap();
        };
        let (done, ()) = tokio::join!(upkeep(&queue), committing);
        assert_eq!(done.dropped + drop_all(&queue).await, 2);
        assert_eq!(orphans(bed).await, 0);
        assert_eq!(claim_soon(&queue, ClaimRequest::new("w").subscription("past")).await.event.id, event);
    });
}
