//! Counts, and who holds what for how long.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row};

use super::row;
use crate::clock::{from_micros, micros};
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

const DEAD: &str = "
SELECT lane_id, status, failed_at, event_id FROM dead_letters INDEXED BY dead_letters_by_event WHERE namespace = ?1";
const ENDED: &str = "
SELECT lane_id, action, finished_at, event_id FROM event_attempts
WHERE rowid > coalesce((SELECT rowid FROM event_attempts WHERE finished_at < ?2 ORDER BY rowid DESC LIMIT 1), 0)
  AND namespace = ?1 AND action IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'CANCELLED')";

/// Dead letters, and what ended since then.
pub(super) fn ended(conn: &Connection, namespace: &str, since: i64) -> Result<Vec<StatRow>> {
    let mut stats = count_by_lane(conn, DEAD, [namespace])?;
    stats.append(&mut count_by_lane(conn, ENDED, (namespace, since))?);
    Ok(stats)
}

/// How many of one lane ended in one way, since when, and one of them.
struct Tally {
    count: u64,
    oldest_at: i64,
    event_id: i64,
}

/// Counts here what may be many: SQLite would sort them all first.
fn count_by_lane(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<Vec<StatRow>> {
    let mut tallies: HashMap<(i64, Status), Tally> = HashMap::new();
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params)?;
    while let Some(row) = rows.next()? {
        let (key, at) = ((row.get(0)?, row::word(row, 1)?), row.get(2)?);
        let tally = match tallies.get_mut(&key) {
            Some(tally) => tally,
            None => tallies.entry(key).or_insert(Tally { count: 0, oldest_at: at, event_id: row.get(3)? }),
        };
        tally.count += 1;
        tally.oldest_at = tally.oldest_at.min(at);
    }
    let mut stats: BTreeMap<(String, String, Status), StatRow> = BTreeMap::new();
    for ((lane_id, status), tally) in tallies {
        let (subscription, event_type) = kind(conn, lane_id, tally.event_id)?;
        let oldest_at = Some(from_micros(tally.oldest_at));
        let key = (subscription.clone(), event_type.clone(), status);
        let row = stats.entry(key).or_insert(StatRow { subscription, event_type, status, count: 0, oldest_at });
        row.count += tally.count;
        row.oldest_at = row.oldest_at.min(oldest_at);
    }
    Ok(stats.into_values().collect())
}

const LANE: &str = "SELECT subscription, event_type FROM lanes WHERE lane_id = ?1";
const OF_REMOVED: &str = "
SELECT a.subscription, coalesce(e.event_type, '') FROM event_attempts a LEFT JOIN events e ON e.id = a.event_id
WHERE a.event_id = ?2 AND a.lane_id = ?1 LIMIT 1";

/// Subscription and type of a lane. The lanes of subscriptions that were removed are gone; their events are not.
fn kind(conn: &Connection, lane_id: i64, event_id: i64) -> Result<(String, String)> {
    let of_lane = conn.prepare_cached(LANE)?.query_row([lane_id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    match of_lane {
        Some(of_lane) => Ok(of_lane),
        None => {
            let names = |row: &Row| Ok((row.get(0)?, row.get(1)?));
            Ok(conn.prepare_cached(OF_REMOVED)?.query_row((lane_id, event_id), names).optional()?.unwrap_or_default())
        }
    }
}
