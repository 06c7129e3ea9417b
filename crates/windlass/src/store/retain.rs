//! Deleting history whose retention has passed.

use async_trait::async_trait;

use super::MonthStore;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::retention::{EndedDelivery, RetentionLeftover, RetentionMark, RetentionWalk, WalkPosition};

/// A page of ended deliveries.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndedPage {
    /// In the order of the walk. On SQLite, a clock that was set back can add deliveries with an end in the future.
    pub ended: Vec<EndedDelivery>,
    /// Where the next page begins.
    pub next: WalkPosition,
    /// There may be more deliveries that ended before the requested time.
    pub more: bool,
}

/// A batch of history to delete in one transaction.
#[derive(Debug, Clone)]
pub(crate) struct Retain {
    /// The version of the topology that the decisions are based on.
    pub version: i64,
    /// The progress of the walk; `None` for leftovers.
    pub step: Option<MarkStep>,
    /// Deliveries whose retention has passed, each once. They are deleted unless they have ended again later.
    pub due: Vec<EndedDelivery>,
    /// Leftovers that need no further check.
    pub settled: Vec<RetentionLeftover>,
    /// Leftovers to check again at this time under the same rules (`None`: never), or at any time under other rules.
    pub later: Vec<(RetentionLeftover, Option<Timestamp>)>,
    /// The hash of the retention rules that the decisions are based on.
    pub rules: i64,
}

/// The new position of a walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MarkStep {
    pub walk: RetentionWalk,
    /// The current mark (`None`: there is none). If it is another one, nothing is done.
    pub from: Option<RetentionMark>,
    pub to: RetentionMark,
}

/// How much retention deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DeletedHistory {
    pub deliveries: usize,
    pub dead_letters: usize,
    pub events: usize,
}

#[async_trait]
pub(crate) trait RetentionStore {
    /// How many deliveries one transaction checks.
    fn retain_batch(&self) -> usize;

    /// The monthly partitions, if the store has them.
    fn by_months(&self) -> Option<&dyn MonthStore> {
        None
    }

    /// The progress of a walk, for each retention duration.
    async fn marks(&self, namespace: &str, walk: RetentionWalk) -> Result<Vec<RetentionMark>>;

    /// The next deliveries of a walk that ended before `until`. Reads only the returned rows.
    async fn ended(
        &self,
        namespace: &str,
        walk: RetentionWalk,
        from: WalkPosition,
        until: Timestamp,
        limit: usize,
        now: Timestamp,
    ) -> Result<EndedPage>;

    /// Leftovers that must be checked under these rules now.
    async fn leftovers(
        &self,
        namespace: &str,
        rules: i64,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<RetentionLeftover>>;

    /// Deletes the dead letters among the due deliveries, unless they were redriven, with their handler results; the
    /// attempts of every due delivery that is not in the queue, not a dead letter and has not ended later; and events
    /// that nothing else refers to. `None`: the version or the mark has changed, and nothing was done.
    async fn retain(&self, namespace: &str, retain: &Retain) -> Result<Option<DeletedHistory>>;
}
