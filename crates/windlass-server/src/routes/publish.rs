//! `POST /events` and `POST /events/batch`: publish.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Error, NewEvent, Published};

use super::event::EventBody;
use super::list::List;
use super::names::Names;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{BatchBody, InNamespace, JsonBody};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(publish)).routes(routes!(publish_batch))
}

/// The type of events that name none.
const TYPE_DEFAULT: &str = "event";

/// An event to publish.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({
    "title": "Send Email Notification", "tags": "email,notification", "payload": { "user_id": 12345 }
}))]
struct PublishRequest {
    /// A line for people. Needed unless there is a type.
    title: Option<String>,
    /// A few sentences for people.
    description: Option<String>,
    /// What consumers can ask for.
    #[serde(default)]
    tags: Names,
    /// Any JSON; `null` if absent.
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// What kind of event it is; `event` if absent.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// Not before this instant; or …
    run_at: Option<DateTime<Utc>>,
    /// … not before this much time has passed.
    delay_ms: Option<u64>,
    /// Never started after this instant; it ends EXPIRED instead.
    expires_at: Option<DateTime<Utc>>,
    /// The same, this long after it may first start.
    expires_in_ms: Option<u64>,
    /// Events of a group are handled one at a time, in order.
    group_id: Option<String>,
    /// Published once, however often it is sent. Also as the header `Idempotency-Key`.
    key: Option<String>,
    /// Higher goes first.
    #[serde(default)]
    priority: i16,
    /// Instead of the policy's.
    max_retries: Option<u32>,
    /// A JSON object that travels with the event.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// Who publishes it.
    producer: Option<String>,
}

impl PublishRequest {
    fn into_event(self) -> Result<NewEvent, ApiError> {
        if self.title.is_none() && self.event_type.is_none() {
            return Err(ApiError::invalid("title", "is required for an event without a type"));
        }
        let event_type = self.event_type.unwrap_or_else(|| TYPE_DEFAULT.to_owned());
        let mut event = NewEvent::new(event_type).tags_text(self.tags.into_text()).priority(self.priority);
        // One `if` each, rather than setters that take options, keeps the library's builder plain.
        if let Some(title) = self.title {
            event = event.title(title);
        }
        if let Some(description) = self.description {
            event = event.description(description);
        }
        if let Some(payload) = self.payload {
            event = event.payload_raw(payload);
        }
        if let Some(run_at) = self.run_at {
            event = event.run_at(run_at);
        }
        if let Some(delay_ms) = self.delay_ms {
            event = event.delay(Duration::from_millis(delay_ms));
        }
        if let Some(expires_at) = self.expires_at {
            event = event.expires_at(expires_at);
        }
        if let Some(expires_in_ms) = self.expires_in_ms {
            event = event.expires_in(Duration::from_millis(expires_in_ms));
        }
        if let Some(group_id) = self.group_id {
            event = event.group(group_id);
        }
        if let Some(key) = self.key {
            event = event.key(key);
        }
        if let Some(max_retries) = self.max_retries {
            event = event.max_retries(max_retries);
        }
        if let Some(metadata) = self.metadata {
            event = event.metadata(&metadata)?;
        }
        if let Some(producer) = self.producer {
            event = event.producer(producer);
        }
        Ok(event)
    }

    /// Takes over what the headers say.
    fn with_headers(mut self, headers: &HeaderMap) -> Result<PublishRequest, ApiError> {
        if let Some(header) = headers.get("idempotency-key") {
            let key = header.to_str().map_err(|_| ApiError::invalid("key", "Idempotency-Key must be ASCII"))?;
            if self.key.as_deref().is_some_and(|other| other != key) {
                return Err(ApiError::invalid("key", "differs from the header Idempotency-Key"));
            }
            self.key = Some(key.to_owned());
        }
        self.with_trace(headers)
    }

    /// Keeps the publisher's trace in the metadata, unless there is one already.
    fn with_trace(mut self, headers: &HeaderMap) -> Result<PublishRequest, ApiError> {
        let Some(parent) = headers.get("traceparent").and_then(|header| header.to_str().ok()) else { return Ok(self) };
        if !is_traceparent(parent) {
            return Ok(self);
        }
        let given = self.metadata.as_ref().map_or("{}", |metadata| metadata.get());
        let mut metadata: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(given).map_err(|_| ApiError::invalid("metadata", "must be a JSON object"))?;
        let state = headers.get("tracestate").and_then(|header| header.to_str().ok());
        for (name, value) in [("traceparent", Some(parent)), ("tracestate", state)] {
            if let Some(value) = value.filter(|_| !metadata.contains_key(name)) {
                metadata.insert(name.to_owned(), to_raw(value)?);
            }
        }
        self.metadata = Some(to_raw(&metadata)?);
        Ok(self)
    }
}

