//! Finding pending deliveries to cancel.

use async_trait::async_trait;
use chrono::DateTime;

use super::PgStore;
use super::error::from_sqlx;
use super::row::{get, live};
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::store::{CancelStore, PendingPosition};

// In the order of the index, lane by lane; in the first lane from after a position.
pub(super) const PENDING: &str = "
SELECT q.event_id, q.subscription_id, q.lane_id, q.event_type, q.lease, q.attempts, q.attempts_limit, q.retry_count, q.max_retries, q.subscription,
       q.group_id, nullif(q.ready_at, 'infinity') AS ready_at
FROM unnest($2::bigint[]) WITH ORDINALITY AS l(lane_id, n) CROSS JOIN LATERAL (
    SELECT * FROM windlass.event_queue q
    WHERE q.lane_id = l.lane_id AND q.namespace = $1 AND q.lease IS NULL AND q.event_id <= $5
      AND (q.ready_at, q.event_id) > (CASE WHEN l.n = 1 THEN coalesce($3, 'infinity') ELSE '-infinity' END::timestamptz,
                                      CASE WHEN l.n = 1 THEN $4 ELSE 0 END)
    ORDER BY q.ready_at, q.event_id LIMIT $6) AS q
LIMIT $6";

#[async_trait]
impl CancelStore for PgStore {
    async fn pending_in_lanes(
        &self,
        namespace: &str,
        lanes: &[i64],
        after: Option<PendingPosition>,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<(LiveDelivery, PendingPosition)>> {
        let (ready_at, event_id) = after.unwrap_or((Some(DateTime::UNIX_EPOCH), 0));
        let mut connection = self.maintenance.get().await?;
        let query = sqlx::query(PENDING).bind(namespace).bind(lanes).bind(ready_at).bind(event_id).bind(newest);
        let rows = query.bind(limit as i64).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        rows.iter().map(|row| Ok((live(row)?, (get(row, "ready_at")?, get(row, "event_id")?)))).collect()
    }
}
