//! What is known of one delivery, and of those who ask for deliveries.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::consumers::{Consumer, ConsumerView};
use crate::observe::inspect::DeliveryView;

/// How a delivery stands, as of one moment.
#[derive(Debug, Clone)]
pub(crate) struct DeliveryState {
    pub now: Timestamp,
    pub event_type: String,
    pub tags: Vec<String>,
    pub delivery: DeliveryView,
    /// While it is live: its deadline.
    pub expires_at: Option<Timestamp>,
    /// While it waits for its group: when it is due.
    pub due_at: Option<Timestamp>,
    /// The delivery of its group that is ready or in progress, unless that is itself.
    pub ahead: Option<GroupHead>,
    /// Why it is among the dead letters, if it is.
    pub dead_because: Option<String>,
}

/// The delivery of a group that the others wait for.
#[derive(Debug, Clone)]
pub(crate) struct GroupHead {
    pub event_id: i64,
    /// Who holds it.
    pub worker_id: Option<String>,
    pub ready_at: Option<Timestamp>,
}

#[async_trait]
pub(crate) trait ExplainStore {
    /// How the event's delivery to a subscription stands; `None` if there is none.
    async fn standing(
        &self,
        namespace: &str,
        subscription: &str,
        event_id: i64,
        now: Option<Timestamp>,
    ) -> Result<Option<DeliveryState>>;

    /// Notes that a process was asked for these just now.
    async fn record_consumers(
        &self,
        namespace: &str,
        process: &str,
        consumers: &[Consumer],
        now: Option<Timestamp>,
    ) -> Result<()>;

    /// Who asked lately, by process.
    async fn consumers(&self, namespace: &str) -> Result<Vec<ConsumerView>>;

    /// Deletes at most `limit` of those who have not asked for so long; how many.
    async fn prune_consumers(
        &self,
        namespace: &str,
        kept: std::time::Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize>;
}
