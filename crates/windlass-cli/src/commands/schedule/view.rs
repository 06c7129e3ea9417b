//! A schedule, as the API shows it.

use serde::Deserialize;
use serde_json::value::RawValue;
use windlass::Timestamp;

use crate::output::{GOOD, WARN};
use crate::when;

#[derive(Deserialize)]
pub struct View {
    pub id: String,
    pub name: String,
    pub cron: String,
    pub timezone: String,
    #[serde(rename = "type")]
    pub event_type: String,
    pub title: Option<String>,
    pub description: Option<String>,
    pub tags: String,
    pub payload: Box<RawValue>,
    pub group_id: Option<String>,
    pub priority: i16,
    pub max_retries: Option<u32>,
    pub metadata: Option<Box<RawValue>>,
    pub expires_in_ms: Option<u64>,
    pub missed: String,
    pub runner: String,
    pub active: bool,
    pub next_runs: Vec<Timestamp>,
    pub last_at: Option<Timestamp>,
    pub last_event_id: Option<i64>,
    pub created_at: Timestamp,
}

impl View {
    pub fn status(&self) -> (&'static str, anstyle::Style) {
        if self.active { ("active", GOOD) } else { ("paused", WARN) }
    }

    /// Its next tick.
    pub fn next(&self) -> Option<String> {
        self.next_runs.first().copied().map(when::shown)
    }
}
