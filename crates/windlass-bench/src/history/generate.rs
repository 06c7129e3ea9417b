//! Generates years of history in minutes, with the rows that publish, claim and finish would have written.

use chrono::Utc;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use windlass::{NewEvent, Queue, rusqlite};

use super::months::Month;
use crate::AnyError;
use crate::event::PAID;
use crate::store::Backend;

/// Fills a new database with finished events, spread evenly over the months.
pub async fn fill(backend: Backend, url: &str, events: u64, months: &[Month]) -> Result<(), AnyError> {
    let queue = Queue::open(url).await?;
    // Creates the schema and the lane.
    queue.publish(NewEvent::new(PAID)).await?;
    let claimed = queue.poll("generator").await?.ok_or("there is an event")?;
    let _ = queue.finish(&claimed, windlass::Report::done()).await?;
    queue.close().await;
    let events_per_month = events / months.len() as u64;
    match backend {
        Backend::Sqlite => fill_sqlite(url.trim_start_matches("sqlite://"), events_per_month, months),
        Backend::Postgres => fill_postgres(url, events_per_month, months).await,
    }
}

async fn fill_postgres(url: &str, events_per_month: u64, months: &[Month]) -> Result<(), AnyError> {
    let mut connection = PgConnection::connect(url).await?;
    connection
        .execute("SET synchronous_commit = off; DELETE FROM windlass.events; DELETE FROM windlass.event_attempts")
        .await?;
    for (n, month) in months.iter().enumerate() {
        eprintln!("  {}", month.name);
        for table in ["events", "event_attempts"] {
            let Month { name, from, until } = month;
            let create = format!(
                "CREATE TABLE IF NOT EXISTS windlass.{table}_{name} PARTITION OF windlass.{table} \
                 FOR VALUES FROM ('{from}') TO ('{until}')"
            );
            connection.execute(AssertSqlSafe(create)).await?;
        }
        let first = 1_000 + n as u64 * events_per_month;
        for insert in [POSTGRES_EVENTS, POSTGRES_ATTEMPTS] {
            let insert = sqlx::query(insert).bind(first as i64).bind(events_per_month as i64).bind(month.from);
            insert.bind(month.until.min(Utc::now())).execute(&mut connection).await?;
        }
    }
    let last = (1_000 + months.len() as u64 * events_per_month) as i64;
    sqlx::query("SELECT setval('windlass.events_id_seq', $1)").bind(last).execute(&mut connection).await?;
    connection.execute("VACUUM ANALYZE").await?;
    connection.execute("CHECKPOINT").await?;
    Ok(connection.close().await?)
}

const POSTGRES_EVENTS: &str = r#"
INSERT INTO windlass.events (id, namespace, event_type, tags, payload, priority, created_at)
SELECT $1 + n, 'default', 'order.paid', '',
       format('{"order_id":%s,"amount":"99.90","note":"%s"}', n, repeat('x', 150))::json, 0,
       $3 + n * (($4 - $3) / $2)
FROM generate_series(0, $2 - 1) AS n"#;
const POSTGRES_ATTEMPTS: &str = "
INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, lease, worker_id,
    picked_at, finished_at, action, execution_time_ms, retry_count, max_retries)
SELECT $1 + n, (SELECT min(subscription_id) FROM windlass.subscriptions), 'order.paid', 1, 'default', 'main', n, 'generator',
       $3 + n * (($4 - $3) / $2), $3 + n * (($4 - $3) / $2), 'COMPLETED', 1, 0, 3
FROM generate_series(0, $2 - 1) AS n";

fn fill_sqlite(path: &str, events_per_month: u64, months: &[Month]) -> Result<(), AnyError> {
    let connection = rusqlite::Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA synchronous = off; PRAGMA cache_size = -1000000; DELETE FROM events; DELETE FROM event_attempts",
    )?;
    for (n, month) in months.iter().enumerate() {
        eprintln!("  {}", month.name);
        let until = month.until.min(Utc::now()).timestamp_micros();
        let (from, first) = (month.from.timestamp_micros(), 1_000 + n as u64 * events_per_month);
        for insert in [SQLITE_EVENTS, SQLITE_ATTEMPTS] {
            connection.execute(insert, (first as i64, events_per_month as i64, from, until))?;
        }
    }
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); ANALYZE")?;
    Ok(())
}

const SQLITE_EVENTS: &str = r#"
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?2)
INSERT INTO events (id, namespace, event_type, tags, payload, priority, created_at)
SELECT ?1 + n, 'default', 'order.paid', '',
       '{"order_id":' || n || ',"amount":"99.90","note":"' || hex(zeroblob(75)) || '"}', 0,
       ?3 + n * ((?4 - ?3) / ?2)
FROM numbers"#;
const SQLITE_ATTEMPTS: &str = "
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?2)
INSERT INTO event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, lease, worker_id,
    picked_at, finished_at, action, execution_time_ms, retry_count, max_retries)
SELECT ?1 + n, (SELECT min(subscription_id) FROM subscriptions), 'order.paid', 1, 'default', 'main', n, 'generator',
       ?3 + n * ((?4 - ?3) / ?2), ?3 + n * ((?4 - ?3) / ?2), 'COMPLETED', 1, 0, 3
FROM numbers";
