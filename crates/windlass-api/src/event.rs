//! Events in responses, with the delivery of one subscription.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::{Action, DeliveryView, Status};

/// An event with its current state.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self")]
#[schema(example = json!({
    "id": 1001, "type": "event", "title": "Send Email Notification", "description": null,
    "tags": "email,notification", "status": "PENDING", "payload": { "user_id": 12345 }, "attempts": 0,
    "retry_count": 0, "max_retries": 3, "next_retry_at": null,
    "created_at": "2025-12-24T10:30:00Z", "updated_at": "2025-12-24T10:30:00Z"
}))]
pub struct EventBody {
    /// Unique across all namespaces.
    pub id: i64,
    /// Type of the event; `event` if it was published without one.
    #[serde(rename = "type")]
    pub event_type: String,
    /// A one-line title.
    pub title: Option<String>,
    /// A longer description.
    pub description: Option<String>,
    /// Comma-separated, as published.
    pub tags: String,
    /// Current status.
    pub status: Status,
    /// As published.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// Number of attempts.
    pub attempts: u32,
    /// Number of reported failures.
    pub retry_count: u32,
    /// The failure that raises `retry_count` to this value is the last; null: no limit.
    pub max_retries: Option<u32>,
    /// After a failure: when the event is retried.
    pub next_retry_at: Option<DateTime<Utc>>,
    /// Time of publication.
    pub created_at: DateTime<Utc>,
    /// Time of the last change.
    pub updated_at: DateTime<Utc>,
    /// The optional properties of the event.
    #[serde(flatten, skip_deserializing)]
    pub options: EventOptions,
    /// While PROCESSING: the worker that holds the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// While PROCESSING: when the lease expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<DateTime<Utc>>,
    /// The last reported error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// The delivery of each subscription, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub deliveries: Vec<DeliveryView>,
    /// The log, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<LogEntryBody>>,
}

serde_with_options!(EventBody);

/// Optional properties of an event; absent if they were not given.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct EventOptions {
    /// Events of a group are handled one at a time, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// Idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Higher priorities are delivered first.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub priority: i16,
    /// The event is not delivered before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<DateTime<Utc>>,
    /// Deadline by which an attempt must start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// A JSON object delivered with the event. Its `traceparent` is the publisher's trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Box<RawValue>>,
    /// Name of the publisher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// The schedule that published the event: a UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_task_id: Option<String>,
}

pub(crate) fn is_zero(priority: &i16) -> bool {
    *priority == 0
}

/// Implements `Serialize` and `Deserialize` for a struct with flattened [`EventOptions`].
///
/// serde cannot read a [`RawValue`] such as the metadata through `flatten`. Therefore the options are read in a second
/// pass over the text. `#[serde(remote = "Self")]` on the struct turns the derived implementations into functions, which
/// are called here.
macro_rules! serde_with_options {
    ($body:ty) => {
        impl serde::Serialize for $body {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                <$body>::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $body {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$body, D::Error> {
                let text = Box::<serde_json::value::RawValue>::deserialize(deserializer)?;
                let body = <$body>::deserialize(&mut serde_json::Deserializer::from_str(text.get()));
                let options = serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
                Ok(Self { options, ..body.map_err(serde::de::Error::custom)? })
            }
        }
    };
}
pub(crate) use serde_with_options;

/// An entry of an event's log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LogEntryBody {
    /// Unique. Increases within an event.
    pub id: i64,
    /// The event.
    pub event_id: i64,
    /// The worker that caused the entry, if any.
    pub worker_id: Option<String>,
    /// The action.
    pub action: Action,
    /// A number defined by the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i32>,
    /// The error, or the reason of the action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Duration of the attempt, as reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_time_ms: Option<u64>,
    /// Further information, as reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub detail: Option<Box<RawValue>>,
    /// When it happened.
    pub created_at: DateTime<Utc>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_read_back_with_the_same_text() {
        let text = concat!(
            r#"{"id":1,"type":"a","title":null,"description":null,"tags":"","status":"PENDING","payload":[1e999, 1.10],"#,
            r#""attempts":0,"retry_count":0,"max_retries":null,"next_retry_at":null,"created_at":"2026-01-31T12:00:00Z","#,
            r#""updated_at":"2026-01-31T12:00:00.000001Z","group_id":"g","priority":-1,"metadata":{"n":1e999,"a": 1}}"#
        );
        let event: EventBody = serde_json::from_str(text).unwrap();
        assert_eq!(
            (event.options.priority, event.options.metadata.as_ref().unwrap().get()),
            (-1, r#"{"n":1e999,"a": 1}"#)
        );
        assert_eq!(serde_json::to_string(&event).unwrap(), text);
        let error = serde_json::from_str::<EventBody>(&text.replace("-1", "\"x\"")).unwrap_err();
        assert!(error.to_string().contains("i16"), "{error}");
    }
}
