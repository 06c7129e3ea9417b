//! What stores tell of the whole database when its health is looked into. They read a bounded number of rows, and no
//! history; instants are those of the database's clock.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::observe::diagnose::CheckFailure;
use crate::observe::diagnose::schema::Indexes;
use crate::observe::diagnose::upkeep::{FailedTick, LateSchedule, MaintenanceFact};
use crate::observe::diagnose::work::{BlockedGroup, Minute, SilentDelivery, SilentNode, SilentWorker, Waiting};

/// What is told, or why it cannot be.
pub(crate) type Checked<T> = Result<T, CheckFailure>;

/// How many deliveries of each lane, and ticks of each namespace, are looked at.
pub(crate) const ROWS_MAX: i64 = 1_000;

#[async_trait]
pub(crate) trait DiagnoseStore {
    /// The version of the schema, and the one that this build needs.
    async fn schema_versions(&self) -> Checked<(i64, i64)>;

    async fn indexes(&self) -> Checked<Indexes>;

    /// Deliveries whose lease ran out before the one instant, or that were not heard of since the other.
    async fn held_silently(
        &self,
        lease_expired_before: Timestamp,
        silent_before: Timestamp,
        limit: usize,
    ) -> Checked<Vec<SilentDelivery>>;

    /// Workers that hold deliveries, none of which was heard of since then.
    async fn silent_workers(&self, before: Timestamp, limit: usize) -> Checked<Vec<SilentWorker>>;

    /// Nodes that did not stop and were not heard of since then.
    async fn silent_nodes(&self, before: Timestamp, limit: usize) -> Checked<Vec<SilentNode>>;

    /// The first of each lane that is free and was ready before then; the oldest first.
    async fn waiting_since(&self, before: Timestamp, limit: usize) -> Checked<Vec<Waiting>>;

    /// Namespaces whose first event that is not routed yet was published before then; the oldest first.
    async fn arrived_before(&self, before: Timestamp, limit: usize) -> Checked<Vec<(String, Timestamp)>>;

    /// Groups whose first delivery is to be tried again after `now`, while the others wait for it; those with the most
    /// behind it first.
    async fn blocked_groups(&self, now: Timestamp, limit: usize) -> Checked<Vec<BlockedGroup>>;

    /// What was counted in each minute since then, in the order of time within each namespace.
    async fn minutes(&self, since: Timestamp) -> Checked<Vec<Minute>>;

    async fn all_maintenance_tasks(&self) -> Checked<Vec<MaintenanceFact>>;

    /// Schedules with a tick from before then; the earliest first.
    async fn late_schedules(&self, before: Timestamp, limit: usize) -> Checked<Vec<LateSchedule>>;

    /// Those of the last ticks since then that failed, the newest first.
    async fn failed_ticks(&self, since: Timestamp, limit: usize) -> Checked<Vec<FailedTick>>;

    /// How many dead letters each namespace got since then, counted up to `limit`; only those that got any.
    async fn dead_since(&self, since: Timestamp, limit: usize) -> Checked<Vec<(String, u64)>>;

    /// How many lanes each namespace has; only those that have any.
    async fn lane_counts(&self) -> Checked<Vec<(String, u64)>>;

    /// Namespace and name.
    async fn paused_subscriptions(&self) -> Checked<Vec<(String, String)>>;
}
