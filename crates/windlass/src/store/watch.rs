//! The state that waiting claims depend on.

use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;

/// The subscriptions and lanes that waiting claims read.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatchRequest {
    /// Subscriptions with claims that read [`ClaimSource::Subscription`](super::ClaimSource), and the event after which they read in publish
    /// order.
    pub subscriptions: Vec<(i64, i64)>,
    /// Lanes of claims that read [`ClaimSource::Lanes`](super::ClaimSource), sorted.
    pub lanes: Vec<i64>,
}

/// The state of a namespace as waiting claims see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatchResult {
    pub version: i64,
    /// The number of the newest lane; 0 if there is none.
    pub newest_lane: i64,
    /// The subscriptions that have a delivery to claim.
    pub ready_subscriptions: Vec<i64>,
    /// The lanes that have a delivery to claim.
    pub ready_lanes: Vec<i64>,
    /// How long until a delivery becomes ready or a lease must be checked, by the database's clock.
    pub next_in: Option<Duration>,
    /// Leases of the namespace have expired.
    pub leases_due: bool,
    /// As [`Claimed::connects`](super::Claimed).
    pub connects: u64,
}

#[async_trait]
pub(crate) trait WatchStore {
    /// Checks which waiting claims would find a delivery. Costs as much as there are lanes with deliveries among the
    /// requested ones, however many are empty.
    async fn poll_ready(&self, namespace: &str, request: &WatchRequest, now: Option<Timestamp>) -> Result<WatchResult>;
}
