//! A database in trouble under a node: that is nobody's failure, and it passes.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{AssertSqlSafe, Executor, Row};
use tokio::sync::Semaphore;
use windlass::{Handler, Node, Policy, Status};

use super::*;
use crate::bed::{Kind, run};
use crate::postgres;

/// The first failure of a handler would be the last.
fn strict(lease_ms: u64) -> Policy {
    Policy { lease_ms, max_retries: Some(0), max_attempts: 1_000, ..brisk() }
}

async fn all_are(queue: &Queue, events: &[i64], expected: Status) {
    for event in events {
        until(queue, *event, expected).await;
    }
}

/// A handler that notes that it began, and waits for the gate.
fn gated(ledger: &Ledger, gate: &Arc<Semaphore>) -> Handler {
    let (ledger, gate) = (ledger.clone(), gate.clone());
    let work = move |_, _| {
        let (ledger, gate) = (ledger.clone(), gate.clone());
        async move {
            ledger.write("began");
            gate.acquire().await?.forget();
            Ok(())
        }
    };
    Handler::new("t", work).id("gated")
}

// C10. Another process has the only lock for longer than anyone waits for it.
#[test]
fn sqlite_a_lock_that_others_hold_for_long_is_waited_out() {
    run(Kind::Sqlite, async |bed: &Bed| {
        bed.database.execute("CREATE TABLE effects (event_id BIGINT)").await;
        let (queue, ledger, gate) = (real(bed, strict(60_000)).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let writes = Handler::in_sqlite_tx("t", |event, tx| {
            tx.execute("INSERT INTO effects VALUES (?1)", [event.id])?;
            Ok(())
        });
        let node = start(Node::new(&queue, "n").handler(gated(&ledger, &gate)).handler(writes)).await;
        let mut events = publish_many(&queue, "t", 5).await;
        ledger.wait(5).await;
        let locker = rusqlite::Connection::open(bed.database.file()).unwrap();
        locker.execute_batch("BEGIN IMMEDIATE").unwrap();
        gate.add_permits(100);
        // Whoever comes now has waited for as long as the handlers before it.
        let refused = queue.publish(numbered("t", 0)).await.unwrap_err();
        assert_eq!(refused.code(), "database_locked");
        locker.execute_batch("ROLLBACK").unwrap();
        events.extend(publish_many(&queue, "t", 5).await);
        all_are(&queue, &events, Status::Completed).await;
        assert_eq!(sorted(bed.database.ids("SELECT event_id FROM effects").await), events);
        // What was done before is not done again.
        assert_eq!(ledger.lines().len(), events.len());
        node.stop().await;
    });
}

/// Takes its connection away from one of the handlers that are at work.
const TERMINATE: &str = "
SELECT count(pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'windlass' AND state = 'idle in transaction'
      AND (query LIKE 'INSERT INTO effects%' OR query LIKE '%SET LOCAL%' OR query = 'SELECT 1')
    ORDER BY random() LIMIT 1) AS one";

// C7, C10
#[test]
fn postgres_connections_lost_under_handlers_are_nobodys_failure() {
    run(Kind::Postgres, async |bed: &Bed| {
        bed.database.execute("CREATE TABLE effects (event_id BIGINT, handler TEXT)").await;
        let (queue, ledger) = (real(bed, strict(60_000)).await, Ledger::default());
        let noting = {
            let ledger = ledger.clone();
            Handler::new("t", move |_, _| {
                ledger.write("noted");
                async { Ok(()) }
            })
        };
        let writes = |id: &'static str| {
            let work = move |event: windlass::Envelope, mut tx: windlass::PgTx| async move {
                let insert = sqlx::query("INSERT INTO effects VALUES ($1, $2)").bind(event.id).bind(id);
                insert.execute(&mut *tx).await?;
                tokio::time::sleep(millis(fastrand::u64(..5))).await;
                tx.execute("SELECT 1").await?;
                Ok(())
            };
            Handler::in_pg_tx("t", work).id(id)
        };
        let node = Node::new(&queue, "n").handler(noting).handler(writes("first")).handler(writes("second"));
        let node = start(node).await;
        let over = Arc::new(AtomicBool::new(false));
        let (url, until) = (bed.database.url.clone(), over.clone());
        let terminator = tokio::spawn(async move {
            let (mut connection, mut lost) = (postgres::connect(&url).await, 0);
            while !until.load(Ordering::SeqCst) {
                lost += connection.fetch_one(AssertSqlSafe(TERMINATE)).await.unwrap().get::<i64, _>(0);
                tokio::time::sleep(millis(fastrand::u64(5..20))).await;
            }
            lost
        });
        let events = publish_many(&queue, "t", 100).await;
        all_are(&queue, &events, Status::Completed).await;
        over.store(true, Ordering::SeqCst);
        assert!(terminator.await.unwrap() > 0, "no connection was lost: the test shows nothing");
        for handler in ["first", "second"] {
            let written = format!("SELECT event_id FROM effects WHERE handler = '{handler}'");
            assert_eq!(sorted(bed.database.ids(&written).await), events, "{handler}");
        }
        // What was done before is not done again.
        assert_eq!(ledger.lines().len(), events.len());
        node.stop().await;
    });
}

