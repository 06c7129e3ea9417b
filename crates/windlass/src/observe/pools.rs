//! The connection pools of this process.

use serde::Serialize;

use crate::queue::Queue;

/// A connection pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolView {
    /// The purpose of its connections.
    pub pool: &'static str,
    /// Connections in use, or reserved.
    pub busy: usize,
    /// Connections that are open and unused.
    pub idle: usize,
    /// The most connections at a time.
    pub max: usize,
}

impl Queue {
    /// The connection pools of this process. Empty on SQLite, which has one connection for writes and opens readers
    /// as needed.
    pub fn pools(&self) -> Vec<PoolView> {
        self.store().pools()
    }

    /// `sqlite` or `postgres`.
    pub fn database(&self) -> &'static str {
        self.store().name()
    }
}