fn to_raw<T: Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, ApiError> {
    serde_json::value::to_raw_value(value).map_err(|error| ApiError::invalid("metadata", error))
}

/// `version-trace-parent-flags`, in lower-case hexadecimal; one that is not so is ignored, as W3C has it.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let zero = |part: &str| part.bytes().all(|byte| byte == b'0');
    lengths == [2, 32, 16, 2]
        && parts.iter().all(|part| hex(part))
        && parts[0] != "ff"
        && !zero(parts[1])
        && !zero(parts[2])
}

/// Publish an event
///
/// When this is answered, the event is stored and synced. A `key` that was seen before, within the
/// policy's window, stores nothing: the answer is 200 with the first event as it stands.
#[utoipa::path(
    post, path = "/events", tag = "publish", security(("token" = ["publish"])),
    request_body = PublishRequest,
    params(
        ("idempotency-key" = Option<String>, Header, description = "The same as `key` in the body."),
        ("traceparent" = Option<String>, Header, description = "W3C trace context; handed to the worker."),
        ("tracestate" = Option<String>, Header, description = "W3C trace context; handed to the worker."),
    ),
    responses(
        (status = 201, description = "Stored.", body = EventBody),
        (status = 200, description = "The key was seen before: the first event.", body = EventBody),
        (status = 404, description = "No such namespace."),
        (status = 409, description = "The key was used for an event with another type or payload; nothing was stored."),
    )
)]
async fn publish(
    InNamespace(queue): InNamespace,
    headers: HeaderMap,
    JsonBody(request, _room): JsonBody<PublishRequest>,
) -> Result<(StatusCode, Json<EventBody>), ApiError> {
    let published = queue.publish(request.with_headers(&headers)?.into_event()?).await?;
    if !published.duplicate {
        let body = EventBody::published(published.event, published.max_retries);
        return Ok((StatusCode::CREATED, Json(body)));
    }
    let body = match queue.get(published.event.id).await {
        Ok(first) => first.try_into()?,
        // Only what was completed is not kept.
        Err(Error::EventNotFound { .. }) => EventBody::forgotten(published.event, published.max_retries),
        Err(error) => return Err(error.into()),
    };
    Ok((StatusCode::OK, Json(body)))
}

/// Events to publish together.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct BatchRequest {
    /// All of them are stored, or none is.
    #[schema(value_type = Vec<PublishRequest>, max_items = 10000)]
    events: List<PublishRequest>,
}

/// What became of a batch.
#[derive(Serialize, ToSchema)]
struct StoredBatch {
    /// In the order they were sent.
    events: Vec<StoredBody>,
}

/// An event that was stored, or found by its key.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({ "id": 1001, "duplicate": false, "created_at": "2025-12-24T10:30:00Z" }))]
struct StoredBody {
    id: i64,
    /// The key was seen before: this is the first event, and nothing was stored.
    duplicate: bool,
    created_at: DateTime<Utc>,
}

impl From<Published> for StoredBody {
    fn from(Published { event, duplicate, .. }: Published) -> StoredBody {
        StoredBody { id: event.id, duplicate, created_at: event.created_at }
    }
}

/// Publish many events
///
/// All of them are stored, or none is: one that is not acceptable is named by its place.
#[utoipa::path(
    post, path = "/events/batch", tag = "publish", security(("token" = ["publish"])),
    request_body = BatchRequest,
    responses(
        (status = 201, description = "Stored.", body = StoredBatch),
        (status = 404, description = "No such namespace."),
        (status = 409, description = "The key was used for an event with another type or payload; nothing was stored."),
    )
)]
async fn publish_batch(
    InNamespace(queue): InNamespace,
    headers: HeaderMap,
    BatchBody(request, _room): BatchBody<BatchRequest>,
) -> Result<(StatusCode, Json<StoredBatch>), ApiError> {
    if headers.contains_key("idempotency-key") {
        return Err(ApiError::invalid("key", "each event of a batch has its own; Idempotency-Key says nothing here"));
    }
    let event = |event: PublishRequest| event.with_trace(&headers)?.into_event();
    let events = request.events.0.into_iter().enumerate();
    let events = events.map(|(index, new)| event(new).map_err(|error| error.in_item("events", index)));
    let published = queue.publish_all(events.collect::<Result<_, _>>()?).await?;
    Ok((StatusCode::CREATED, Json(StoredBatch { events: published.into_iter().map(Into::into).collect() })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_known_by_its_form() {
        assert!(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        for bad in [
            "",
            "a-b-c-d",
            "00-4bf9-00f0-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }
}
