//! Finding what ran out of time.

use rusqlite::Connection;

use super::row;
use crate::delivery::Live;
use crate::error::Result;

const RUN_OUT: &str = "
SELECT event_id, lane_id, lease, attempts, attempts_limit, retry_count, max_retries, subscription, group_id, ready_at
FROM event_queue INDEXED BY event_queue_held
WHERE lane_id = ?1 AND lease IS NOT NULL AND lease_expires_at <= ?2
ORDER BY ready_at, event_id LIMIT ?3";

pub(super) fn run_out(conn: &Connection, lanes: &[i64], limit: usize, now: i64) -> Result<Vec<Live>> {
    let mut select = conn.prepare_cached(RUN_OUT)?;
    let mut found: Vec<(i64, Live)> = Vec::new();
    for lane_id in lanes {
        let mut rows = select.query((lane_id, now, limit as i64))?;
        while let Some(row) = rows.next()? {
            found.push((row.get(9)?, row::live(row)?));
        }
    }
    found.sort_by_key(|(ready_at, live)| (*ready_at, live.event_id));
    found.truncate(limit);
    Ok(found.into_iter().map(|(_, live)| live).collect())
}

const EXPIRED: &str = "
SELECT q.event_id, q.lane_id, q.lease, q.attempts, q.attempts_limit, q.retry_count, q.max_retries, q.subscription,
       q.group_id
FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_deadline
WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL AND q.expires_at <= ?2
LIMIT ?3";

pub(super) fn expired(conn: &Connection, namespace: &str, limit: usize, now: i64) -> Result<Vec<Live>> {
    let mut select = conn.prepare_cached(EXPIRED)?;
    let found = select.query_map((namespace, now, limit as i64), row::live)?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}
