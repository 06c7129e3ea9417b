//! History in files: compressed JSON lines, one for each event, and beside each file a manifest.
//!
//! `<folder>/<namespace>/<YYYY-MM>/<name>.jsonl.gz` holds events that were published in that month, and
//! `<name>.manifest.json` says what is in it. A file without its manifest was not finished, and does not count.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::queue::outcome::Action;

mod read;
mod write;

pub(crate) use read::{Reader, manifests};
pub(crate) use write::Archive;

/// The version of the format.
const VERSION: u32 = 1;

const LINES: &str = ".jsonl.gz";
const MANIFEST: &str = ".manifest.json";

/// An event that is done with, and what was done about it.
#[derive(Debug, Clone)]
pub(crate) struct PastEvent {
    pub event: Event,
    pub attempts: Vec<PastAttempt>,
}

/// An attempt that has ended, with all that is kept of it but its lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PastAttempt {
    pub subscription: String,
    pub attempt: u32,
    pub action: Action,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picked_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_time_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<Timestamp>,
    pub retry_count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
}

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub version: u32,
    pub namespace: String,
    /// `YYYY-MM`, in UTC.
    pub month: String,
    pub file: String,
    pub created_at: Timestamp,
    pub events: u64,
    pub attempts: u64,
    pub first_id: i64,
    pub last_id: i64,
    /// Of the file, compressed.
    pub bytes: u64,
    /// Of the file, in hexadecimal digits.
    pub sha256: String,
}

fn failed(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::Archive { path: path.display().to_string(), detail: error.to_string() }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs `work` where it may block.
pub(crate) async fn blocking<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    let died = |error| Error::Archive { path: String::new(), detail: format!("did not finish: {error}") };
    tokio::task::spawn_blocking(work).await.map_err(died)?
}

#[cfg(test)]
mod tests;
