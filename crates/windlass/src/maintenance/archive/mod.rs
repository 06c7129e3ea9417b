//! Archive files of history: compressed JSON lines, one per event, and a manifest for each file.
//!
//! `<folder>/<namespace>/<YYYY-MM>/<name>.jsonl.gz` holds events that were published in that month, and
//! `<name>.manifest.json` describes it. A file without a manifest is incomplete and ignored.

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

const LINES_SUFFIX: &str = ".jsonl.gz";
const MANIFEST_SUFFIX: &str = ".manifest.json";

/// A finished event with its attempts.
#[derive(Debug, Clone)]
pub(crate) struct PastEvent {
    pub event: Event,
    pub attempts: Vec<PastAttempt>,
}

/// A finished attempt, without its lease.
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

/// The description of an archive file.
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
    /// Compressed size of the file.
    pub bytes: u64,
    /// SHA-256 of the file in hexadecimal digits.
    pub sha256: String,
}

fn archive_error(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::Archive { path: path.display().to_string(), detail: error.to_string() }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs blocking file operations on a thread for them.
pub(crate) async fn blocking<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    let panicked = |error| Error::Archive { path: String::new(), detail: format!("did not finish: {error}") };
    tokio::task::spawn_blocking(work).await.map_err(panicked)?
}

#[cfg(test)]
mod tests;
