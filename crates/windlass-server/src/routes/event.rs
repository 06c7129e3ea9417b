//! How an event looks in answers, as one subscription sees it.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::{Action, DeliveryView, Error, Event, EventView, LogEntry, MAIN, Status};

/// An event, and how it stands.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "id": 1001, "type": "event", "title": "Send Email Notification", "description": null,
    "tags": "email,notification", "status": "PENDING", "payload": { "user_id": 12345 }, "attempts": 0,
    "retry_count": 0, "max_retries": 3, "next_retry_at": null,
    "created_at": "2025-12-24T10:30:00Z", "updated_at": "2025-12-24T10:30:00Z"
}))]
pub(super) struct EventBody {
    /// Unique across all namespaces.
    pub id: i64,
    /// What kind of event it is; `event` where none was given.
    #[serde(rename = "type")]
    pub event_type: String,
    /// A line for people.
    pub title: Option<String>,
    /// A few sentences for people.
    pub description: Option<String>,
    /// Comma-separated, as it was sent.
    pub tags: String,
    /// Where it stands.
    pub status: Status,
    /// As it was sent.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// How often it was handed out.
    pub attempts: u32,
    /// How many failures were reported.
    pub retry_count: u32,
    /// The failure that brings `retry_count` to this is the last; null: no bound.
    pub max_retries: Option<u32>,
    /// After a failure: when it is tried again.
    pub next_retry_at: Option<DateTime<Utc>>,
    /// When it was published.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
    #[serde(flatten)]
    pub options: EventOptions,
    /// While PROCESSING: who holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// While PROCESSING: until when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<DateTime<Utc>>,
    /// The newest error that was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// How it stands with each subscription, where there are others than the one shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub deliveries: Vec<DeliveryView>,
    /// What happened to it, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<LogBody>>,
}

/// What an event was published with beside its contents; absent where it was not given.
#[derive(Serialize, ToSchema)]
pub(super) struct EventOptions {
    /// Events of a group are handled one at a time, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// What it was deduplicated by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Higher goes first.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub priority: i16,
    /// Not before this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<DateTime<Utc>>,
    /// Never started after this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// A JSON object that travels with the event; `traceparent` in it is the publisher's trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Box<RawValue>>,
    /// Who published it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// The scheduled task that published it: a UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_task_id: Option<String>,
}

fn is_zero(priority: &i16) -> bool {
    *priority == 0
}

/// An answer with many events stops growing when their payloads have reached this size.
pub(super) const PAYLOADS_BYTES_MAX: usize = 32 << 20;

/// How many of these payloads an answer holds: at least one.
pub(super) fn fitting<'a>(payloads: impl Iterator<Item = &'a RawValue>) -> usize {
    let mut bytes = 0usize;
    let fits = |(place, payload): &(usize, &RawValue)| {
        bytes = bytes.saturating_add(payload.get().len());
        *place == 0 || bytes <= PAYLOADS_BYTES_MAX
    };
    payloads.enumerate().take_while(fits).count()
}

/// An event's contents, and its options.
pub(super) fn take_options(event: &mut Event) -> EventOptions {
    EventOptions {
        group_id: event.group_id.take(),
        key: event.key.take(),
        priority: event.priority,
        run_at: event.run_at,
        expires_at: event.expires_at,
        metadata: event.metadata.take(),
        producer: event.producer.take(),
        scheduled_task_id: event.scheduled_task_id.take(),
    }
}

impl EventBody {
    /// An event that was published just now. It may have moved on since; this is how it was stored.
    pub fn published(mut event: Event, max_retries: Option<u32>) -> EventBody {
        EventBody {
            options: take_options(&mut event),
            id: event.id,
            event_type: event.event_type,
            title: event.title,
            description: event.description,
            tags: event.tags,
            status: Status::Pending,
            payload: event.payload,
            attempts: 0,
            retry_count: 0,
            max_retries,
            next_retry_at: None,
            created_at: event.created_at,
            updated_at: event.created_at,
            worker_id: None,
            lease_expires_at: None,
            error_message: None,
            deliveries: Vec::new(),
            logs: None,
        }
    }

    /// An event that was completed and, by its policy, not kept.
    pub fn forgotten(event: Event, max_retries: Option<u32>) -> EventBody {
        EventBody { status: Status::Completed, ..EventBody::published(event, max_retries) }
    }

    /// An event as this subscription sees it.
    pub fn seen_by(subscription: &str, view: EventView) -> Result<EventBody, Error> {
        let Some(seen) = view.delivery(subscription).cloned() else {
            return Err(Error::EventNotFound { namespace: view.event.namespace, event_id: view.event.id });
        };
        let DeliveryView { status, attempts, retry_count, next_retry_at, updated_at, .. } = seen;
        let deliveries = if view.deliveries.len() > 1 { view.deliveries } else { Vec::new() };
        Ok(EventBody {
            status,
            attempts,
            retry_count,
            next_retry_at,
            updated_at,
            worker_id: seen.worker_id,
            lease_expires_at: seen.lease_expires_at,
            error_message: seen.error_message,
            deliveries,
            ..EventBody::published(view.event, seen.max_retries)
        })
    }
}

impl TryFrom<EventView> for EventBody {
    type Error = Error;

    fn try_from(view: EventView) -> Result<EventBody, Error> {
        EventBody::seen_by(MAIN, view)
    }
}

/// One line of an event's log.
#[derive(Serialize, ToSchema)]
pub(super) struct LogBody {
    /// Unique, and growing within an event.
    id: i64,
    event_id: i64,
    /// Who did it; null for what nobody in particular did.
    worker_id: Option<String>,
    /// What happened.
    action: Action,
    /// A number of the worker's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    status_code: Option<i32>,
    /// What went wrong, or why it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    /// How long it took, as reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_time_ms: Option<u64>,
    /// What else was reported, as it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    detail: Option<Box<RawValue>>,
    created_at: DateTime<Utc>,
}

impl From<LogEntry> for LogBody {
    fn from(entry: LogEntry) -> LogBody {
        LogBody {
            id: entry.id,
            event_id: entry.event_id,
            worker_id: entry.worker_id,
            action: entry.action,
            status_code: entry.status_code,
            error_message: entry.error_message,
            execution_time_ms: entry.execution_time_ms,
            detail: entry.detail,
            created_at: entry.created_at,
        }
    }
}
