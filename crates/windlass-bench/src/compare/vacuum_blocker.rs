//! Database sessions that keep vacuum from removing dead rows.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::time::{Instant, interval, sleep, timeout};

use super::workloads::VacuumBlocker;
use crate::AnyError;

const READERS: u32 = 4;
/// How long a reader keeps a snapshot.
const SNAPSHOT_TIME: Duration = Duration::from_secs(20);
/// How often it reads meanwhile. Rarely, because the readers' CPU time is not measured.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// The most rows read per table, so that growing history tables do not become more expensive to read.
const ROWS_READ: u32 = 100_000;

const BEGIN_WITH_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";

const TABLES: &str = "
SELECT c.oid::regclass::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema')";

/// Blocks vacuum for `time`.
pub async fn block_vacuum(blocker: VacuumBlocker, url: &str, time: Duration) -> Result<(), AnyError> {
    match blocker {
        VacuumBlocker::None => sleep(time).await,
        VacuumBlocker::Snapshot => idle(url, BEGIN_WITH_SNAPSHOT, time).await?,
        VacuumBlocker::Writer => {
            let mut connection = PgConnection::connect(url).await?;
            connection.execute("CREATE TABLE bench_written (n bigint)").await?;
            idle(url, "BEGIN; INSERT INTO bench_written VALUES (1)", time).await?;
        }
        VacuumBlocker::Readers => readers(url, time).await?,
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
            // All readers start immediately but renew their snapshots at different times.
            let mut snapshot = SNAPSHOT_TIME * n / READERS;
            while Instant::now() < end {
                let mut connection = PgConnection::connect(&url).await?;
                connection.execute(BEGIN_WITH_SNAPSHOT).await?;
                // A scan in progress at the end is aborted with its connection.
                if let Ok(failed) = timeout(snapshot.min(end - Instant::now()), read_all(&mut connection)).await {
                    return failed;
                }
                snapshot = SNAPSHOT_TIME;
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Reads part of every table every few seconds in the open transaction; returns only on failure.
async fn read_all(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let tables: Vec<String> = sqlx::query_scalar(TABLES).fetch_all(&mut *connection).await?;
    let mut ticks = interval(READ_INTERVAL);
    loop {
        ticks.tick().await;
        for table in &tables {
            connection
                .execute(AssertSqlSafe(format!("SELECT count(*) FROM (SELECT FROM {table} LIMIT {ROWS_READ}) AS rows")))
                .await?;
        }
    }
}
