//! Finding pending deliveries to cancel.

use async_trait::async_trait;

use super::SqliteStore;
use super::row::{self, INFINITY};
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::store::{CancelStore, PendingPosition};

const PENDING: &str = "
SELECT event_id, subscription_id, lane_id, event_type, lease, attempts, attempts_limit, retry_count, max_retries,
       subscription, group_id, ready_at
FROM event_queue INDEXED BY event_queue_lane
WHERE lane_id = ?1 AND lease IS NULL AND event_id <= ?2 AND (ready_at, event_id) > (?3, ?4)
ORDER BY ready_at, event_id LIMIT ?5";

#[async_trait]
impl CancelStore for SqliteStore {
    async fn pending_in_lanes(
        &self,
        _namespace: &str,
        lanes: &[i64],
        after: Option<PendingPosition>,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<(LiveDelivery, PendingPosition)>> {
        let lanes = lanes.to_vec();
        self.read(move |conn| {
            let (mut ready_at, mut event_id) =
                after.map_or((0, 0), |(at, id)| (row::micros(at).unwrap_or(INFINITY), id));
            let mut select = conn.prepare_cached(PENDING)?;
            let mut found = Vec::new();
            for lane_id in &lanes {
                let left = (limit - found.len()) as i64;
                let mut rows = select.query((lane_id, newest, ready_at, event_id, left))?;
                while let Some(row) = rows.next()? {
                    let live = row::live(row)?;
                    let place = (row::timestamp_or_null(row, 11)?, live.event_id);
                    found.push((live, place));
                }
                if found.len() == limit {
                    break;
                }
                (ready_at, event_id) = (0, 0);
            }
            Ok(found)
        })
        .await
    }
}
