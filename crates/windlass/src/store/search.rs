//! What a search needs of a database: walks from the newest event to the oldest.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::search::SearchResult;

/// Where the events in some state are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// Among all: of `main`, in any state.
    All,
    /// Among all, those that the subscription was told of.
    Told { subscription: String },
    /// Among all, those that are live and held, or not.
    Live { subscription: String, held: bool },
    /// Among the dead letters.
    Dead { subscription: String, status: Status },
    /// Among all, those that ended so.
    Ended { subscription: String, status: Status },
}

/// What an event itself must be like.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EventFilter {
    pub types: Vec<String>,
    pub tags: Vec<String>,
    /// In title, description, type or payload, in capitals or not.
    pub text: Option<String>,
    pub group_id: Option<String>,
    pub key: Option<String>,
    pub created_from: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
}

/// A part of a walk.
#[derive(Debug, Clone, Default)]
pub(crate) struct SearchStep {
    /// Those in the state asked for, the newest first.
    pub ids: Vec<i64>,
    /// How many rows were looked at.
    pub looked_at: usize,
    /// The last one looked at; `None` at the end of the walk.
    pub next: Option<i64>,
}

#[async_trait]
pub(crate) trait SearchStore {
    /// Looks at up to `rows` events, or dead letters, with ids below `before`.
    async fn walk(&self, namespace: &str, source: &Source, before: i64, rows: usize) -> Result<SearchStep>;

    /// All events with a live delivery that is held, or not, in no order; `None` if there are more than `most`.
    async fn live_ids(&self, namespace: &str, subscription: &str, held: bool, most: usize) -> Result<Option<Vec<i64>>>;

    /// The event that a key stands for, if it is remembered.
    async fn event_of_key(&self, namespace: &str, key: &str) -> Result<Option<i64>>;

    /// Those of the events that are like this, in the order given.
    async fn matching(&self, namespace: &str, contents: &EventFilter, ids: Vec<i64>) -> Result<Vec<i64>>;

    /// The events as the subscription sees them, in the order given, as far as it was told of them.
    async fn found(&self, namespace: &str, subscription: &str, ids: &[i64]) -> Result<Vec<SearchResult>>;
}
