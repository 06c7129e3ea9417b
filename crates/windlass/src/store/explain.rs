//! Explaining one delivery, and recording the consumers that request deliveries.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::consumers::{Consumer, ConsumerView};
use crate::observe::inspect::DeliveryView;

/// The state of a delivery, from one snapshot.
#[derive(Debug, Clone)]
pub(crate) struct DeliveryState {
    pub now: Timestamp,
    pub event_type: String,
    pub tags: Vec<String>,
    pub delivery: DeliveryView,
    /// Its deadline, while it is pending or processing.
    pub expires_at: Option<Timestamp>,
    /// When it is due, while it waits for its group.
    pub due_at: Option<Timestamp>,
    /// The other delivery of its group that is ready or in progress, if any.
    pub ahead: Option<GroupHead>,
    /// Why it is a dead letter, if it is one.
    pub dead_because: Option<String>,
}

/// The delivery of a group that the others wait for.
#[derive(Debug, Clone)]
pub(crate) struct GroupHead {
    pub event_id: i64,
    /// The worker that holds it.
    pub worker_id: Option<String>,
    pub ready_at: Option<Timestamp>,
}

#[async_trait]
pub(crate) trait ExplainStore {
    /// The state of the event's delivery to a subscription; `None` if there is none.
    async fn delivery_state(
        &self,
        namespace: &str,
        subscription: &str,
        event_id: i64,
        now: Option<Timestamp>,
    ) -> Result<Option<DeliveryState>>;

    /// Records that a process has just received requests from these consumers.
    async fn record_consumers(
        &self,
        namespace: &str,
        process: &str,
        consumers: &[Consumer],
        now: Option<Timestamp>,
    ) -> Result<()>;

    /// The consumers with recent requests, by process.
    async fn consumers(&self, namespace: &str) -> Result<Vec<ConsumerView>>;

    /// Deletes up to `limit` consumers without a request for this long. Returns how many.
    async fn prune_consumers(
        &self,
        namespace: &str,
        kept: std::time::Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize>;
}
