//! Monthly partitions of history. Retention drops a month as a whole. Only PostgreSQL has them.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::months::HistoryPartition;
use crate::maintenance::retention::RetentionRules;

/// The retention rules of all namespaces of the database.
pub(crate) struct AllRules {
    pub of: Vec<(String, RetentionRules)>,
    /// Increases with every change of a namespace.
    pub version: i64,
}

/// The condition under which rows of a month may be dropped.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "only PostgreSQL has months"))]
pub(crate) struct ExpiredMonths {
    /// The rows ended before this time
    pub before: Timestamp,
    /// and do not belong to these namespaces.
    pub spared: Vec<String>,
    /// The version of the rules that this is based on.
    pub version: i64,
}

/// The result of dropping a month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "only PostgreSQL has months"))]
pub(crate) enum DropOutcome {
    /// The partition is detached, or was before.
    Dropped,
    /// The table is in use. The statement does not wait for long, because others would wait behind it.
    Busy,
    /// Too many rows must be kept to move them quickly.
    TooMuchStays,
    /// The retention rules have changed.
    Outdated,
    /// The database user lacks the permission.
    Refused,
}

/// Monthly partitions of the whole database. Each is dropped as a whole.
#[async_trait]
pub(crate) trait MonthStore: Send + Sync {
    /// The retention rules of each namespace and its subscriptions.
    async fn rules(&self) -> Result<AllRules>;

    /// The existing partitions.
    async fn months(&self) -> Result<Vec<HistoryPartition>>;

    /// Creates the partition if that is possible within milliseconds. Without it, the default partition stores its
    /// rows. `ahead`: the month has no rows yet. Returns whether the partition exists.
    async fn add_month(&self, part: HistoryPartition, ahead: bool) -> Result<bool>;

    /// Detaches the partition if that is possible within milliseconds. Keeps events that are in the queue, are dead
    /// letters or ended since `before`, the attempts of such deliveries, and all rows of the spared namespaces.
    async fn drop_month(&self, part: HistoryPartition, over: &ExpiredMonths) -> Result<DropOutcome>;

    /// Drops detached partitions, also those of a process that crashed. Returns how many. A table in use is left for
    /// the next call.
    async fn finish_dropping(&self) -> Result<usize>;

    /// Deletes a batch of expired events that lost their attempts with a dropped month and that nothing refers to.
    /// Returns how many. `None`: no month was dropped since the last complete pass.
    async fn delete_strays(&self, over: &ExpiredMonths) -> Result<Option<usize>>;
}
