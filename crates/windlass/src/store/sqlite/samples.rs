//! Samples.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, ToSql};

use super::topology::to_json;
use super::writer::Durability;
use super::{SqliteStore, row};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::samples::counter::Counter;
use crate::observe::samples::histogram::Histogram;
use crate::observe::samples::thin::{ThinningLevel, merge_samples};
use crate::observe::samples::{SampleRow, SampleSeries};
use crate::store::SampleStore;

const TAKE: &str = "
DELETE FROM samples WHERE (namespace, span_s, at, event_type) IN (
    SELECT namespace, span_s, at, event_type FROM samples
    WHERE namespace = ?1 AND span_s = ?2 AND at < ?3 ORDER BY at, event_type LIMIT ?4)
RETURNING span_s, at, event_type, published, completed, failed, retried, expired, cancelled, depth, oldest_ms, wait,
    run";

#[async_trait]
impl SampleStore for SqliteStore {
    async fn add_samples(&self, namespace: &str, rows: &[SampleRow]) -> Result<()> {
        let (namespace, rows) = (namespace.to_owned(), rows.to_vec());
        let work = move |conn: &Connection, _| add(conn, &namespace, &rows);
        // Relaxed: losing samples in a power failure is acceptable.
        self.writer.write(Durability::Relaxed, None, work).await
    }

    /// Transactions of the application add to the samples themselves, because no other writer can run meanwhile.
    async fn sampled_lately(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<String>> {
        let (namespace, now) = (namespace.to_owned(), self.now(now));
        self.read(move |conn| sampled_lately(conn, &namespace, now)).await
    }

    async fn thin_samples(
        &self,
        namespace: &str,
        level: &ThinningLevel,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize> {
        let (namespace, level, before) = (namespace.to_owned(), *level, before.timestamp_micros());
        self.write(None, move |conn, _| {
            let mut take = conn.prepare_cached(TAKE)?;
            let old = take.query_map((&namespace, level.span_s, before, limit as i64), sample)?;
            let old: Vec<SampleRow> = old.collect::<rusqlite::Result<_>>()?;
            let taken = old.len();
            if let Some(into_s) = level.into_s {
                add(conn, &namespace, &merge_samples(old, into_s))?;
            }
            Ok(taken)
        })
        .await
    }

    async fn samples(&self, namespace: &str, points: SampleSeries) -> Result<SampleSeries> {
        let namespace = namespace.to_owned();
        self.read(move |conn| samples(conn, &namespace, points)).await
    }
}

const FIND: &str = "
SELECT span_s, at, event_type, published, completed, failed, retried, expired, cancelled, depth, oldest_ms, wait, run
FROM samples WHERE namespace = ?1 AND span_s = ?2 AND at = ?3 AND event_type = ?4";

const PUT: &str = "
INSERT OR REPLACE INTO samples (namespace, span_s, at, event_type, published, completed, failed, retried, expired,
    cancelled, depth, oldest_ms, wait, run)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";

/// There is one writer at a time, so the rows do not change between reading and writing.
fn add(conn: &Connection, namespace: &str, rows: &[SampleRow]) -> Result<()> {
    let (mut find, mut put) = (conn.prepare_cached(FIND)?, conn.prepare_cached(PUT)?);
    for row in rows {
        let at = row.at.timestamp_micros();
        let found = find.query_row((namespace, row.span_s, at, &row.event_type), sample).optional()?;
        let mut sum = found.map_or_else(Counter::default, |found| found.counter);
        sum.add(&row.counter);
        let (wait, run) = (to_json(&sum.wait.counts())?, to_json(&sum.run.counts())?);
        let counts = [sum.published, sum.completed, sum.failed, sum.retried, sum.expired, sum.cancelled];
        let counts = counts.into_iter().map(Some).chain([sum.depth, sum.oldest_ms]);
        let counts: Vec<Option<i64>> = counts.map(|count| count.map(|count| count as i64)).collect();
        let mut values: Vec<&dyn ToSql> = vec![&namespace, &row.span_s, &at, &row.event_type];
        values.extend(counts.iter().map(|count| count as &dyn ToSql));
        values.extend([&wait as &dyn ToSql, &run]);
        put.execute(&values[..])?;
    }
    Ok(())
}

/// From the columns of `FIND`.
fn sample(row: &Row) -> rusqlite::Result<SampleRow> {
    let counter = Counter {
        published: row::count(row, 3)?,
        completed: row::count(row, 4)?,
        failed: row::count(row, 5)?,
        retried: row::count(row, 6)?,
        expired: row::count(row, 7)?,
        cancelled: row::count(row, 8)?,
        depth: row::count_or_null(row, 9)?,
        oldest_ms: row::count_or_null(row, 10)?,
        wait: Histogram::from_counts(row::parse_json(row, 11)?),
        run: Histogram::from_counts(row::parse_json(row, 12)?),
    };
    Ok(SampleRow { span_s: row.get(0)?, at: row::timestamp(row, 1)?, event_type: row.get(2)?, counter })
}

const SAMPLED_LATELY: &str = "
SELECT DISTINCT event_type FROM samples
WHERE namespace = ?1 AND span_s = 60 AND at > ?2 - 120 * 1000000
  AND (depth > 0 OR published + completed + failed + retried + expired + cancelled > 0)";

fn sampled_lately(conn: &Connection, namespace: &str, now: i64) -> Result<Vec<String>> {
    let mut select = conn.prepare_cached(SAMPLED_LATELY)?;
    let types = select.query_map((namespace, now), |row| row.get(0))?;
    Ok(types.collect::<rusqlite::Result<_>>()?)
}

// The primary key has them in this order.
const SAMPLES: &str = "
SELECT span_s, at, event_type, published, completed, failed, retried, expired, cancelled, depth, oldest_ms, wait, run
FROM samples WHERE namespace = ?1 AND span_s IN (60, 600, 3600) AND at >= ?2 AND at < ?3 ORDER BY span_s, at";

fn samples(conn: &Connection, namespace: &str, mut points: SampleSeries) -> Result<SampleSeries> {
    let (from, until) = (points.query.from.timestamp_micros(), points.query.until.timestamp_micros());
    let mut select = conn.prepare_cached(SAMPLES)?;
    for row in select.query_map((namespace, from, until), sample)? {
        points.add(row?)?;
    }
    Ok(points)
}
