//! Deleting rows that nothing refers to any more, except history: `retain.rs` deletes that.

use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;

#[async_trait]
pub(crate) trait PruneStore {
    /// Deletes handler results whose delivery has ended without becoming a dead letter, nodes without a heartbeat for
    /// `node_kept`, and keys whose window has passed: up to `limit` of each. Returns how many in all.
    async fn prune(&self, namespace: &str, node_kept: Duration, limit: usize, now: Option<Timestamp>) -> Result<usize>;

    /// Deletes up to `limit` records of ticks that fired longer than `kept` ago. Returns how many.
    async fn prune_fires(&self, namespace: &str, kept: Duration, limit: usize, now: Option<Timestamp>)
    -> Result<usize>;
}
