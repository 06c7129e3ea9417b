//! Recently published events and recently ended attempts.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::{SqliteStore, row};
use crate::error::Result;
use crate::store::{ActivitySince, ActivityStore, EventHead, RecentActivity};

#[async_trait]
impl ActivityStore for SqliteStore {
    async fn recent(&self, namespace: &str, since: &ActivitySince, limit: usize) -> Result<RecentActivity> {
        let (namespace, since) = (namespace.to_owned(), *since);
        self.read(move |conn| recent(conn, &namespace, &since, limit)).await
    }

    async fn heads(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<EventHead>> {
        let (namespace, ids) = (namespace.to_owned(), event_ids.to_vec());
        self.read(move |conn| heads(conn, &namespace, &ids)).await
    }
}

/// Reads both from one snapshot, so that the event of every attempt is visible.
fn recent(conn: &Connection, namespace: &str, since: &ActivitySince, limit: usize) -> Result<RecentActivity> {
    let mut published = conn.prepare_cached(PUBLISHED)?;
    let mut ended = conn.prepare_cached(ENDED)?;
    let published = published.query_map((namespace, since.event_id, limit as i64), head)?;
    let ended = ended.query_map((namespace, since.ended.0, since.ended.1, limit as i64), |row| {
        Ok((row.get(0)?, row::attempt(row, 1)?))
    })?;
    Ok(RecentActivity {
        published: published.collect::<rusqlite::Result<_>>()?,
        ended: ended.collect::<rusqlite::Result<_>>()?,
    })
}

const PUBLISHED: &str = "
SELECT id, event_type, title, tags, created_at FROM events INDEXED BY events_by_namespace
WHERE namespace = ?1 AND id > ?2 ORDER BY id DESC LIMIT ?3";

fn head(row: &Row) -> rusqlite::Result<EventHead> {
    Ok(EventHead {
        event_id: row.get(0)?,
        event_type: row.get(1)?,
        title: row.get(2)?,
        tags: row.get(3)?,
        created_at: row::timestamp(row, 4)?,
    })
}

/// Rows are appended in the order of time, so the rows since a time are the last ones. A rowid may be reused after the
/// last rows were deleted; together with the time it is unique.
const ENDED: &str = "
SELECT rowid, event_id, subscription, attempt, worker_id, action, status_code, execution_time_ms, error_message,
       next_retry_at, retry_count, max_retries, finished_at
FROM event_attempts
WHERE rowid > coalesce((SELECT rowid FROM event_attempts WHERE finished_at < ?2 ORDER BY rowid DESC LIMIT 1), 0)
  AND namespace = ?1 AND (finished_at, rowid) > (?2, ?3)
ORDER BY rowid DESC LIMIT ?4";

const HEAD: &str = "SELECT id, event_type, title, tags, created_at FROM events WHERE id = ?2 AND namespace = ?1";

fn heads(conn: &Connection, namespace: &str, event_ids: &[i64]) -> Result<Vec<EventHead>> {
    let mut select = conn.prepare_cached(HEAD)?;
    let mut heads = Vec::with_capacity(event_ids.len());
    for event_id in event_ids {
        heads.extend(select.query_row((namespace, event_id), head).optional()?);
    }
    Ok(heads)
}
