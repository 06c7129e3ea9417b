//! Counts, and who holds what for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{Connection, Row};

use super::row;
use crate::clock::micros;
use crate::delivery::Status;
use crate::error::Result;
use crate::inspect::{StatRow, StuckDelivery, WorkerView};

const STUCK: &str = "
SELECT q.event_id, l.event_type, q.subscription, q.worker_id, q.attempts, q.picked_at, q.started_at, q.updated_at,
       q.lease_expires_at
FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_held
WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NOT NULL AND q.picked_at < ?2
ORDER BY q.picked_at, q.event_id LIMIT ?3";

pub(super) fn stuck(
    conn: &Connection,
    namespace: &str,
    older_than: Duration,
    limit: usize,
    now: i64,
) -> Result<Vec<StuckDelivery>> {
    let before = now.saturating_sub(micros(older_than));
    let mut select = conn.prepare_cached(STUCK)?;
    let found = select.query_map((namespace, before, limit as i64), |row| {
        Ok(StuckDelivery {
            event_id: row.get(0)?,
            event_type: row.get(1)?,
            subscription: row.get(2)?,
            worker_id: row.get(3)?,
            attempts: row.get(4)?,
            picked_at: row::instant(row, 5)?,
            started_at: row::instant_if_any(row, 6)?,
            updated_at: row::instant(row, 7)?,
            lease_expires_at: row::instant(row, 8)?,
        })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

const HOLDERS: &str = "
SELECT q.worker_id, max(q.updated_at), count(*), min(q.picked_at)
FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_held
WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NOT NULL
GROUP BY q.worker_id";
/// Rows are appended in the order of time, so those since an instant are the last ones. What others did
/// with a worker's delivery is no sign of that worker.
const FINISHERS: &str = "
SELECT worker_id, max(finished_at), 0, NULL FROM event_attempts
WHERE rowid > coalesce((SELECT rowid FROM event_attempts WHERE finished_at < ?2 ORDER BY rowid DESC LIMIT 1), 0)
  AND namespace = ?1 AND worker_id IS NOT NULL
  AND action IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'FAILED', 'SNOOZED', 'RELEASED')
GROUP BY worker_id";

pub(super) fn workers(conn: &Connection, namespace: &str, since: i64) -> Result<Vec<WorkerView>> {
    let mut workers = BTreeMap::new();
    let mut select = conn.prepare_cached(HOLDERS)?;
    for holder in select.query_map([namespace], worker)? {
        let holder = holder?;
        workers.insert(holder.worker_id.clone(), holder);
    }
    let mut select = conn.prepare_cached(FINISHERS)?;
    for finisher in select.query_map((namespace, since), worker)? {
        let finisher = finisher?;
        let seen_at = finisher.last_seen_at;
        let known = workers.entry(finisher.worker_id.clone()).or_insert(finisher);
        known.last_seen_at = known.last_seen_at.max(seen_at);
    }
    Ok(workers.into_values().collect())
}

fn worker(row: &Row) -> rusqlite::Result<WorkerView> {
    Ok(WorkerView {
        worker_id: row.get(0)?,
        last_seen_at: row::instant(row, 1)?,
        held: row::count(row, 2)?,
        oldest_picked_at: row::instant_if_any(row, 3)?,
        stale: false,
    })
}

const FREE: &str = "
SELECT l.subscription, l.event_type, 'PENDING', count(*), min(q.ready_at)
FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_free
WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL
GROUP BY l.subscription, l.event_type";
const HELD: &str = "
SELECT l.subscription, l.event_type, 'PROCESSING', count(*), min(q.picked_at)
FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_held
WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NOT NULL
GROUP BY l.subscription, l.event_type";
const DEAD: &str = "
SELECT d.subscription, coalesce(l.event_type, e.event_type, '') AS event_type, d.status, count(*), min(d.failed_at)
FROM dead_letters d LEFT JOIN lanes l ON l.lane_id = d.lane_id
                    LEFT JOIN events e ON l.lane_id IS NULL AND e.id = d.event_id
WHERE d.namespace = ?1
GROUP BY d.subscription, 2, d.status";
const ENDED: &str = "
SELECT a.subscription, coalesce(l.event_type, e.event_type, '') AS event_type, a.action, count(*), min(a.finished_at)
FROM event_attempts a LEFT JOIN lanes l ON l.lane_id = a.lane_id
                      LEFT JOIN events e ON l.lane_id IS NULL AND e.id = a.event_id
WHERE a.rowid > coalesce((SELECT rowid FROM event_attempts WHERE finished_at < ?2 ORDER BY rowid DESC LIMIT 1), 0)
  AND a.namespace = ?1 AND a.action IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'CANCELLED')
GROUP BY a.subscription, 2, a.action";

pub(super) fn stats(conn: &Connection, namespace: &str, since: i64) -> Result<Vec<StatRow>> {
    let mut stats = Vec::new();
    for sql in [FREE, HELD, DEAD] {
        stats.append(&mut count(conn, sql, [namespace])?);
    }
    stats.append(&mut count(conn, ENDED, (namespace, since))?);
    let order = |row: &StatRow| (row.subscription.clone(), row.event_type.clone(), row.status);
    stats.sort_by_cached_key(order);
    Ok(stats)
}

fn count(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<Vec<StatRow>> {
    let mut select = conn.prepare_cached(sql)?;
    let found = select.query_map(params, |row| {
        Ok(StatRow {
            subscription: row.get(0)?,
            event_type: row.get(1)?,
            status: row::word::<Status>(row, 2)?,
            count: row::count(row, 3)?,
            oldest_at: row::instant_if_any(row, 4)?,
        })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}
