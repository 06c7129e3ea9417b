//! Dead letters: listing, redriving and purging them.

use std::sync::Arc;

use async_trait::async_trait;

use super::NewDelivery;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::inspect::{DeadLetter, DeadLetterFilter, DeadLetterGroup, Page};

#[async_trait]
pub(crate) trait DeadLetterStore {
    async fn dead_letters(&self, namespace: &str, filter: &DeadLetterFilter) -> Result<Page<DeadLetter>>;

    /// The newest `rows` dead letters, grouped by reason and type: up to `limit` groups, the largest first.
    async fn dead_letter_groups(&self, namespace: &str, rows: usize, limit: usize) -> Result<Vec<DeadLetterGroup>>;

    /// Moves these dead letters back into the queue with fresh retries. Returns how many of them still existed.
    async fn redrive(
        &self,
        namespace: &str,
        letters: Arc<[(DeadLetter, NewDelivery)]>,
        now: Option<Timestamp>,
    ) -> Result<usize>;

    /// Deletes up to `limit` matching dead letters and their handler results. Returns how many dead letters.
    async fn purge(&self, namespace: &str, filter: &DeadLetterFilter, limit: usize) -> Result<usize>;
}
