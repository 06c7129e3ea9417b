//! Creating, listing and removing lanes.

use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::topology::lanes::{Lane, LaneKey};

#[async_trait]
pub(crate) trait LaneStore {
    /// Creates the missing lanes and returns the ids of all of them, in order. Lanes of a namespace are numbered in the
    /// order of their commits.
    async fn add_lanes(&self, namespace: &str, lanes: &[LaneKey]) -> Result<Vec<i64>>;

    /// The lanes with a larger number, ordered by number.
    async fn lanes_after(&self, namespace: &str, number: i64) -> Result<Vec<Lane>>;

    /// Removes up to `limit` lanes that have no deliveries and were created at least `min_age` ago, and increments the
    /// namespace's version if there were any. Returns how many. Skips the namespace while a transaction that has
    /// published is open.
    async fn remove_empty_lanes(
        &self,
        namespace: &str,
        min_age: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize>;
}
