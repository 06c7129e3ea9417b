//! Searching events, from the newest to the oldest.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::search::SearchResult;

/// The rows that a search walks through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// All events: those of `main` in any state.
    All,
    /// All events, filtered by those that matched the subscription.
    Matched { subscription: String },
    /// All events, filtered by those with a pending (`held: false`) or processing delivery.
    Live { subscription: String, held: bool },
    /// Dead letters.
    Dead { subscription: String, status: Status },
    /// All events, filtered by those whose delivery ended with this status.
    Ended { subscription: String, status: Status },
}

/// Conditions on the event itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EventFilter {
    pub types: Vec<String>,
    pub tags: Vec<String>,
    /// Contained in title, description, type or payload, ignoring case.
    pub text: Option<String>,
    pub group_id: Option<String>,
    pub key: Option<String>,
    pub created_from: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
}

/// A page of a walk.
#[derive(Debug, Clone, Default)]
pub(crate) struct SearchStep {
    /// The events in the requested state, the newest first.
    pub ids: Vec<i64>,
    /// The number of rows read.
    pub looked_at: usize,
    /// The last id read; `None` at the end of the walk.
    pub next: Option<i64>,
}

#[async_trait]
pub(crate) trait SearchStore {
    /// Reads up to `rows` events or dead letters with ids below `before`.
    async fn walk(&self, namespace: &str, source: &Source, before: i64, rows: usize) -> Result<SearchStep>;

    /// All events with a pending or processing (`held`) delivery, in no order; `None` if there are more than `most`.
    async fn live_ids(&self, namespace: &str, subscription: &str, held: bool, most: usize) -> Result<Option<Vec<i64>>>;

    /// The event of a key, if the key is remembered.
    async fn event_of_key(&self, namespace: &str, key: &str) -> Result<Option<i64>>;

    /// The events that match the filter, in the given order.
    async fn matching(&self, namespace: &str, contents: &EventFilter, ids: Vec<i64>) -> Result<Vec<i64>>;

    /// The events and their deliveries to the subscription, in the given order. Skips events that did not match the
    /// subscription.
    async fn found(&self, namespace: &str, subscription: &str, ids: &[i64]) -> Result<Vec<SearchResult>>;
}
