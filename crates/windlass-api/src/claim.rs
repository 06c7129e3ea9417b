//! `GET /events/subscribe` and `POST /events/claim`: claim events.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::Status;

use crate::event::serde_with_options;
use crate::{EventOptions, NameList};

/// A claim request.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742", "max": 100, "wait_ms": 0 }))]
pub struct ClaimRequest {
    /// Name of the worker, such as `host:pid`.
    pub worker_id: String,
    /// Events with any of these tags match. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<NameList>,
    /// Types, each exact or a prefix ending in `*`. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub types: Option<NameList>,
    /// Default: `main`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// Maximum number of events. A run counts as one. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
    /// Maximum length of a run: consecutive events of a group, in order and under one lease. Handle them in order. If one
    /// fails, is released or loses its lease, the later ones are released with it. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_run: Option<usize>,
    /// How long to wait if no event is ready, at most 60000. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Lease duration, instead of the policy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

/// A claimed event.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self")]
#[schema(example = json!({
    "id": 1001, "type": "event", "title": "Send Email Notification", "description": null,
    "tags": "email,notification", "status": "PROCESSING", "payload": { "user_id": 12345 }, "attempt": 1,
    "retry_count": 0, "max_retries": 3, "lease": "00c0ffee00c0ffee",
    "lease_expires_at": "2025-12-24T10:31:45Z", "created_at": "2025-12-24T10:30:00Z"
}))]
pub struct ClaimedEventBody {
    /// Unique across all namespaces.
    pub id: i64,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// A one-line title.
    pub title: Option<String>,
    /// A longer description.
    pub description: Option<String>,
    /// Comma-separated, as published.
    pub tags: String,
    /// Always PROCESSING.
    pub status: Status,
    /// As published.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// Number of this attempt, from 1.
    pub attempt: u32,
    /// Number of reported failures.
    pub retry_count: u32,
    /// The failure that raises `retry_count` to this value is the last; null: no limit.
    pub max_retries: Option<u32>,
    /// Lease token. Send it with the report to identify exactly this attempt.
    pub lease: String,
    /// When other workers may claim the event, unless this worker reports or sends a heartbeat before.
    pub lease_expires_at: DateTime<Utc>,
    /// Time of publication.
    pub created_at: DateTime<Utc>,
    /// The optional properties of the event.
    #[serde(flatten, skip_deserializing)]
    pub options: EventOptions,
}

serde_with_options!(ClaimedEventBody);

/// The claimed events.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClaimedBody {
    /// Each is leased to this worker until its lease expires.
    pub events: Vec<ClaimedEventBody>,
}
