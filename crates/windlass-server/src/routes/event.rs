//! How an event looks in answers, as the subscription `main` sees it.

use serde::Serialize;
use serde_json::value::RawValue;
use windlass::{Action, DeliveryView, Error, Event, EventView, LogEntry, MAIN, Status, Timestamp};

#[derive(Serialize)]
pub(super) struct EventBody {
    pub id: i64,
    pub title: Option<String>,
    pub description: Option<String>,
    /// Comma-separated, as it was sent.
    pub tags: String,
    pub status: Status,
    /// As it was sent.
    pub payload: Box<RawValue>,
    pub retry_count: u32,
    pub max_retries: Option<u32>,
    pub next_retry_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<LogBody>>,
}

impl EventBody {
    /// An event that was published just now. It may have moved on since; this is how it was stored.
    pub fn published(event: Event, max_retries: Option<u32>) -> EventBody {
        EventBody {
            id: event.id,
            title: event.title,
            description: event.description,
            tags: event.tags,
            status: Status::Pending,
            payload: event.payload,
            retry_count: 0,
            max_retries,
            next_retry_at: None,
            created_at: event.created_at,
            updated_at: event.created_at,
            logs: None,
        }
    }

    /// An event that was completed and, by its policy, not kept.
    pub fn forgotten(event: Event, max_retries: Option<u32>) -> EventBody {
        EventBody { status: Status::Completed, ..EventBody::published(event, max_retries) }
    }
}

impl TryFrom<EventView> for EventBody {
    type Error = Error;

    fn try_from(view: EventView) -> Result<EventBody, Error> {
        let Some(DeliveryView { status, retry_count, max_retries, next_retry_at, updated_at, .. }) =
            view.delivery(MAIN).cloned()
        else {
            return Err(Error::EventNotFound { namespace: view.event.namespace, event_id: view.event.id });
        };
        let published = EventBody::published(view.event, max_retries);
        Ok(EventBody { status, retry_count, next_retry_at, updated_at, ..published })
    }
}

/// One line of an event's log.
#[derive(Serialize)]
pub(super) struct LogBody {
    pub id: i64,
    pub event_id: i64,
    pub worker_id: Option<String>,
    pub action: Action,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_time_ms: Option<u64>,
    pub created_at: Timestamp,
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
            created_at: entry.created_at,
        }
    }
}
