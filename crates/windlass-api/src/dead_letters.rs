//! `/dead-letters`: list, redrive and purge dead letters.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::Status;

use crate::event::serde_with_options;
use crate::{BoundedList, EventOptions, NameList};

/// A page of dead letters.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLettersBody {
    /// Newest first.
    pub dead_letters: Vec<DeadLetterBody>,
    /// Total number of matches.
    pub total: u64,
    /// Page size.
    pub limit: usize,
    /// Number of dead letters before this page.
    pub offset: usize,
}

/// A dead letter.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct DeadLetterBody {
    /// The event.
    pub event_id: i64,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// A one-line title.
    pub title: Option<String>,
    /// A longer description.
    pub description: Option<String>,
    /// Comma-separated, as published.
    pub tags: String,
    /// As published.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// The subscription of the delivery.
    pub subscription: String,
    /// FAILED or EXPIRED.
    pub status: Status,
    /// Why the delivery failed, in a few words.
    pub reason: String,
    /// The error message.
    pub error: Option<String>,
    /// Number of attempts.
    pub attempts: u32,
    /// Number of reported failures.
    pub retry_count: u32,
    /// The failure that raised `retry_count` to this value was the last; null: no limit.
    pub max_retries: Option<u32>,
    /// When it became a dead letter.
    pub failed_at: DateTime<Utc>,
    /// Time of publication.
    pub created_at: DateTime<Utc>,
    /// The optional properties of the event.
    #[serde(flatten, skip_deserializing)]
    pub options: EventOptions,
}

serde_with_options!(DeadLetterBody);

/// Number of redriven dead letters.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RedrivenBody {
    /// Number of redriven dead letters.
    pub redriven: usize,
}

/// Number of deleted dead letters.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PurgedBody {
    /// Number of deleted dead letters.
    pub purged: usize,
}

/// Selects the dead letters that match all given fields.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "types": "order.*", "failed_before": "2025-12-24T10:30:00Z" }))]
pub struct DeadLetterFilterRequest {
    /// Dead letters of these events.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<i64>>)]
    pub event_ids: Option<BoundedList<i64>>,
    /// Dead letters of this subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// FAILED or EXPIRED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Dead letters of these types, each exact or a prefix ending in `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub types: Option<NameList>,
    /// Dead letters with exactly this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Dead letters that failed before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_before: Option<DateTime<Utc>>,
    /// All dead letters. Must be true if no other field is given.
    #[serde(default)]
    pub all: bool,
}
