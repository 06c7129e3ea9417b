//! Samples.

use rusqlite::{Connection, OptionalExtension, Row, ToSql};

use super::row;
use super::topology::to_json;
use crate::error::Result;
use crate::observe::samples::counter::Counter;
use crate::observe::samples::histogram::Histogram;
use crate::observe::samples::thin::{Level, merged};
use crate::observe::samples::{Points, SampleRow};

const FIND: &str = "
SELECT span_s, at, event_type, published, completed, failed, retried, expired, cancelled, depth, oldest_ms, wait, run
FROM samples WHERE namespace = ?1 AND span_s = ?2 AND at = ?3 AND event_type = ?4";

const PUT: &str = "
INSERT OR REPLACE INTO samples (namespace, span_s, at, event_type, published, completed, failed, retried, expired,
    cancelled, depth, oldest_ms, wait, run)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";

/// Only one writes at a time: what was found is still so.
pub(super) fn add(conn: &Connection, namespace: &str, rows: &[SampleRow]) -> Result<()> {
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
        depth: row::count_if_any(row, 9)?,
        oldest_ms: row::count_if_any(row, 10)?,
        wait: Histogram::from_counts(row::parsed(row, 11)?),
        run: Histogram::from_counts(row::parsed(row, 12)?),
    };
    Ok(SampleRow { span_s: row.get(0)?, at: row::instant(row, 1)?, event_type: row.get(2)?, counter })
}

const SAMPLED_LATELY: &str = "
SELECT DISTINCT event_type FROM samples
WHERE namespace = ?1 AND span_s = 60 AND at > ?2 - 120 * 1000000
  AND (depth > 0 OR published + completed + failed + retried + expired + cancelled > 0)";

pub(super) fn sampled_lately(conn: &Connection, namespace: &str, now: i64) -> Result<Vec<String>> {
    let mut select = conn.prepare_cached(SAMPLED_LATELY)?;
    let types = select.query_map((namespace, now), |row| row.get(0))?;
    Ok(types.collect::<rusqlite::Result<_>>()?)
}

const TAKE: &str = "
DELETE FROM samples WHERE (namespace, span_s, at, event_type) IN (
    SELECT namespace, span_s, at, event_type FROM samples
    WHERE namespace = ?1 AND span_s = ?2 AND at < ?3 ORDER BY at, event_type LIMIT ?4)
RETURNING span_s, at, event_type, published, completed, failed, retried, expired, cancelled, depth, oldest_ms, wait,
    run";

pub(super) fn thin(conn: &Connection, namespace: &str, level: &Level, before: i64, limit: usize) -> Result<usize> {
    let mut take = conn.prepare_cached(TAKE)?;
    let old = take.query_map((namespace, level.span_s, before, limit as i64), sample)?;
    let old: Vec<SampleRow> = old.collect::<rusqlite::Result<_>>()?;
    let taken = old.len();
    if let Some(into_s) = level.into_s {
        add(conn, namespace, &merged(old, into_s))?;
    }
    Ok(taken)
}

// The primary key has them in this order.
const SAMPLES: &str = "
SELECT span_s, at, event_type, published, completed, failed, retried, expired, cancelled, depth, oldest_ms, wait, run
FROM samples WHERE namespace = ?1 AND span_s IN (60, 600, 3600) AND at >= ?2 AND at < ?3 ORDER BY span_s, at";

pub(super) fn samples(conn: &Connection, namespace: &str, mut points: Points) -> Result<Points> {
    let (from, until) = (points.wanted.from.timestamp_micros(), points.wanted.until.timestamp_micros());
    let mut select = conn.prepare_cached(SAMPLES)?;
    for row in select.query_map((namespace, from, until), sample)? {
        points.add(row?)?;
    }
    Ok(points)
}
