//! Other sessions of the database that keep vacuum from removing what is dead.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::time::{Instant, interval, sleep, timeout};

use super::workloads::Holder;
use crate::AnyError;

const READERS: u32 = 4;
/// How long one snapshot of a reader lasts.
const READ_FOR: Duration = Duration::from_secs(20);
/// How often it reads meanwhile: rarely, since its share of the processor is not what is measured.
const READ_EVERY: Duration = Duration::from_secs(5);
/// Of each table, so that tables which keep a history do not cost ever more to read: that would be the readers' doing.
const ROWS_READ: u32 = 100_000;

const BEGIN_WITH_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";

const TABLES: &str = "
SELECT c.oid::regclass::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema')";

/// Holds on for so long, then lets go.
pub async fn hold(holder: Holder, url: &str, time: Duration) -> Result<(), AnyError> {
    match holder {
        Holder::Nobody => sleep(time).await,
        Holder::Snapshot => idle(url, BEGIN_WITH_SNAPSHOT, time).await?,
        Holder::Writer => {
            let mut connection = PgConnection::connect(url).await?;
            connection.execute("CREATE TABLE bench_written (n bigint)").await?;
            idle(url, "BEGIN; INSERT INTO bench_written VALUES (1)", time).await?;
        }
        Holder::Readers => readers(url, time).await?,
    }
    Ok(())
}

async fn idle(url: &str, begin: &'static str, time: Duration) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    connection.execute(begin).await?;
    sleep(time).await;
    connection.execute("COMMIT").await?;
    connection.close().await
}

async fn readers(url: &str, time: Duration) -> Result<(), AnyError> {
    let end = Instant::now() + time;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 1..=READERS {
        let url = url.to_owned();
        tasks.spawn(async move {
            // All read from the start, and no two begin anew together.
            let mut snapshot = READ_FOR * n / READERS;
            while Instant::now() < end {
                let mut connection = PgConnection::connect(&url).await?;
                connection.execute(BEGIN_WITH_SNAPSHOT).await?;
                // A scan that is under way at the end is given up with its connection.
                if let Ok(failed) = timeout(snapshot.min(end - Instant::now()), read_all(&mut connection)).await {
                    return failed;
                }
                snapshot = READ_FOR;
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Something of every table every few seconds, in the transaction that is open; returns only if that fails.
async fn read_all(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let tables: Vec<String> = sqlx::query_scalar(TABLES).fetch_all(&mut *connection).await?;
    let mut turns = interval(READ_EVERY);
    loop {
        turns.tick().await;
        for table in &tables {
            connection
                .execute(AssertSqlSafe(format!("SELECT count(*) FROM (SELECT FROM {table} LIMIT {ROWS_READ}) AS rows")))
                .await?;
        }
    }
}