// Nobody's failure cannot go on forever: the handler may be the reason.
#[test]
fn postgres_an_event_that_costs_a_connection_each_time_is_given_up() {
    run(Kind::Postgres, async |bed: &Bed| {
        let (queue, ledger) = (real(bed, strict(60_000)).await, Ledger::default());
        let written = ledger.clone();
        let deadly = Handler::in_pg_tx("t", move |_, mut tx| {
            written.write("began");
            async move {
                tx.execute("SELECT pg_terminate_backend(pg_backend_pid())").await?;
                Ok(())
            }
        });
        let node = start(Node::new(&queue, "n").handler(deadly)).await;
        let event = publish(&queue, "t").await;
        until(&queue, event.id, Status::Failed).await;
        assert_eq!((ledger.lines().len(), view(&queue, event.id).await.attempts), (10, 10));
        node.stop().await;
    });
}

/// A transaction that hangs has locked groups, and leases are renewed all the same.
#[test]
fn postgres_leases_are_renewed_while_all_others_wait() {
    run(Kind::Postgres, async |bed: &Bed| {
        let (queue, ledger, gate) = (real(bed, strict(6_000)).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let held = [take_in_group(&queue, "g1").await, take_in_group(&queue, "g2").await];
        let node = start(Node::new(&queue, "n").leave_unhandled().handler(gated(&ledger, &gate))).await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;

        let mut connection = postgres::connect(&bed.database.url).await;
        let mut tx = sqlx::Connection::begin(&mut connection).await.unwrap();
        sqlx::Executor::execute(&mut *tx, "SELECT FROM windlass.event_groups FOR UPDATE").await.unwrap();
        // One after the other, so that they do not share a batch.
        let mut waiting = tokio::task::JoinSet::new();
        for (n, delivery) in held.into_iter().enumerate() {
            let (finishing, publishing) = (queue.clone(), queue.clone());
            waiting.spawn(async move { drop(finishing.finish(&delivery, windlass::Report::done()).await.unwrap()) });
            are_waiting(bed, 2 * n + 1).await;
            let event = numbered("x", 2).group(format!("g{}", n + 1));
            waiting.spawn(async move { drop(publishing.publish(event).await.unwrap()) });
            are_waiting(bed, 2 * n + 2).await;
        }
        let before = view(&queue, event.id).await.updated_at;
        eventually("its lease is renewed", async || view(&queue, event.id).await.updated_at > before).await;

        tx.rollback().await.unwrap();
        waiting.join_all().await;
        gate.add_permits(1);
        until(&queue, event.id, Status::Completed).await;
        assert_eq!(view(&queue, event.id).await.attempts, 1);
        node.stop().await;
    });
}

async fn take_in_group(queue: &Queue, group: &str) -> windlass::Delivery {
    publish_new(queue, numbered("x", 0).group(group)).await;
    let request = windlass::ClaimRequest::new("w").types(["x"]).lease(secs(600));
    claim(queue, request).await.pop().expect("it is ready")
}

/// Waits until so many connections to the test's database wait for a lock.
async fn are_waiting(bed: &Bed, count: usize) {
    let sql = "SELECT count(*)::text FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let so = async || postgres::lines(&bed.database.url, sql).await == [count.to_string()];
    eventually(&format!("{count} connections wait"), so).await;
}
