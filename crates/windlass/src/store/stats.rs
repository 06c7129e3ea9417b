//! Counts of deliveries, dead letters and workers.

use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::backlog::LiveCount;
use crate::observe::inspect::{StatRow, StuckDelivery, WorkerView};
use crate::observe::overview::{Counts, Reasons};

#[async_trait]
pub(crate) trait StatsStore {
    /// Pending and processing deliveries by subscription and type.
    async fn backlog(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<LiveCount>>;

    /// Dead letters by reason, the next tick of a schedule and the oldest arrival.
    async fn counts(&self, namespace: &str, reasons: &Reasons, now: Option<Timestamp>) -> Result<Counts>;

    /// The backlog, and counts of dead letters and of deliveries that ended since `since`, from one snapshot.
    async fn stats(
        &self,
        namespace: &str,
        since: Timestamp,
        now: Option<Timestamp>,
    ) -> Result<(Vec<LiveCount>, Vec<StatRow>)>;

    /// Deliveries that were claimed longer than `older_than` ago, the earliest first.
    async fn stuck(
        &self,
        namespace: &str,
        older_than: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<StuckDelivery>>;

    /// The workers that hold leases or have ended an attempt since `since`.
    async fn workers(&self, namespace: &str, since: Timestamp) -> Result<Vec<WorkerView>>;
}
