//! Routers that are killed, stopped or run concurrently: each event is delivered once, and groups keep their order.

use std::collections::HashMap;
use std::time::Instant;

use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor, PgConnection};
use windlass::{ClaimRequest, Delivery, LeasedEvent, NewEvent, Queue, Report, WaitReason};
use windlass_testkit::Kind;
use windlass_testkit::postgres::{connect, lines};

use crate::bed::Bed;
use crate::open_transaction::{OpenTransaction, query_number};
use crate::process::Process;
use crate::support::*;

/// The body of a child process that only routes: it waits for a type that is never published.
pub async fn run_child(queue: Queue) {
    loop {
        claim(&queue, ClaimRequest::new("child").types(["never"]).wait(secs(20))).await;
    }
}

/// Routes in this process and claims nothing.
fn spawn_router(queue: &Queue) -> tokio::task::JoinHandle<()> {
    tokio::spawn(run_child(queue.clone()))
}

async fn arrivals(bed: &Bed) -> i64 {
    let schema = if bed.database.kind == Kind::Postgres { "windlass." } else { "" };
    query_number(&bed.database, &format!("SELECT count(*) FROM {schema}arrivals")).await
}

/// The `n`-th event of a group.
fn member(group: usize, n: usize) -> NewEvent {
    NewEvent::new("t").group(format!("g{group}")).payload(&n).unwrap()
}

/// Publishes the events `from..to` of all groups in one transaction.
async fn publish_members(bed: &Bed, queue: &Queue, groups: usize, members: std::ops::Range<usize>) {
    let events: Vec<NewEvent> = members.flat_map(|n| (0..groups).map(move |group| member(group, n))).collect();
    let mut tx = OpenTransaction::begin(&bed.database).await;
    for chunk in events.chunks(1_000) {
        tx.publish_all(queue, chunk.to_vec()).await.unwrap();
    }
    tx.commit().await;
}

/// The number of handled events, in all and for each group.
#[derive(Default)]
struct Progress {
    next: HashMap<String, usize>,
    handled: usize,
}

impl Progress {
    /// Checks that each delivery is the next one of its group, and counts it.
    fn record(&mut self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            let group = delivery.event.group_id.clone().unwrap();
            let next = self.next.entry(group.clone()).or_default();
            assert_eq!((delivery.attempts, delivery.event.payload::<usize>().unwrap()), (1, *next), "group {group}");
            *next += 1;
            self.handled += 1;
        }
    }
}

/// Claims and completes runs until `target` events have been handled in all.
async fn handle(queue: &Queue, progress: &mut Progress, target: usize) {
    while progress.handled < target {
        let request = ClaimRequest::new("w").max(100).group_run(50).wait(secs(20));
        let deliveries = claim(queue, request).await;
        assert!(!deliveries.is_empty(), "{} of {target} were handled", progress.handled);
        progress.record(&deliveries);
        let reports = deliveries.iter().map(|delivery| (LeasedEvent::from(delivery), Report::done())).collect();
        for finished in queue.finish_all(reports).await.unwrap() {
            assert!(!finished.unwrap().is_lost());
        }
    }
}

/// The number of groups, or of events of one group, in the tests with large groups.
fn large_count() -> usize {
    std::env::var("WINDLASS_TEST_GROUPED").map_or(3_000, |count| count.parse().unwrap())
}

