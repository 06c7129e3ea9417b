//! How live deliveries stand, by type.

use rusqlite::Connection;

use super::row;
use crate::backlog::Backlog;
use crate::error::Result;

// Those that are ready, and they may be many, are counted in the index alone.
const BACKLOG: &str = "
SELECT event_type, sum(ready), sum(running), sum(delayed), sum(retrying), sum(behind), min(ready_since) FROM (
    SELECT l.event_type, count(*) AS ready, 0 AS running, 0 AS delayed, 0 AS retrying, 0 AS behind,
           min(q.ready_at) AS ready_since
    FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_free
    WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at <= ?2
    GROUP BY l.lane_id
    UNION ALL
    SELECT l.event_type, 0, 0, sum(q.retry_count = 0), sum(q.retry_count > 0), 0, NULL
    FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_free
    WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at > ?2 AND q.ready_at < ?3
    GROUP BY l.lane_id
    UNION ALL
    SELECT l.event_type, 0, 0, 0, 0, count(*), NULL
    FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_free
    WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at = ?3
    GROUP BY l.lane_id
    UNION ALL
    SELECT l.event_type, 0, count(*), 0, 0, 0, NULL
    FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_held
    WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NOT NULL
    GROUP BY l.lane_id)
GROUP BY event_type";

pub(super) fn backlog(conn: &Connection, namespace: &str, now: i64) -> Result<Vec<Backlog>> {
    let mut select = conn.prepare_cached(BACKLOG)?;
    let backlog = select.query_map((namespace, now, row::INFINITY), |row| {
        Ok(Backlog {
            event_type: row.get(0)?,
            ready: row::count(row, 1)?,
            running: row::count(row, 2)?,
            delayed: row::count(row, 3)?,
            retrying: row::count(row, 4)?,
            behind_group: row::count(row, 5)?,
            ready_since: row::instant_if_any(row, 6)?,
        })
    })?;
    Ok(backlog.collect::<rusqlite::Result<_>>()?)
}
