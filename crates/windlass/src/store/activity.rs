//! Recently published events and recently ended attempts.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::queue::outcome::Attempt;

/// The position up to which the caller has read a namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActivitySince {
    /// Events up to this one.
    pub event_id: i64,
    /// Attempts up to this time, in microseconds, and id.
    pub ended: (i64, i64),
}

/// Recent activity, the newest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecentActivity {
    pub published: Vec<EventHead>,
    /// With the attempts' ids, which distinguish attempts that ended at the same time.
    pub ended: Vec<(i64, Attempt)>,
}

/// An event without its payload.
#[derive(Debug, Clone)]
pub(crate) struct EventHead {
    pub event_id: i64,
    pub event_type: String,
    pub title: Option<String>,
    pub tags: String,
    pub created_at: Timestamp,
}

#[async_trait]
pub(crate) trait ActivityStore {
    /// The newest events and attempts since this position, up to `limit` of each. The events of all returned attempts
    /// are visible to the next statement.
    async fn recent(&self, namespace: &str, since: &ActivitySince, limit: usize) -> Result<RecentActivity>;

    /// Those of the events that still exist.
    async fn heads(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<EventHead>>;
}
