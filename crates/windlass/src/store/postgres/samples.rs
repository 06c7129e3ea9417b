//! Samples. They use no connections of the hot path.

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, Executor, PgConnection};

use super::PgStore;
use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use super::row::get;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::samples::counter::Counter;
use crate::observe::samples::histogram::Histogram;
use crate::observe::samples::thin::{THINNING_LEVELS, ThinningLevel, merge_samples};
use crate::observe::samples::{SampleRow, SampleSeries};
use crate::store::SampleStore;

// `unnest` flattens arrays of arrays, so histograms are passed as text.
const ADD: &str = "
INSERT INTO windlass.samples AS s (namespace, span_s, at, event_type, published, completed, failed, retried, expired,
    cancelled, depth, oldest_ms, wait, run)
SELECT $1, i.span_s, i.at, i.event_type, i.published, i.completed, i.failed, i.retried, i.expired, i.cancelled, i.depth,
       i.oldest_ms, i.wait::bigint[], i.run::bigint[]
FROM unnest($2::int[], $3::timestamptz[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::text[])
  AS i(span_s, at, event_type, published, completed, failed, retried, expired, cancelled, depth, oldest_ms, wait, run)
ON CONFLICT (namespace, span_s, at, event_type) DO UPDATE SET
    published = s.published + excluded.published, completed = s.completed + excluded.completed,
    failed = s.failed + excluded.failed, retried = s.retried + excluded.retried,
    expired = s.expired + excluded.expired, cancelled = s.cancelled + excluded.cancelled,
    depth = greatest(s.depth, excluded.depth), oldest_ms = greatest(s.oldest_ms, excluded.oldest_ms),
    wait = windlass._add_counts(s.wait, excluded.wait), run = windlass._add_counts(s.run, excluded.run)";

const SAMPLED_LATELY: &str = "
SELECT DISTINCT s.event_type
FROM windlass.samples s
WHERE s.namespace = $1 AND s.span_s = 60 AND s.at > coalesce($2, now()) - interval '2 minutes'
  AND (s.depth > 0 OR s.published + s.completed + s.failed + s.retried + s.expired + s.cancelled > 0)";

const TAKE: &str = "
DELETE FROM windlass.samples WHERE ctid = ANY(ARRAY(
    SELECT s.ctid FROM windlass.samples s
    WHERE s.namespace = $1 AND s.span_s = $2 AND s.at < $3
    ORDER BY s.at, s.event_type LIMIT $4 FOR UPDATE SKIP LOCKED)) AND namespace = $1
RETURNING span_s, at, event_type, published, completed, failed, retried, expired, cancelled, depth, oldest_ms, wait,
    run";

/// The page size.
const PAGE: usize = 5_000;

/// One snapshot, so that a sample that is merged meanwhile is read once.
const ONE_MOMENT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";

// Types are not empty, so the first page begins with the first timestamp.
const SAMPLES: &str = "
SELECT span_s, at, event_type, published, completed, failed, retried, expired, cancelled, depth, oldest_ms, wait, run
FROM windlass.samples
WHERE namespace = $1 AND span_s = $2 AND at < $4 AND (at, event_type) > ($3, $5)
ORDER BY at, event_type LIMIT $6";

#[async_trait]
impl SampleStore for PgStore {
    async fn add_samples(&self, namespace: &str, rows: &[SampleRow]) -> Result<()> {
        retry_deadlocks!(async {
            let mut connection = self.reads.get().await?;
            add_on(&mut connection, namespace, rows).await?;
            connection.done();
            Ok(())
        })
    }

    async fn sampled_lately(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<String>> {
        let mut connection = self.reads.get().await?;
        let query = sqlx::query_scalar(SAMPLED_LATELY).bind(namespace).bind(now);
        let types = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(types)
    }

    async fn thin_samples(
        &self,
        namespace: &str,
        level: &ThinningLevel,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize> {
        retry_deadlocks!(async {
            let mut connection = self.reads.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            let take = sqlx::query(TAKE).bind(namespace).bind(level.span_s as i32).bind(before).bind(limit as i64);
            let old = take.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
            if let Some(into_s) = level.into_s {
                let rows = old.iter().map(sample).collect::<Result<_>>()?;
                add_on(&mut tx, namespace, &merge_samples(rows, into_s)).await?;
            }
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            Ok(old.len())
        })
    }

    async fn samples(&self, namespace: &str, mut points: SampleSeries) -> Result<SampleSeries> {
        let mut connection = self.reads.get().await?;
        let mut tx = connection.begin().await.map_err(from_sqlx)?;
        tx.execute(ONE_MOMENT).await.map_err(from_sqlx)?;
        let until = points.query.until;
        for level in THINNING_LEVELS {
            let (mut from, mut after_type) = (points.query.from, String::new());
            loop {
                let page = sqlx::query(SAMPLES).bind(namespace).bind(level.span_s as i32).bind(from).bind(until);
                let page = page.bind(&after_type).bind(PAGE as i64);
                let rows = page.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
                for row in &rows {
                    points.add(sample(row)?)?;
                }
                let Some(last) = rows.last().filter(|_| rows.len() == PAGE) else { break };
                (from, after_type) = (get(last, "at")?, get(last, "event_type")?);
            }
        }
        tx.commit().await.map_err(from_sqlx)?;
        connection.done();
        Ok(points)
    }
}

/// Rows are locked in one order.
async fn add_on(connection: &mut PgConnection, namespace: &str, rows: &[SampleRow]) -> Result<()> {
    let mut rows: Vec<&SampleRow> = rows.iter().collect();
    rows.sort_by(|a, b| (a.span_s, a.at, &a.event_type).cmp(&(b.span_s, b.at, &b.event_type)));
    let counts = |of: fn(&Counter) -> u64| rows.iter().map(|row| of(&row.counter) as i64).collect::<Vec<_>>();
    let seen = |of: fn(&Counter) -> Option<u64>| {
        rows.iter().map(|row| of(&row.counter).map(|seen| seen as i64)).collect::<Vec<_>>()
    };
    let histograms = |of: fn(&Counter) -> &Histogram| rows.iter().map(|row| text(of(&row.counter))).collect::<Vec<_>>();
    let add = sqlx::query(ADD)
        .bind(namespace)
        .bind(rows.iter().map(|row| row.span_s as i32).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.at).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.event_type.as_str()).collect::<Vec<_>>())
        .bind(counts(|counter| counter.published))
        .bind(counts(|counter| counter.completed))
        .bind(counts(|counter| counter.failed))
        .bind(counts(|counter| counter.retried))
        .bind(counts(|counter| counter.expired))
        .bind(counts(|counter| counter.cancelled))
        .bind(seen(|counter| counter.depth))
        .bind(seen(|counter| counter.oldest_ms))
        .bind(histograms(|counter| &counter.wait))
        .bind(histograms(|counter| &counter.run));
    add.execute(connection).await.map_err(from_sqlx).map(drop)
}

fn text(histogram: &Histogram) -> String {
    let counts: Vec<String> = histogram.counts().iter().map(u64::to_string).collect();
    format!("{{{}}}", counts.join(","))
}

fn sample(row: &PgRow) -> Result<SampleRow> {
    let count = |column| get::<i64>(row, column).map(i64::unsigned_abs);
    let seen = |column| get::<Option<i64>>(row, column).map(|seen| seen.map(i64::unsigned_abs));
    let histogram = |column| -> Result<Histogram> {
        let counts: Vec<i64> = get(row, column)?;
        Ok(Histogram::from_counts(counts.into_iter().map(i64::unsigned_abs).collect()))
    };
    let counter = Counter {
        published: count("published")?,
        completed: count("completed")?,
        failed: count("failed")?,
        retried: count("retried")?,
        expired: count("expired")?,
        cancelled: count("cancelled")?,
        depth: seen("depth")?,
        oldest_ms: seen("oldest_ms")?,
        wait: histogram("wait")?,
        run: histogram("run")?,
    };
    let span_s = get::<i32>(row, "span_s")?.unsigned_abs();
    Ok(SampleRow { span_s, at: get(row, "at")?, event_type: get(row, "event_type")?, counter })
}