conformance! {
    async fn killed_router_loses_and_repeats_nothing(bed) {
        let queue = bed.real_time_queue().await.put_namespace("ns", None, None).await.unwrap();
        let mut killed_in_between = 0;
        let (mut published, mut progress) = (0, Progress::default());
        for _ in 0..4 {
            publish_members(bed, &queue, 20, published..published + 300).await;
            published += 300;
            let mut router = Process::start(bed, "route");
            let before = arrivals(bed).await;
            let started = Instant::now();
            while arrivals(bed).await == before {
                assert!(started.elapsed() < secs(30), "the router does not route");
            }
            router.kill();
            killed_in_between += usize::from(arrivals(bed).await > 0);
        }
        assert!(killed_in_between > 0, "no router was killed while arrivals were left: the test shows nothing");
        handle(&queue, &mut progress, published * 20).await;
        assert_eq!(count_events(&queue).await as usize, published * 20);
        assert!(poll(&queue).await.is_none());
    }

    async fn two_routers_keep_group_order(bed) {
        let (queue, other) = (bed.real_time_queue().await, bed.real_time_queue().await);
        let routers = [spawn_router(&queue), spawn_router(&other)];
        let mut publishers = Vec::new();
        for group in 0..4 {
            let (queue, database) = (queue.clone(), bed.database.clone());
            publishers.push(tokio::spawn(async move {
                for n in 0..100 {
                    let mut tx = OpenTransaction::begin(&database).await;
                    tx.publish_all(&queue, vec![member(group, 2 * n), member(group, 2 * n + 1)]).await.unwrap();
                    tx.commit().await;
                }
            }));
        }
        let (mut progress, mut claimers) = (Progress::default(), [&queue, &other].into_iter().cycle());
        while progress.handled < 800 {
            let target = progress.handled + 1;
            handle(claimers.next().unwrap(), &mut progress, target).await;
        }
        for publisher in publishers {
            publisher.await.unwrap();
        }
        routers.iter().for_each(|router| router.abort());
        assert_eq!(count_events(&queue).await, 800);
        assert!(poll(&other).await.is_none());
    }

    async fn large_group_is_routed_and_drained(bed) {
        let (queue, count) = (bed.real_time_queue().await, large_count());
        let started = Instant::now();
        for from in (0..count).step_by(10_000) {
            publish_members(bed, &queue, 1, from..count.min(from + 10_000)).await;
        }
        let published = started.elapsed();
        handle(&queue, &mut Progress::default(), count).await;
        println!("one group of {count}: published in {published:.1?}, drained after {:.1?}", started.elapsed());
        assert!(poll(&queue).await.is_none());
    }

    async fn many_groups_are_routed_and_drained(bed) {
        let (queue, count) = (bed.real_time_queue().await, large_count());
        let started = Instant::now();
        publish_members(bed, &queue, count, 0..1).await;
        let published = started.elapsed();
        handle(&queue, &mut Progress::default(), count).await;
        println!("{count} groups: published in {published:.1?}, drained after {:.1?}", started.elapsed());
        assert!(poll(&queue).await.is_none());
    }
}

/// Ends the session of the active router.
const TERMINATE: &str = "
SELECT count(pg_terminate_backend(l.pid))::text FROM pg_locks l
WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid()
  AND (l.classid::bigint << 32 | l.objid::bigint) = windlass._router_lock('default')
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Takes the router lock, so that no router can work.
async fn block_routers(connection: &mut PgConnection) {
    connection.execute("SELECT pg_advisory_lock(windlass._router_lock('default'))").await.unwrap();
}

/// Counts the notifications of arrivals for 300 ms.
async fn count_notifications(listener: &mut PgListener) -> usize {
    let (mut count, until) = (0, tokio::time::Instant::now() + millis(300));
    while let Ok(notification) = tokio::time::timeout_at(until, listener.recv()).await {
        count += usize::from(notification.unwrap().payload().ends_with('+'));
    }
    count
}

async fn publish_with_notify(connection: &mut PgConnection, setting: &str) {
    let mut tx = connection.begin().await.unwrap();
    if !setting.is_empty() {
        tx.execute(sqlx::AssertSqlSafe(format!("SET LOCAL windlass.notify = '{setting}'"))).await.unwrap();
    }
    tx.execute("INSERT INTO windlass.outbox (event_type) VALUES ('t')").await.unwrap();
    tx.commit().await.unwrap();
}

