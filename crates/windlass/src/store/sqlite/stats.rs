//! Counts, and who holds what for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{Connection, Row};

use super::row;
use crate::clock::{from_micros, micros};
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::inspect::{StatRow, StuckDelivery, WorkerView};

const STUCK: &str = "
SELECT q.event_id, q.event_type, q.subscription, q.worker_id, q.attempts, q.picked_at, q.started_at, q.updated_at,
       q.lease_expires_at
FROM subscriptions s CROSS JOIN event_queue q INDEXED BY event_queue_leased
WHERE s.namespace = ?1 AND q.subscription_id = s.subscription_id AND q.lease IS NOT NULL AND q.picked_at < ?2
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
FROM subscriptions s CROSS JOIN event_queue q INDEXED BY event_queue_leased
WHERE s.namespace = ?1 AND q.subscription_id = s.subscription_id AND q.lease IS NOT NULL
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
SELECT subscription, event_type, status, failed_at FROM dead_letters INDEXED BY dead_letters_by_event
WHERE namespace = ?1";
const ENDED: &str = "
SELECT subscription, event_type, action, finished_at FROM event_attempts
WHERE rowid > coalesce((SELECT rowid FROM event_attempts WHERE finished_at < ?2 ORDER BY rowid DESC LIMIT 1), 0)
  AND namespace = ?1 AND action IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'CANCELLED')";

/// Dead letters, and the deliveries that ended since then.
pub(super) fn ended(conn: &Connection, namespace: &str, since: i64) -> Result<Vec<StatRow>> {
    let mut stats = count_by_type(conn, DEAD, [namespace])?;
    stats.append(&mut count_by_type(conn, ENDED, (namespace, since))?);
    Ok(stats)
}

/// How many deliveries ended with a status, and when the first of them did.
struct Count {
    count: u64,
    oldest_at: i64,
}

/// By subscription, type and status.
type Counts = BTreeMap<String, BTreeMap<String, BTreeMap<Status, Count>>>;

/// Counts here instead of with GROUP BY, for which SQLite would sort all rows.
fn count_by_type(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<Vec<StatRow>> {
    let mut counts = Counts::new();
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params)?;
    while let Some(row) = rows.next()? {
        count(&mut counts, row)?;
    }
    let mut stats = Vec::new();
    for (subscription, by_type) in &counts {
        for (event_type, by_status) in by_type {
            stats.extend(by_status.iter().map(|(status, Count { count, oldest_at })| StatRow {
                subscription: subscription.clone(),
                event_type: event_type.clone(),
                status: *status,
                count: *count,
                oldest_at: Some(from_micros(*oldest_at)),
            }));
        }
    }
    Ok(stats)
}

/// From the columns of `DEAD` or `ENDED`. Allocates only for a new subscription or type.
fn count(counts: &mut Counts, row: &Row) -> rusqlite::Result<()> {
    let (subscription, event_type) = (row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?);
    let (status, at) = (row::word(row, 2)?, row.get(3)?);
    if !counts.get(subscription).is_some_and(|by_type| by_type.contains_key(event_type)) {
        counts.entry(subscription.to_owned()).or_default().entry(event_type.to_owned()).or_default();
    }
    let by_status = counts.get_mut(subscription).and_then(|by_type| by_type.get_mut(event_type));
    if let Some(by_status) = by_status {
        let count = by_status.entry(status).or_insert(Count { count: 0, oldest_at: at });
        count.count += 1;
        count.oldest_at = count.oldest_at.min(at);
    }
    Ok(())
}
