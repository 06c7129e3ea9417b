//! Leased deliveries: finding them, recording the start of work, renewing leases.

use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::{Lease, LiveDelivery};
use crate::queue::outcome::Attempt;

/// A delivery, and the holder that the caller expects.
#[derive(Debug, Clone)]
pub(crate) struct HeldDelivery {
    pub event_id: i64,
    pub subscription: String,
    pub by: HeldBy,
}

#[derive(Debug, Clone)]
pub(crate) enum HeldBy {
    Lease(Lease),
    Worker(String),
    /// Any holder, or none: for admin actions.
    Anyone,
}

#[async_trait]
pub(crate) trait HeartbeatStore {
    /// The delivery that each holder names; `None` if it has another holder or has ended.
    async fn held(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<LiveDelivery>>>;

    /// The newest attempt that each holder ended (for `Anyone`: the newest of all), if any.
    async fn recorded(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<Attempt>>>;

    /// Records that work began. Returns the time at which it began, or `None` if the lease is lost.
    async fn start(
        &self,
        namespace: &str,
        live: &[LiveDelivery],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>>;

    /// Renews each lease for this duration from now on. Returns its new end, or `None` if the lease is lost.
    async fn extend(
        &self,
        namespace: &str,
        live: &[(LiveDelivery, Duration)],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>>;
}
