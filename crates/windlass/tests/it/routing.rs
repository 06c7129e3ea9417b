//! Routers that are killed, stopped, or not alone: each event is delivered once, and groups keep their order.

use std::collections::HashMap;
use std::time::Instant;

use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor, PgConnection};
use windlass::{ClaimRequest, Delivery, LeasedEvent, NewEvent, Queue, Report, WaitReason};

use crate::bed::{Bed, Kind};
use crate::own::{Own, number};
use crate::postgres::{connect, lines};
use crate::process::Process;
use crate::support::*;

/// Waits for claims of a type that is never published. So this process routes, and claims nothing.
pub async fn child(queue: Queue) {
    loop {
        claim(&queue, ClaimRequest::new("child").types(["never"]).wait(secs(20))).await;
    }
}

/// The same, in this process.
fn route_only(queue: &Queue) -> tokio::task::JoinHandle<()> {
    tokio::spawn(child(queue.clone()))
}

async fn arrivals(bed: &Bed) -> i64 {
    let schema = if bed.database.kind == Kind::Postgres { "windlass." } else { "" };
    number(&bed.database, &format!("SELECT count(*) FROM {schema}arrivals")).await
}

/// The n-th event of a group.
fn member(group: usize, n: usize) -> NewEvent {
    NewEvent::new("t").group(format!("g{group}")).payload(&n).unwrap()
}

/// Publishes the members `from..to` of all groups, in one transaction.
async fn publish_members(bed: &Bed, queue: &Queue, groups: usize, members: std::ops::Range<usize>) {
    let events: Vec<NewEvent> = members.flat_map(|n| (0..groups).map(move |group| member(group, n))).collect();
    let mut tx = Own::begin(&bed.database).await;
    for chunk in events.chunks(1_000) {
        tx.publish_all(queue, chunk.to_vec()).await.unwrap();
    }
    tx.commit().await;
}

/// How far each group has come.
#[derive(Default)]
struct Progress {
    next: HashMap<String, usize>,
    handled: usize,
}

impl Progress {
    /// Each delivery has to be the next one of its group.
    fn note(&mut self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            let group = delivery.event.group_id.clone().unwrap();
            let next = self.next.entry(group.clone()).or_default();
            assert_eq!((delivery.attempts, delivery.event.payload::<usize>().unwrap()), (1, *next), "group {group}");
            *next += 1;
            self.handled += 1;
        }
    }
}

/// Claims runs and completes them, until so many events were handled in all.
async fn handle(queue: &Queue, progress: &mut Progress, until: usize) {
    while progress.handled < until {
        let request = ClaimRequest::new("w").max(100).group_run(50).wait(secs(20));
        let got = claim(queue, request).await;
        assert!(!got.is_empty(), "{} of {until} were handled", progress.handled);
        progress.note(&got);
        let reports = got.iter().map(|delivery| (LeasedEvent::from(delivery), Report::done())).collect();
        for finished in queue.finish_all(reports).await.unwrap() {
            assert!(!finished.unwrap().is_lost());
        }
    }
}

/// How many groups, or members of one group, the tests of very many of them use.
fn many() -> usize {
    std::env::var("WINDLASS_TEST_GROUPED").map_or(3_000, |count| count.parse().unwrap())
}

