//! What there is to do, and why it is not being done yet.
//!
//! Stores count live deliveries in one way, and whoever tells of them puts these counts together: the backlog here, the
//! overview, the stats and the samples.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::inspect::StatRow;
use crate::queue::Queue;

/// How old a delivery that somebody holds may be, to be counted among the first four of
/// [`QueueOverview::processing_ages`](crate::QueueOverview::processing_ages).
pub const PROCESSING_AGES: [Duration; 4] =
    [Duration::from_secs(60), Duration::from_secs(300), Duration::from_secs(900), Duration::from_secs(1800)];

/// How the live deliveries of one subscription and type stand.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveCount {
    pub subscription: String,
    pub event_type: String,
    /// They could be taken now.
    pub ready: u64,
    /// Their time has not come, and they never failed.
    pub delayed: u64,
    /// They failed, and are tried again later.
    pub retrying: u64,
    pub waiting_for_group: u64,
    /// They are held; see [`PROCESSING_AGES`].
    pub processing_ages: [u64; 5],
    /// Since when the first that could be taken could be.
    pub ready_since: Option<Timestamp>,
    /// When the first of those that are delayed or retried can be taken.
    pub next_at: Option<Timestamp>,
    /// Since when the first that is held is.
    pub held_since: Option<Timestamp>,
}

impl LiveCount {
    pub fn pending(&self) -> u64 {
        self.ready + self.delayed + self.retrying + self.waiting_for_group
    }

    pub fn processing(&self) -> u64 {
        self.processing_ages.iter().sum()
    }

    /// As rows of the stats, where there are any.
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

/// How the live deliveries of a type stand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Backlog {
    /// The type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// They could be taken now.
    pub ready: u64,
    /// They are held by workers.
    pub running: u64,
    /// Their time has not come, and they never failed.
    pub delayed: u64,
    /// They failed, and are tried again later.
    pub retrying: u64,
    /// They wait for others of their group.
    pub behind_group: u64,
    /// Since when the first of those that could be taken could be.
    pub ready_since: Option<DateTime<Utc>>,
}

impl Backlog {
    /// All of them.
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
    /// How the live deliveries stand, by type. Types without any are left out.
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
