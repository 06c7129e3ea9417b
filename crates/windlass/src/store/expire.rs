//! Finding deliveries past their deadline, and expired leases.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::LiveDelivery;

#[async_trait]
pub(crate) trait ExpireStore {
    /// Pending deliveries whose deadline has passed.
    async fn expired_deliveries(
        &self,
        namespace: &str,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<LiveDelivery>>;

    /// Up to about `limit` deliveries of these subscriptions whose lease has expired.
    async fn expired_leases(
        &self,
        namespace: &str,
        subscriptions: &[i64],
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<LiveDelivery>>;
}
