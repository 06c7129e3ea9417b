//! The baseline on PostgreSQL: bare SQL with the minimum that a durable queue with history needs.
//!
//! An event and its queue entry are stored in one commit. Entries are claimed in one commit, and deleted and recorded
//! in another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use sqlx::{Connection, Executor, PgConnection, Row};
use tokio::task::JoinSet;

use super::{BATCH, CALLERS, EVENTS, Rates};
use crate::AnyError;
use crate::event::{PAID, order_payload};

const SCHEMA: &str = "
CREATE TABLE events (id bigserial PRIMARY KEY, event_type text NOT NULL, payload json NOT NULL,
    created_at timestamptz NOT NULL);
CREATE TABLE queue (event_id bigint PRIMARY KEY, ready_at timestamptz NOT NULL, lease bigint) WITH (fillfactor = 45);
CREATE INDEX queue_ready ON queue (ready_at, event_id);
CREATE TABLE attempts (event_id bigint NOT NULL, lease bigint, finished_at timestamptz NOT NULL);
CREATE INDEX attempts_by_event ON attempts (event_id)";

const PUBLISH: &str = "
WITH stored AS (
    INSERT INTO events (event_type, payload, created_at)
    SELECT $1, payload::json, now() FROM unnest($2::text[]) AS payload RETURNING id
)
INSERT INTO queue (event_id, ready_at) SELECT id, now() FROM stored";

const CLAIM: &str = "
WITH taken AS (
    UPDATE queue SET lease = 1 WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM queue WHERE lease IS NULL AND ready_at <= now() AND event_id > $2
        ORDER BY ready_at, event_id LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING event_id
)
SELECT e.id, e.payload::text FROM taken t JOIN events e ON e.id = t.event_id";

const FINISH: &str = "
WITH gone AS (DELETE FROM queue WHERE event_id = ANY($1) AND lease = 1 RETURNING event_id, lease)
INSERT INTO attempts (event_id, lease, finished_at) SELECT event_id, lease, now() FROM gone";

const SETUP: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off; \
    SET enable_mergejoin = off; SET enable_sort = off; SET enable_bitmapscan = off";

pub async fn measure(url: &str) -> Result<Rates, AnyError> {
    PgConnection::connect(url).await?.execute(SCHEMA).await?;
    let started = Instant::now();
    run_concurrently(url, publish).await?;
    let published = started.elapsed();
    let started = Instant::now();
    let drained: usize = run_concurrently(url, drain).await?;
    if drained != EVENTS {
        return Err(format!("{drained} of {EVENTS} events were drained").into());
    }
    Ok(Rates {
        publish: EVENTS as f64 / published.as_secs_f64(),
        drain: EVENTS as f64 / started.elapsed().as_secs_f64(),
    })
}

/// Runs `work` on several connections and returns the sum of their results.
async fn run_concurrently<F>(url: &str, work: fn(PgConnection, Arc<AtomicUsize>) -> F) -> Result<usize, AnyError>
where
    F: Future<Output = Result<usize, sqlx::Error>> + Send + 'static,
{
    let (shared, mut tasks) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    for _ in 0..CALLERS {
        let mut connection = PgConnection::connect(url).await?;
        connection.execute(SETUP).await?;
        tasks.spawn(work(connection, shared.clone()));
    }
    let mut done = 0;
    while let Some(ended) = tasks.join_next().await {
        done += ended??;
    }
    Ok(done)
}

async fn publish(mut connection: PgConnection, started: Arc<AtomicUsize>) -> Result<usize, sqlx::Error> {
    let payload =
        serde_json::to_string(&order_payload(12_345)).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    let payloads = vec![payload; BATCH];
    let mut published = 0;
    while started.fetch_add(BATCH, Ordering::Relaxed) < EVENTS {
        sqlx::query(PUBLISH).bind(PAID).bind(&payloads).execute(&mut connection).await?;
        published += BATCH;
    }
    Ok(published)
}

/// Continues after the newest claimed entry, to skip dead rows, and finally restarts once from the beginning for
/// entries before it.
async fn drain(mut connection: PgConnection, _: Arc<AtomicUsize>) -> Result<usize, sqlx::Error> {
    let (mut drained, mut last) = (0, 0);
    loop {
        let claim = sqlx::query(CLAIM).bind(BATCH as i64).bind(last);
        let rows = claim.fetch_all(&mut connection).await?;
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        match ids.iter().max() {
            Some(newest) => last = *newest,
            None if last == 0 => return Ok(drained),
            None => {
                last = 0;
                continue;
            }
        }
        sqlx::query(FINISH).bind(&ids).execute(&mut connection).await?;
        drained += ids.len();
    }
}
