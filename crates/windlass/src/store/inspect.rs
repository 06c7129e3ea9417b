//! Reading events, their deliveries and their history.

use async_trait::async_trait;

use crate::error::Result;
use crate::observe::inspect::{EventView, ListFilter, LogEntry, Page};

#[async_trait]
pub(crate) trait InspectStore {
    async fn exists(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<bool>>;

    async fn get(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<Option<EventView>>>;

    async fn log(&self, namespace: &str, event_id: i64) -> Result<Vec<LogEntry>>;

    async fn list(&self, namespace: &str, filter: &ListFilter) -> Result<Page<EventView>>;
}
