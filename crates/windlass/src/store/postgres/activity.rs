//! Recently published events and recently ended attempts.

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::error::from_sqlx;
use super::row::{attempt, get};
use crate::clock::from_micros;
use crate::error::Result;
use crate::store::{ActivitySince, ActivityStore, EventHead, RecentActivity};

pub(super) const ENDED: &str = "
SELECT a.id, a.event_id, a.subscription, a.attempt, a.worker_id, a.action, a.status_code, a.execution_time_ms,
       a.error_message, a.next_retry_at, a.retry_count, a.max_retries, a.finished_at
FROM windlass.event_attempts a
WHERE a.namespace = $1 AND a.finished_at >= $2 AND (a.finished_at, a.id) > ($2, $3)
ORDER BY a.finished_at DESC, a.id DESC LIMIT $4";

pub(super) const PUBLISHED: &str = "
SELECT e.id, e.event_type, e.title, e.tags, e.created_at FROM windlass.events e
WHERE e.namespace = $1 AND e.id > $2 ORDER BY e.id DESC LIMIT $3";

const HEADS: &str = "
SELECT e.id, e.event_type, e.title, e.tags, e.created_at
FROM unnest($2::bigint[]) AS i(id)
CROSS JOIN LATERAL (SELECT * FROM windlass.events e WHERE e.id = i.id AND e.namespace = $1 LIMIT 1) AS e";

#[async_trait]
impl ActivityStore for PgStore {
    /// Reads attempts first, so that the events of all of them are visible.
    async fn recent(&self, namespace: &str, since: &ActivitySince, limit: usize) -> Result<RecentActivity> {
        // A connection of the hot path: its plans do not depend on statistics.
        let mut connection = self.maintenance.get().await?;
        let (at, id) = since.ended;
        let query = sqlx::query(ENDED).bind(namespace).bind(from_micros(at)).bind(id).bind(limit as i64);
        let ended = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        let query = sqlx::query(PUBLISHED).bind(namespace).bind(since.event_id).bind(limit as i64);
        let published = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let with_id = |row: &PgRow| Ok((get(row, "id")?, attempt(row)?));
        Ok(RecentActivity {
            published: published.iter().map(head).collect::<Result<_>>()?,
            ended: ended.iter().map(with_id).collect::<Result<_>>()?,
        })
    }

    async fn heads(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<EventHead>> {
        let mut connection = self.maintenance.get().await?;
        let query = sqlx::query(HEADS).bind(namespace).bind(event_ids);
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        rows.iter().map(head).collect()
    }
}

fn head(row: &PgRow) -> Result<EventHead> {
    Ok(EventHead {
        event_id: get(row, "id")?,
        event_type: get(row, "event_type")?,
        title: get(row, "title")?,
        tags: get(row, "tags")?,
        created_at: get(row, "created_at")?,
    })
}
