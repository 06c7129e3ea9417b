//! `POST /events` and `POST /events/batch`: publish events.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::event::is_zero;
use crate::{BoundedList, NameList};

/// An event to publish.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({
    "title": "Send Email Notification", "tags": "email,notification", "payload": { "user_id": 12345 }
}))]
pub struct PublishRequest {
    /// A one-line title. Required if there is no type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// A longer description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Tags that consumers can select by.
    #[serde(default, skip_serializing_if = "NameList::is_empty")]
    pub tags: NameList,
    /// Any JSON. Default: `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// Type of the event. Default: `event`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// The event is not delivered before this time. Excludes `delay_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<DateTime<Utc>>,
    /// The event is not delivered before this delay has passed. Excludes `run_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Deadline: if no attempt has started by this time, the event ends EXPIRED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// The deadline, relative to the time from which the event can be delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// Events of a group are handled one at a time, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// Idempotency key: events with the same key are stored once. Also accepted as the header `Idempotency-Key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Higher priorities are delivered first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i16,
    /// Overrides the policy's `max_retries`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// A JSON object delivered with the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Box<RawValue>>,
    /// Name of the publisher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
}

/// A batch of events to publish.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct PublishBatchRequest {
    /// Either all are stored or none.
    #[schema(value_type = Vec<PublishRequest>, max_items = 10000)]
    pub events: BoundedList<PublishRequest>,
}

/// The published batch.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PublishedBatchBody {
    /// In the order of the request.
    pub events: Vec<PublishedBody>,
}

/// An event that was stored, or found by its key.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "id": 1001, "duplicate": false, "created_at": "2025-12-24T10:30:00Z" }))]
pub struct PublishedBody {
    /// The event.
    pub id: i64,
    /// The key was used before: this is the first event, and nothing was stored.
    pub duplicate: bool,
    /// Time of publication.
    pub created_at: DateTime<Utc>,
}
