//! What there is to do, and why it is not being done yet.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::error::Result;
use crate::queue::Queue;

/// How the live deliveries of a type stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Backlog {
    /// The type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// They could be taken now.
    pub ready: u64,
    /// They are held by workers.
    pub running: u64,
    /// Their time has not come, and they were never tried.
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
}

impl Queue {
    /// How the live deliveries stand, by type. Types without any are left out.
    pub async fn backlog(&self) -> Result<Vec<Backlog>> {
        self.topology().await?;
        let mut backlog = self.store().backlog(self.namespace(), self.now()).await?;
        backlog.retain(|of_type| of_type.live() > 0);
        backlog.sort_by(|a, b| a.event_type.cmp(&b.event_type));
        Ok(backlog)
    }
}
