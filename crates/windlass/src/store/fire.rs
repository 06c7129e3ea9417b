//! Firing schedules: recording ticks and publishing their events. The caller has decided which ticks fire.

use std::sync::Arc;

use async_trait::async_trait;

use super::{PreparedEvent, PublishOutcome};
use crate::clock::Timestamp;
use crate::error::{Error, Result};

/// Ticks to fire of a schedule, unless the schedule has changed since it was read.
#[derive(Debug, Clone)]
pub(crate) struct Firing {
    pub schedule_id: String,
    /// The values that were read. Every change of a schedule changes one of them.
    pub next_at: Option<Timestamp>,
    pub updated_at: Timestamp,
    /// In order.
    pub ticks: Vec<Tick>,
    /// The new `next_at`.
    pub then_at: Option<Timestamp>,
}

/// A tick to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tick {
    pub at: Timestamp,
    /// The number of missed ticks before it that are skipped.
    pub skipped: u32,
    /// The index of its event among the given events; `None`: the tick is skipped.
    pub event: Option<usize>,
    /// Why the tick has no event.
    pub error: Option<String>,
}

/// The result of a firing.
#[derive(Debug, Clone)]
pub(crate) struct FireOutcome {
    /// The stored events with their indexes. A tick that was recorded before stores no event again.
    pub stored: Vec<(usize, PublishOutcome)>,
    /// When the schedule was changed by this firing.
    pub updated_at: Timestamp,
}

/// The result of several firings.
#[derive(Debug)]
pub(crate) enum FireOutcomes {
    /// One for each firing; `None` if the schedule has changed since it was read, or another transaction has locked it.
    Done(Vec<Option<FireOutcome>>),
    /// Nothing was changed: another transaction kept a required lock for too long. SQLite has no row locks.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code))]
    Blocked(Error),
    /// Nothing was changed: the namespace has another version.
    OtherVersion,
}

#[async_trait]
pub(crate) trait FireStore {
    /// Records the ticks of each schedule that has not changed since it was read, stores the events of ticks that are
    /// not recorded yet, and sets the next tick. A schedule that another transaction has locked is skipped, or waited
    /// for if `manual`. Only a `manual` firing waits long for other locks.
    async fn fire(
        &self,
        namespace: &str,
        version: i64,
        firings: &[Firing],
        events: Arc<Vec<PreparedEvent>>,
        manual: bool,
        now: Option<Timestamp>,
    ) -> Result<FireOutcomes>;
}
