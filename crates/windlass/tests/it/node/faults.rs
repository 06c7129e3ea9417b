//! Database faults while a node runs. They do not count as failures of handlers, and the node recovers.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{AssertSqlSafe, Executor, Row};
use tokio::sync::Semaphore;
use windlass::{Handler, Node, Policy, Status};
use windlass_testkit::{Kind, postgres};

use super::*;
use crate::bed::run;

/// A policy without retries: the first failure of a handler is final.
fn no_retries(lease_ms: u64) -> Policy {
    Policy { lease_ms, max_retries: Some(0), max_attempts: 1_000, ..immediate_retries() }
}

async fn wait_for_all(queue: &Queue, events: &[i64], expected: Status) {
    for event in events {
        wait_for_status(queue, *event, expected).await;
    }
}

/// A handler that records that it began, and waits for a permit.
fn gated_handler(ledger: &Ledger, gate: &Arc<Semaphore>) -> Handler {
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

// C10. Another process holds the write lock for longer than the lock timeout.
#[test]
fn sqlite_node_waits_out_a_long_lock() {
    run(Kind::Sqlite, async |bed: &Bed| {
        bed.database.execute("CREATE TABLE effects (event_id BIGINT)").await;
        let (queue, ledger, gate) =
            (real_time_namespace(bed, no_retries(60_000)).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let writes = Handler::in_sqlite_tx("t", |event, tx| {
            tx.execute("INSERT INTO effects VALUES (?1)", [event.id])?;
            Ok(())
        });
        let node = start(Node::new(&queue, "n").handler(gated_handler(&ledger, &gate)).handler(writes)).await;
        let mut events = publish_many(&queue, "t", 5).await;
        ledger.wait(5).await;
        let locker = rusqlite::Connection::open(bed.database.file()).unwrap();
        locker.execute_batch("BEGIN IMMEDIATE").unwrap();
        gate.add_permits(100);
        // When this call times out, the handlers before it have timed out as well.
        let refused = queue.publish(numbered("t", 0)).await.unwrap_err();
        assert_eq!(refused.code(), "database_locked");
        locker.execute_batch("ROLLBACK").unwrap();
        events.extend(publish_many(&queue, "t", 5).await);
        wait_for_all(&queue, &events, Status::Completed).await;
        assert_eq!(sorted(bed.database.select_numbers("SELECT event_id FROM effects").await), events);
        // Finished handlers do not run again.
        assert_eq!(ledger.lines().len(), events.len());
        node.stop().await;
    });
}

/// Terminates the connection of one running handler.
const TERMINATE: &str = "
SELECT count(pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'windlass' AND state = 'idle in transaction'
      AND (query LIKE 'INSERT INTO effects%' OR query LIKE '%SET LOCAL%' OR query = 'SELECT 1')
    ORDER BY random() LIMIT 1) AS one";

// C7, C10
#[test]
fn postgres_lost_handler_connections_are_not_failures() {
    run(Kind::Postgres, async |bed: &Bed| {
        bed.database.execute("CREATE TABLE effects (event_id BIGINT, handler TEXT)").await;
        let (queue, ledger) = (real_time_namespace(bed, no_retries(60_000)).await, Ledger::default());
        let recording = {
            let ledger = ledger.clone();
            Handler::new("t", move |_, _| {
                ledger.write("handled");
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
        let node = Node::new(&queue, "n").handler(recording).handler(writes("first")).handler(writes("second"));
        let node = start(node).await;
        let stopped = Arc::new(AtomicBool::new(false));
        let (url, stop) = (bed.database.url.clone(), stopped.clone());
        let terminator = tokio::spawn(async move {
            let (mut connection, mut lost) = (postgres::connect(&url).await, 0);
            while !stop.load(Ordering::SeqCst) {
                lost += connection.fetch_one(AssertSqlSafe(TERMINATE)).await.unwrap().get::<i64, _>(0);
                tokio::time::sleep(millis(fastrand::u64(5..20))).await;
            }
            lost
        });
        let events = publish_many(&queue, "t", 100).await;
        wait_for_all(&queue, &events, Status::Completed).await;
        stopped.store(true, Ordering::SeqCst);
        assert!(terminator.await.unwrap() > 0, "no connection was lost: the test shows nothing");
        for handler in ["first", "second"] {
            let written = format!("SELECT event_id FROM effects WHERE handler = '{handler}'");
            assert_eq!(sorted(bed.database.select_numbers(&written).await), events, "{handler}");
        }
        // Finished handlers do not run again.
        assert_eq!(ledger.lines().len(), events.len());
        node.stop().await;
    });
}

// Lost connections are retried up to a limit, because the handler may cause them.
#[test]
fn postgres_event_that_always_loses_its_connection_fails() {
    run(Kind::Postgres, async |bed: &Bed| {
        let (queue, ledger) = (real_time_namespace(bed, no_retries(60_000)).await, Ledger::default());
        let written = ledger.clone();
        let disconnecting = Handler::in_pg_tx("t", move |_, mut tx| {
            written.write("began");
            async move {
                tx.execute("SELECT pg_terminate_backend(pg_backend_pid())").await?;
                Ok(())
            }
        });
        let node = start(Node::new(&queue, "n").handler(disconnecting)).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Failed).await;
        assert_eq!((ledger.lines().len(), view(&queue, event.id).await.attempts), (10, 10));
        node.stop().await;
    });
}

/// Leases are renewed while a transaction that hangs has locked all groups.
#[test]
fn postgres_leases_are_renewed_while_other_calls_are_blocked() {
    run(Kind::Postgres, async |bed: &Bed| {
        let (queue, ledger, gate) =
            (real_time_namespace(bed, no_retries(6_000)).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let leased = [claim_in_group(&queue, "g1").await, claim_in_group(&queue, "g2").await];
        let node = start(Node::new(&queue, "n").leave_unhandled().handler(gated_handler(&ledger, &gate))).await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;

        let mut connection = postgres::connect(&bed.database.url).await;
        let mut tx = sqlx::Connection::begin(&mut connection).await.unwrap();
        sqlx::Executor::execute(&mut *tx, "SELECT FROM windlass.event_groups FOR UPDATE").await.unwrap();
        // One call after the other, so that they do not share a batch.
        let mut waiting = tokio::task::JoinSet::new();
        for (n, delivery) in leased.into_iter().enumerate() {
            let (finishing, publishing) = (queue.clone(), queue.clone());
            waiting.spawn(async move { drop(finishing.finish(&delivery, windlass::Report::done()).await.unwrap()) });
            wait_for_lock_waits(bed, 2 * n + 1).await;
            let event = numbered("x", 2).group(format!("g{}", n + 1));
            waiting.spawn(async move { drop(publishing.publish(event).await.unwrap()) });
            wait_for_lock_waits(bed, 2 * n + 2).await;
        }
        let before = view(&queue, event.id).await.updated_at;
        eventually("the lease is renewed", async || view(&queue, event.id).await.updated_at > before).await;

        tx.rollback().await.unwrap();
        waiting.join_all().await;
        gate.add_permits(1);
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!(view(&queue, event.id).await.attempts, 1);
        node.stop().await;
    });
}

async fn claim_in_group(queue: &Queue, group: &str) -> windlass::Delivery {
    publish_new(queue, numbered("x", 0).group(group)).await;
    let request = windlass::ClaimRequest::new("w").types(["x"]).lease(secs(600));
    claim(queue, request).await.pop().expect("the event is ready")
}

/// Waits until exactly this many connections to the test's database wait for a lock.
async fn wait_for_lock_waits(bed: &Bed, count: usize) {
    let sql = "SELECT count(*)::text FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let is_reached = async || postgres::lines(&bed.database.url, sql).await == [count.to_string()];
    eventually(&format!("{count} connections wait"), is_reached).await;
}
