//! Connections to the database.

use serde::Serialize;

use crate::queue::Queue;

/// Some connections of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolView {
    /// What they are for.
    pub pool: &'static str,
    /// In use, or about to be.
    pub busy: usize,
    /// Open, and used by nobody.
    pub idle: usize,
    /// The most at once.
    pub max: usize,
}

impl Queue {
    /// This process's connections, by what they are for. None on SQLite, where one connection writes and readers open
    /// one when they need it.
    pub fn pools(&self) -> Vec<PoolView> {
        self.store().pools()
    }

    /// `sqlite` or `postgres`.
    pub fn database(&self) -> &'static str {
        self.store().name()
    }
}
