//! Exporting history to files and importing it from them.

use async_trait::async_trait;

use crate::error::Result;
use crate::maintenance::archive::PastEvent;
use crate::maintenance::history::HistoryFilter;
use crate::maintenance::retention::EndedDelivery;

/// The result of importing events.
#[derive(Debug, Clone, Default)]
pub(crate) struct Imported {
    pub events: u64,
    pub attempts: u64,
    pub known: u64,
    pub clashes: Vec<i64>,
}

#[async_trait]
pub(crate) trait HistoryStore {
    /// The events of these deliveries, by id, with the attempts that `retain` would delete.
    async fn history_of(&self, namespace: &str, due: &[EndedDelivery]) -> Result<Vec<PastEvent>>;

    /// Matching events that are neither in the queue nor dead letters, with all their attempts, by id, after this id.
    async fn history_page(
        &self,
        namespace: &str,
        filter: &HistoryFilter,
        after: i64,
        limit: usize,
    ) -> Result<Vec<PastEvent>>;

    /// The largest event id of the namespace; 0 if there is none.
    async fn newest_event(&self, namespace: &str) -> Result<i64>;

    /// Stores events whose ids are free, and attempts that do not exist yet. Retention checks all of them.
    async fn import_history(&self, namespace: &str, events: &[PastEvent]) -> Result<Imported>;
}
