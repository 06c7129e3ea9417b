//! Facts about the whole database for `windlass diagnose`. The methods read a bounded number of rows and no history.
//! Times are those of the database's clock.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::observe::diagnose::CheckFailure;
use crate::observe::diagnose::maintenance::{FailedTick, LateSchedule, MaintenanceTaskState};
use crate::observe::diagnose::schema::Indexes;
use crate::observe::diagnose::work::{
    BlockedGroup, MinuteSample, OldestReadyDelivery, SilentDelivery, SilentNode, SilentWorker,
};

/// The result of a check, or why it could not run.
pub(crate) type Checked<T> = Result<T, CheckFailure>;

/// The maximum number of deliveries of each lane, and of ticks of each namespace, that are read.
pub(crate) const ROWS_MAX: i64 = 1_000;

#[async_trait]
pub(crate) trait DiagnoseStore {
    /// The version of the schema, and the one that this build needs.
    async fn schema_versions(&self) -> Checked<(i64, i64)>;

    async fn indexes(&self) -> Checked<Indexes>;

    /// Deliveries whose lease expired before the first time, or whose last heartbeat was before the second.
    async fn silent_deliveries(
        &self,
        lease_expired_before: Timestamp,
        silent_before: Timestamp,
        limit: usize,
    ) -> Checked<Vec<SilentDelivery>>;

    /// Workers that hold deliveries and have sent no heartbeat for any of them since then.
    async fn silent_workers(&self, before: Timestamp, limit: usize) -> Checked<Vec<SilentWorker>>;

    /// Nodes that did not stop and have sent no heartbeat since then.
    async fn silent_nodes(&self, before: Timestamp, limit: usize) -> Checked<Vec<SilentNode>>;

    /// The first pending delivery of each lane that was ready before then; the oldest first.
    async fn waiting_since(&self, before: Timestamp, limit: usize) -> Checked<Vec<OldestReadyDelivery>>;

    /// Namespaces whose first event that is not routed yet was published before then; the oldest first.
    async fn arrived_before(&self, before: Timestamp, limit: usize) -> Checked<Vec<(String, Timestamp)>>;

    /// Groups whose first delivery will be retried after `now` while the others wait for it; those with the most
    /// waiting deliveries first.
    async fn blocked_groups(&self, now: Timestamp, limit: usize) -> Checked<Vec<BlockedGroup>>;

    /// The samples of each minute since then, in the order of time within each namespace.
    async fn minutes(&self, since: Timestamp) -> Checked<Vec<MinuteSample>>;

    async fn all_maintenance_tasks(&self) -> Checked<Vec<MaintenanceTaskState>>;

    /// Schedules with a tick from before then; the earliest first.
    async fn late_schedules(&self, before: Timestamp, limit: usize) -> Checked<Vec<LateSchedule>>;

    /// The ticks since then that failed, the newest first.
    async fn failed_ticks(&self, since: Timestamp, limit: usize) -> Checked<Vec<FailedTick>>;

    /// The number of new dead letters of each namespace since then, counted up to `limit`; only namespaces with any.
    async fn dead_since(&self, since: Timestamp, limit: usize) -> Checked<Vec<(String, u64)>>;

    /// The number of lanes of each namespace; only namespaces with any.
    async fn lane_counts(&self) -> Checked<Vec<(String, u64)>>;

    /// Namespace and name.
    async fn paused_subscriptions(&self) -> Checked<Vec<(String, String)>>;
}
