//! Changes of the state of deliveries: finish, retry, release, cancel, expire. The caller has decided them.

use async_trait::async_trait;
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::{Lease, LiveDelivery};
use crate::queue::decide::{RequeueTime, Transition};
use crate::queue::outcome::{Action, Attempt, HandlerResult};
use crate::queue::wake::ReadyLane;

/// The condition under which a change is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeGuard {
    /// This lease is the current one.
    Lease(Lease),
    /// This lease is the current one, and it has expired.
    ExpiredLease(Lease),
    /// The delivery is pending: it has no lease.
    Pending,
}

/// A change of one pending or processing delivery. Nothing happens if the guard does not hold.
#[derive(Debug, Clone)]
pub(crate) struct DeliveryChange {
    pub live: LiveDelivery,
    pub guard: ChangeGuard,
    pub action: Action,
    pub transition: Transition,
    pub record: AttemptRecord,
    /// The reported results of its handlers; `results.rs` says which of them are stored.
    pub results: Vec<HandlerResult>,
    /// The worker has reported success, so the run of the delivery continues.
    pub succeeded: bool,
}

impl DeliveryChange {
    /// Whether the delivery returns to its previous position in the claim order.
    pub fn keeps_ready_time(&self) -> bool {
        matches!(self.transition, Transition::Requeue { when: RequeueTime::Unchanged, .. })
    }
}

/// Details that are stored with an attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttemptRecord {
    pub status_code: Option<i32>,
    pub execution_time_ms: Option<u64>,
    pub error: Option<String>,
    pub detail: Option<Box<RawValue>>,
}

/// The result of applying changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct AppliedChanges {
    /// One for each change; `None` if its guard did not hold.
    pub attempts: Vec<Option<Attempt>>,
    /// The lanes in which a delivery became ready, now or for later.
    pub ready_lanes: Vec<ReadyLane>,
}

#[async_trait]
pub(crate) trait TransitionStore {
    /// Applies each change whose guard holds, stores the handler results it names, and advances the groups of the changed
    /// deliveries.
    async fn transition(
        &self,
        namespace: &str,
        changes: &[DeliveryChange],
        now: Option<Timestamp>,
    ) -> Result<AppliedChanges>;
}