conformance! {
    async fn a_killed_router_loses_and_repeats_nothing(bed) {
        let queue = bed.real_time().await.put_namespace("ns", None, None).await.unwrap();
        let mut killed_in_between = 0;
        let (mut published, mut progress) = (0, Progress::default());
        for _ in 0..4 {
            publish_members(bed, &queue, 20, published..published + 300).await;
            published += 300;
            let mut router = Process::start(bed, "route");
            let all = arrivals(bed).await;
            let begun = Instant::now();
            while arrivals(bed).await == all {
                assert!(begun.elapsed() < secs(30), "the router does nothing");
            }
            router.kill();
            killed_in_between += usize::from(arrivals(bed).await > 0);
        }
        assert!(killed_in_between > 0, "it was never killed while events were left: the test shows nothing");
        handle(&queue, &mut progress, published * 20).await;
        assert_eq!(total(&queue).await as usize, published * 20);
        assert!(poll(&queue).await.is_none());
    }

    async fn two_routers_keep_the_order_of_groups(bed) {
        let (queue, other) = (bed.real_time().await, bed.real_time().await);
        let routers = [route_only(&queue), route_only(&other)];
        let mut publishers = Vec::new();
        for group in 0..4 {
            let (queue, database) = (queue.clone(), bed.database.clone());
            publishers.push(tokio::spawn(async move {
                for n in 0..100 {
                    let mut tx = Own::begin(&database).await;
                    tx.publish_all(&queue, vec![member(group, 2 * n), member(group, 2 * n + 1)]).await.unwrap();
                    tx.commit().await;
                }
            }));
        }
        let (mut progress, mut turn) = (Progress::default(), [&queue, &other].into_iter().cycle());
        while progress.handled < 800 {
            let step = progress.handled + 1;
            handle(turn.next().unwrap(), &mut progress, step).await;
        }
        for publisher in publishers {
            publisher.await.unwrap();
        }
        routers.iter().for_each(|router| router.abort());
        assert_eq!(total(&queue).await, 800);
        assert!(poll(&other).await.is_none());
    }

    async fn a_long_group_is_routed_and_drained(bed) {
        let (queue, count) = (bed.real_time().await, many());
        let begun = Instant::now();
        for from in (0..count).step_by(10_000) {
            publish_members(bed, &queue, 1, from..count.min(from + 10_000)).await;
        }
        let published = begun.elapsed();
        handle(&queue, &mut Progress::default(), count).await;
        println!("one group of {count}: published in {published:.1?}, drained after {:.1?}", begun.elapsed());
        assert!(poll(&queue).await.is_none());
    }

    async fn very_many_groups_are_routed_and_drained(bed) {
        let (queue, count) = (bed.real_time().await, many());
        let begun = Instant::now();
        publish_members(bed, &queue, count, 0..1).await;
        let published = begun.elapsed();
        handle(&queue, &mut Progress::default(), count).await;
        println!("{count} groups: published in {published:.1?}, drained after {:.1?}", begun.elapsed());
        assert!(poll(&queue).await.is_none());
    }
}

/// Ends the sessions of routers that are at work.
const TERMINATE: &str = "
SELECT count(pg_terminate_backend(l.pid))::text FROM pg_locks l
WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid()
  AND (l.classid::bigint << 32 | l.objid::bigint) = windlass._router_lock('default')
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Takes the lock of the one router that is at work.
async fn stop_routers(connection: &mut PgConnection) {
    connection.execute("SELECT pg_advisory_lock(windlass._router_lock('default'))").await.unwrap();
}

/// How many notifications of arrivals have come.
async fn notified(listener: &mut PgListener) -> usize {
    let (mut count, until) = (0, tokio::time::Instant::now() + millis(300));
    while let Ok(notification) = tokio::time::timeout_at(until, listener.recv()).await {
        count += usize::from(notification.unwrap().payload().ends_with('+'));
    }
    count
}

async fn publish_with(connection: &mut PgConnection, setting: &str) {
    let mut tx = connection.begin().await.unwrap();
    if !setting.is_empty() {
        tx.execute(sqlx::AssertSqlSafe(format!("SET LOCAL windlass.notify = '{setting}'"))).await.unwrap();
    }
    tx.execute("INSERT INTO windlass.outbox (event_type) VALUES ('t')").await.unwrap();
    tx.commit().await.unwrap();
}