on_postgres! {
    async fn terminated_router_session_rolls_back_its_batch(bed) {
        let queue = bed.real_time_queue().await;
        publish_members(bed, &queue, 10, 0..400).await;
        let router = spawn_router(&queue);
        let mut connection = connect(&bed.database.url).await;
        let mut terminated = 0;
        while terminated < 3 {
            let ended = sqlx::query_scalar::<_, String>(TERMINATE).fetch_one(&mut connection).await.unwrap();
            terminated += ended.parse::<usize>().unwrap();
            assert!(arrivals(bed).await > 0, "no router worked for long enough: the test shows nothing");
        }
        handle(&queue, &mut Progress::default(), 4_000).await;
        router.abort();
        assert_eq!(count_events(&queue).await, 4_000);
    }

    // O4, C7: a process commits the completion in a handler's transaction, and dies before it processes the departure.
    async fn group_continues_after_handler_process_dies(bed) {
        let queue = bed.real_time_queue().await;
        let published = queue.publish_all((0..3).map(|n| member(0, n)).collect()).await.unwrap();
        let first = claim_one(&queue).await;
        let lease = i64::from_str_radix(&first.lease.to_string(), 16).unwrap();
        let complete = format!(
            "BEGIN; SET LOCAL windlass.handler = 'on';
             SELECT windlass._complete_in_tx('default', s.subscription_id, {}, {lease}, NULL, 1)
             FROM windlass.subscriptions s WHERE s.namespace = 'default'; COMMIT",
            first.event.id
        );
        let mut connection = connect(&bed.database.url).await;
        connection.execute(sqlx::AssertSqlSafe(complete.as_str())).await.unwrap();
        // The lease can be used once.
        let again = connection.execute(sqlx::AssertSqlSafe(complete.as_str())).await.unwrap_err();
        assert!(again.to_string().contains("the lease was lost"), "{again}");
        for published in &published[1..] {
            let next = claim(&queue, ClaimRequest::new("w").wait(secs(30))).await;
            assert_eq!(ids(&next), [published.event.id]);
            done(&queue, &next[0]).await;
        }
        assert_eq!(query_number(&bed.database, "SELECT count(*) FROM windlass.departures").await, 0);
        assert_eq!(query_number(&bed.database, "SELECT count(*) FROM windlass.event_groups").await, 0);
    }

    // The transaction began before the position that the router remembers.
    async fn late_commit_is_routed_and_blocks_no_other_group(bed) {
        let queue = bed.real_time_queue().await;
        let router = spawn_router(&queue);
        let mut late = OpenTransaction::begin(&bed.database).await;
        let late_events = late.publish_all(&queue, vec![member(0, 0), member(9, 0)]).await.unwrap();
        let late_id = late_events[0].event.id;
        // Publishes for longer than routers go back to look for late commits.
        let started = Instant::now();
        let mut n = 0;
        while started.elapsed() < millis(2_500) {
            publish_members(bed, &queue, 1, n + 1..n + 2).await;
            let delivery = claim_soon(&queue, ClaimRequest::new("w")).await;
            assert_eq!(delivery.event.payload::<usize>().unwrap(), n + 1);
            done(&queue, &delivery).await;
            n += 1;
        }
        // One event of the group is leased, and one waits behind it.
        publish_members(bed, &queue, 1, n + 1..n + 2).await;
        let leased = claim_soon(&queue, ClaimRequest::new("w")).await;
        let started = Instant::now();
        late.commit().await;
        // The late event of the other group is delivered immediately, although the one before it waits for its group.
        let found = claim_soon(&queue, ClaimRequest::new("w")).await;
        assert_eq!((found.event.id, started.elapsed() < secs(2)), (late_events[1].event.id, true), "{:?}", started.elapsed());
        publish_members(bed, &queue, 1, n + 2..n + 3).await;
        assert!(poll(&queue).await.is_none());
        done(&queue, &leased).await;
        let next = claim_soon(&queue, ClaimRequest::new("w")).await;
        assert_eq!(next.event.id, late_id);
        done(&queue, &next).await;
        let last = claim_soon(&queue, ClaimRequest::new("w")).await;
        assert_eq!(last.event.payload::<usize>().unwrap(), n + 2);
        router.abort();
    }

    async fn event_committed_an_hour_late_is_delivered_next(bed) {
        let queue = &bed.queue;
        let mut late = OpenTransaction::begin(&bed.database).await;
        let late_events = late.publish_all(queue, vec![member(0, 0), NewEvent::new("t")]).await.unwrap();
        bed.advance(60 * MINUTE);
        publish_members(bed, queue, 1, 1..4).await;
        done(queue, &claim_one(queue).await).await;
        let leased = claim_one(queue).await;
        assert_eq!(leased.event.payload::<usize>().unwrap(), 2);
        late.commit().await;
        let deliveries = claim_all(queue).await;
        assert_eq!(ids(&deliveries), [late_events[1].event.id]);
        done(queue, &leased).await;
        let next = claim_one(queue).await;
        assert_eq!(next.event.id, late_events[0].event.id);
        done(queue, &next).await;
        assert_eq!(claim_one(queue).await.event.payload::<usize>().unwrap(), 3);
    }

    // A process is stopped or loses its network while it routes.
    async fn hanging_router_delays_only_arrivals(bed) {
        let mut hangs = connect(&bed.database.url).await;
        block_routers(&mut hangs).await;
        let ready = publish(&bed.queue, "t").await.id;
        let mut tx = OpenTransaction::begin(&bed.database).await;
        let arrived = tx.publish(&bed.queue, NewEvent::new("t")).await.unwrap().event.id;
        tx.commit().await;
        let started = Instant::now();
        assert_eq!(bed.queue.explain(arrived, "main").await.unwrap().reason, WaitReason::Arrived);
        assert_eq!(bed.queue.get(arrived).await.unwrap().deliveries.len(), 0);
        let delivery = claim_one(&bed.queue).await;
        assert_eq!(delivery.event.id, ready);
        done(&bed.queue, &delivery).await;
        assert!(poll(&bed.queue).await.is_none());
        assert!(started.elapsed() < secs(20), "{:?}", started.elapsed());
        // A call that would miss the arrivals is refused.
        let error = bed.queue.cancel_all(Default::default()).await.unwrap_err();
        assert!(error.is_temporary(), "{error}");
        hangs.close().await.unwrap();
        assert_eq!(claim_one(&bed.queue).await.event.id, arrived);
    }

    async fn commits_notify_idle_routers_only(bed) {
        let queue = bed.real_time_queue().await;
        let router = spawn_router(&queue);
        let mut listener = PgListener::connect(&bed.database.url).await.unwrap();
        listener.listen("windlass").await.unwrap();
        let mut connection = connect(&bed.database.url).await;
        // Publishers notify only if a router listens.
        eventually("the router announces that it listens", async || {
            let listens = "SELECT count(*)::text FROM windlass.routers WHERE listens_until > clock_timestamp()";
            lines(&bed.database.url, listens).await == ["1"]
        })
        .await;
        publish_with_notify(&mut connection, "").await;
        assert_eq!(count_notifications(&mut listener).await, 1);
        // While events keep arriving, the router announces that it polls.
        eventually("the router announces that it is active", async || {
            let mut tx = OpenTransaction::begin(&bed.database).await;
            tx.publish(&queue, NewEvent::new("t")).await.unwrap();
            tx.commit().await;
            let active = "SELECT count(*)::text FROM windlass.routers WHERE active_until > clock_timestamp()";
            lines(&bed.database.url, active).await == ["1"]
        })
        .await;
        let active = Instant::now();
        let publisher = {
            let queue = queue.clone();
            let database = bed.database.clone();
            tokio::spawn(async move {
                loop {
                    let mut tx = OpenTransaction::begin(&database).await;
                    tx.publish(&queue, NewEvent::new("t")).await.unwrap();
                    tx.commit().await;
                    tokio::time::sleep(millis(20)).await;
                }
            })
        };
        count_notifications(&mut listener).await;
        for (setting, expected) in [("", 0), ("on", 5), ("off", 0)] {
            for _ in 0..5 {
                publish_with_notify(&mut connection, setting).await;
            }
            assert_eq!(count_notifications(&mut listener).await, expected, "'{setting}' after {:?}", active.elapsed());
        }
        // Such a transaction may see an old state of the router, so it notifies.
        let mut tx = connection.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
        tx.execute("SELECT windlass.publish('t')").await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(count_notifications(&mut listener).await, 1);
        publisher.abort();
        eventually("the router becomes idle", async || {
            let active = "SELECT count(*)::text FROM windlass.routers WHERE active_until > clock_timestamp()";
            lines(&bed.database.url, active).await == ["0"]
        })
        .await;
        count_notifications(&mut listener).await;
        for (setting, expected) in [("", 1), ("on", 1), ("off", 0)] {
            publish_with_notify(&mut connection, setting).await;
            assert_eq!(count_notifications(&mut listener).await, expected, "'{setting}', idle");
        }
        router.abort();
    }
}
