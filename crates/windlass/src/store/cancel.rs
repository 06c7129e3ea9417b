//! Finding pending deliveries to cancel.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::LiveDelivery;

/// A position in a lane: the ready time of a delivery (`None` while it waits for its group) and its event.
pub(crate) type PendingPosition = (Option<Timestamp>, i64);

#[async_trait]
pub(crate) trait CancelStore {
    /// Pending deliveries in these lanes of events up to `newest`: lane by lane, in the order of each lane, after a
    /// position in the first lane.
    async fn pending_in_lanes(
        &self,
        namespace: &str,
        lanes: &[i64],
        after: Option<PendingPosition>,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<(LiveDelivery, PendingPosition)>>;
}