on_postgres! {
    async fn a_terminated_session_of_a_router_undoes_its_batch(bed) {
        let queue = bed.real_time().await;
        publish_members(bed, &queue, 10, 0..400).await;
        let router = route_only(&queue);
        let mut connection = connect(&bed.database.url).await;
        let mut terminated = 0;
        while terminated < 3 {
            let ended = sqlx::query_scalar::<_, String>(TERMINATE).fetch_one(&mut connection).await.unwrap();
            terminated += ended.parse::<usize>().unwrap();
            assert!(arrivals(bed).await > 0, "no router was at work for long enough: the test shows nothing");
        }
        handle(&queue, &mut Progress::default(), 4_000).await;
        router.abort();
        assert_eq!(total(&queue).await, 4_000);
    }

    // O4, C7: a process commits the completion in a handler's transaction, and ends before it lets the group go on.
    async fn a_group_goes_on_after_its_handlers_process_died(bed) {
        let queue = bed.real_time().await;
        let published = queue.publish_all((0..3).map(|n| member(0, n)).collect()).await.unwrap();
        let first = take(&queue).await;
        let lease = i64::from_str_radix(&first.lease.to_string(), 16).unwrap();
        let complete = format!(
            "BEGIN; SET LOCAL windlass.handler = 'on';
             SELECT windlass._complete_in_tx('default', s.subscription_id, {}, {lease}, NULL, 1)
             FROM windlass.subscriptions s WHERE s.namespace = 'default'; COMMIT",
            first.event.id
        );
        let mut connection = connect(&bed.database.url).await;
        connection.execute(sqlx::AssertSqlSafe(complete.as_str())).await.unwrap();
        // Its lease counts once.
        let again = connection.execute(sqlx::AssertSqlSafe(complete.as_str())).await.unwrap_err();
        assert!(again.to_string().contains("the lease was lost"), "{again}");
        for published in &published[1..] {
            let next = claim(&queue, ClaimRequest::new("w").wait(secs(30))).await;
            assert_eq!(ids(&next), [published.event.id]);
            done(&queue, &next[0]).await;
        }
        assert_eq!(number(&bed.database, "SELECT count(*) FROM windlass.departures").await, 0);
        assert_eq!(number(&bed.database, "SELECT count(*) FROM windlass.event_groups").await, 0);
    }

    // Its transaction is older than what the router remembers.
    async fn a_late_commit_is_routed_and_blocks_nobody(bed) {
        let queue = bed.real_time().await;
        let router = route_only(&queue);
        let mut late = Own::begin(&bed.database).await;
        let of_late = late.publish_all(&queue, vec![member(0, 0), member(9, 0)]).await.unwrap();
        let late_id = of_late[0].event.id;
        // For longer than it takes until routers no longer read what is behind them.
        let begun = Instant::now();
        let mut n = 0;
        while begun.elapsed() < millis(2_500) {
            publish_members(bed, &queue, 1, n + 1..n + 2).await;
            let got = claim_soon(&queue, ClaimRequest::new("w")).await;
            assert_eq!(got.event.payload::<usize>().unwrap(), n + 1);
            done(&queue, &got).await;
            n += 1;
        }
        // One of the group is held, and one waits behind it.
        publish_members(bed, &queue, 1, n + 1..n + 2).await;
        let held = claim_soon(&queue, ClaimRequest::new("w")).await;
        let begun = Instant::now();
        late.commit().await;
        // The other group's is found at once, though the one before it waits.
        let found = claim_soon(&queue, ClaimRequest::new("w")).await;
        assert_eq!((found.event.id, begun.elapsed() < secs(2)), (of_late[1].event.id, true), "{:?}", begun.elapsed());
        publish_members(bed, &queue, 1, n + 2..n + 3).await;
        assert!(poll(&queue).await.is_none());
        done(&queue, &held).await;
        let next = claim_soon(&queue, ClaimRequest::new("w")).await;
        assert_eq!(next.event.id, late_id);
        done(&queue, &next).await;
        let last = claim_soon(&queue, ClaimRequest::new("w")).await;
        assert_eq!(last.event.payload::<usize>().unwrap(), n + 2);
        router.abort();
    }

    async fn a_commit_after_an_hour_goes_behind_what_was_handled(bed) {
        let queue = &bed.queue;
        let mut late = Own::begin(&bed.database).await;
        let of_late = late.publish_all(queue, vec![member(0, 0), NewEvent::new("t")]).await.unwrap();
        bed.advance(60 * MINUTE);
        publish_members(bed, queue, 1, 1..4).await;
        done(queue, &take(queue).await).await;
        let held = take(queue).await;
        assert_eq!(held.event.payload::<usize>().unwrap(), 2);
        late.commit().await;
        let got = take_all(queue).await;
        assert_eq!(ids(&got), [of_late[1].event.id]);
        done(queue, &held).await;
        let next = take(queue).await;
        assert_eq!(next.event.id, of_late[0].event.id);
        done(queue, &next).await;
        assert_eq!(take(queue).await.event.payload::<usize>().unwrap(), 3);
    }

    // A process that was stopped, or cut off, while it was routing.
    async fn a_router_that_hangs_holds_up_only_arrivals(bed) {
        let mut hangs = connect(&bed.database.url).await;
        stop_routers(&mut hangs).await;
        let ready = publish(&bed.queue, "t").await.id;
        let mut tx = Own::begin(&bed.database).await;
        let arrived = tx.publish(&bed.queue, NewEvent::new("t")).await.unwrap().event.id;
        tx.commit().await;
        let begun = Instant::now();
        assert_eq!(bed.queue.explain(arrived, "main").await.unwrap().reason, WaitReason::Arrived);
        assert_eq!(bed.queue.get(arrived).await.unwrap().deliveries.len(), 0);
        let got = take(&bed.queue).await;
        assert_eq!(got.event.id, ready);
        done(&bed.queue, &got).await;
        assert!(poll(&bed.queue).await.is_none());
        assert!(begun.elapsed() < secs(20), "{:?}", begun.elapsed());
        // What would leave out the arrivals is refused.
        let error = bed.queue.cancel_all(Default::default()).await.unwrap_err();
        assert!(error.is_temporary(), "{error}");
        hangs.close().await.unwrap();
        assert_eq!(take(&bed.queue).await.event.id, arrived);
    }

    async fn an_idle_router_is_notified_and_a_busy_one_is_not(bed) {
        let queue = bed.real_time().await;
        let router = route_only(&queue);
        let mut listener = PgListener::connect(&bed.database.url).await.unwrap();
        listener.listen("windlass").await.unwrap();
        let mut connection = connect(&bed.database.url).await;
        // Without a router that listens, no publisher notifies.
        eventually("the router announces that it listens", async || {
            let listens = "SELECT count(*)::text FROM windlass.routers WHERE listens_until > clock_timestamp()";
            lines(&bed.database.url, listens).await == ["1"]
        })
        .await;
        publish_with(&mut connection, "").await;
        assert_eq!(notified(&mut listener).await, 1);
        // While events keep arriving, it announces that it looks by itself.
        eventually("the router announces that it is active", async || {
            let mut tx = Own::begin(&bed.database).await;
            tx.publish(&queue, NewEvent::new("t")).await.unwrap();
            tx.commit().await;
            let active = "SELECT count(*)::text FROM windlass.routers WHERE active_until > clock_timestamp()";
            lines(&bed.database.url, active).await == ["1"]
        })
        .await;
        let active = Instant::now();
        let keep = {
            let queue = queue.clone();
            let database = bed.database.clone();
            tokio::spawn(async move {
                loop {
                    let mut tx = Own::begin(&database).await;
                    tx.publish(&queue, NewEvent::new("t")).await.unwrap();
                    tx.commit().await;
                    tokio::time::sleep(millis(20)).await;
                }
            })
        };
        notified(&mut listener).await;
        for (setting, expected) in [("", 0), ("on", 5), ("off", 0)] {
            for _ in 0..5 {
                publish_with(&mut connection, setting).await;
            }
            assert_eq!(notified(&mut listener).await, expected, "'{setting}' after {:?}", active.elapsed());
        }
        // An old state of the router may be all that such a transaction sees.
        let mut tx = connection.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
        tx.execute("SELECT windlass.publish('t')").await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(notified(&mut listener).await, 1);
        keep.abort();
        eventually("the router becomes idle", async || {
            let active = "SELECT count(*)::text FROM windlass.routers WHERE active_until > clock_timestamp()";
            lines(&bed.database.url, active).await == ["0"]
        })
        .await;
        notified(&mut listener).await;
        for (setting, expected) in [("", 1), ("on", 1), ("off", 0)] {
            publish_with(&mut connection, setting).await;
            assert_eq!(notified(&mut listener).await, expected, "'{setting}', idle");
        }
        router.abort();
    }
}
