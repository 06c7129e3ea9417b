//! The backlog: counts of pending and processing deliveries by type, and what they wait for.
//!
//! Stores return one set of counts, [`LiveCount`]; the backlog, the overview, the stats and the samples all combine
//! them.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::inspect::StatRow;
use crate::queue::Queue;

/// Upper bounds of the first four age groups in
/// [`QueueOverview::processing_ages`](crate::QueueOverview::processing_ages).
pub const PROCESSING_AGES: [Duration; 4] =
    [Duration::from_secs(60), Duration::from_secs(300), Duration::from_secs(900), Duration::from_secs(1800)];

/// The pending and processing deliveries of one subscription and type.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveCount {
    pub subscription: String,
    pub event_type: String,
    /// Ready to be claimed.
    pub ready: u64,
    /// Not due yet, without a failure.
    pub delayed: u64,
    /// Waiting for a retry after a failure.
    pub retrying: u64,
    pub waiting_for_group: u64,
    /// Processing, by age; see [`PROCESSING_AGES`].
    pub processing_ages: [u64; 5],
    /// When the oldest ready delivery became ready.
    pub ready_since: Option<Timestamp>,
    /// When the next delayed or retrying delivery becomes ready.
    pub next_at: Option<Timestamp>,
    /// When the oldest processing delivery was claimed.
    pub held_since: Option<Timestamp>,
}

impl LiveCount {
    pub fn pending(&self) -> u64 {
        self.ready + self.delayed + self.retrying + self.waiting_for_group
    }

    pub fn processing(&self) -> u64 {
        self.processing_ages.iter().sum()
    }

    /// The counts as rows of the stats, without empty rows.
    pub fn stats(&self) -> impl Iterator<Item = StatRow> {
        let row = |status, count, oldest_at| StatRow {
            subscription: self.subscription.clone(),
            event_type: self.event_type.clone(),
            status,
            count,
            oldest_at,
        };
        let pending = row(Status::Pending, self.pending(), self.ready_since.or(self.next_at));
        let processing = row(Status::Processing, self.processing(), self.held_since);
        [pending, processing].into_iter().filter(|row| row.count > 0)
    }
}

/// The pending and processing deliveries of an event type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Backlog {
    /// The event type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Ready to be claimed.
    pub ready: u64,
    /// Processing.
    pub running: u64,
    /// Not due yet, without a failure.
    pub delayed: u64,
    /// Waiting for a retry after a failure.
    pub retrying: u64,
    /// Waiting for other deliveries of their group.
    pub behind_group: u64,
    /// When the oldest ready delivery became ready.
    pub ready_since: Option<DateTime<Utc>>,
}

impl Backlog {
    /// All pending and processing deliveries.
    pub fn live(&self) -> u64 {
        self.ready + self.running + self.delayed + self.retrying + self.behind_group
    }

    fn add(&mut self, live: &LiveCount) {
        self.ready += live.ready;
        self.running += live.processing();
        self.delayed += live.delayed;
        self.retrying += live.retrying;
        self.behind_group += live.waiting_for_group;
        self.ready_since = self.ready_since.into_iter().chain(live.ready_since).min();
    }
}

impl Queue {
    /// The pending and processing deliveries by type. Types without any are left out.
    pub async fn backlog(&self) -> Result<Vec<Backlog>> {
        self.topology().await?;
        self.route_before_reading().await;
        let mut by_type: BTreeMap<String, Backlog> = BTreeMap::new();
        for live in self.store().backlog(self.namespace(), self.now()).await? {
            by_type.entry(live.event_type.clone()).or_default().add(&live);
        }
        let named = by_type.into_iter().map(|(event_type, of_type)| Backlog { event_type, ..of_type });
        Ok(named.filter(|of_type| of_type.live() > 0).collect())
    }
}
