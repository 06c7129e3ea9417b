//! `POST /events` and `POST /events/batch`: publish events.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Error, MAIN, NewEvent, Published};
use windlass_api::{EventBody, PublishBatchRequest, PublishRequest, PublishedBatchBody, PublishedBody};

use super::event_body;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{BatchBody, InNamespace, JsonBody};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(publish)).routes(routes!(publish_batch))
}

/// The type of events published without one.
const DEFAULT_TYPE: &str = "event";

fn new_event(request: PublishRequest) -> Result<NewEvent, ApiError> {
    if request.title.is_none() && request.event_type.is_none() {
        return Err(ApiError::invalid("title", "is required for an event without a type"));
    }
    let event_type = request.event_type.unwrap_or_else(|| DEFAULT_TYPE.to_owned());
    let mut event = NewEvent::new(event_type).tags_text(request.tags.into_text()).priority(request.priority);
    // One `if` for each field, so that the library's builder needs no setters that take options.
    if let Some(title) = request.title {
        event = event.title(title);
    }
    if let Some(description) = request.description {
        event = event.description(description);
    }
    if let Some(payload) = request.payload {
        event = event.payload_raw(payload);
    }
    if let Some(run_at) = request.run_at {
        event = event.run_at(run_at);
    }
    if let Some(delay_ms) = request.delay_ms {
        event = event.delay(Duration::from_millis(delay_ms));
    }
    if let Some(expires_at) = request.expires_at {
        event = event.expires_at(expires_at);
    }
    if let Some(expires_in_ms) = request.expires_in_ms {
        event = event.expires_in(Duration::from_millis(expires_in_ms));
    }
    if let Some(group_id) = request.group_id {
        event = event.group(group_id);
    }
    if let Some(key) = request.key {
        event = event.key(key);
    }
    if let Some(max_retries) = request.max_retries {
        event = event.max_retries(max_retries);
    }
    if let Some(metadata) = request.metadata {
        event = event.metadata(&metadata)?;
    }
    if let Some(producer) = request.producer {
        event = event.producer(producer);
    }
    Ok(event)
}

/// Applies the headers `Idempotency-Key`, `traceparent` and `tracestate`.
fn with_headers(mut request: PublishRequest, headers: &HeaderMap) -> Result<PublishRequest, ApiError> {
    if let Some(header) = headers.get("idempotency-key") {
        let key = header.to_str().map_err(|_| ApiError::invalid("key", "Idempotency-Key must be ASCII"))?;
        if request.key.as_deref().is_some_and(|other| other != key) {
            return Err(ApiError::invalid("key", "differs from the header Idempotency-Key"));
        }
        request.key = Some(key.to_owned());
    }
    with_trace(request, headers)
}

/// Stores the publisher's trace in the metadata, unless it contains one already.
fn with_trace(mut request: PublishRequest, headers: &HeaderMap) -> Result<PublishRequest, ApiError> {
    let Some(parent) = headers.get("traceparent").and_then(|header| header.to_str().ok()) else { return Ok(request) };
    if !is_traceparent(parent) {
        return Ok(request);
    }
    let given = request.metadata.as_ref().map_or("{}", |metadata| metadata.get());
    let mut metadata: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(given).map_err(|_| ApiError::invalid("metadata", "must be a JSON object"))?;
    let state = headers.get("tracestate").and_then(|header| header.to_str().ok());
    for (name, value) in [("traceparent", Some(parent)), ("tracestate", state)] {
        if let Some(value) = value.filter(|_| !metadata.contains_key(name)) {
            metadata.insert(name.to_owned(), to_raw(value)?);
        }
    }
    request.metadata = Some(to_raw(&metadata)?);
    Ok(request)
}

fn to_raw<T: Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, ApiError> {
    serde_json::value::to_raw_value(value).map_err(|error| ApiError::invalid("metadata", error))
}

/// Whether a text has the form `version-trace-parent-flags` in lower-case hexadecimal. As W3C requires, any other is
/// ignored.
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
/// The event is stored durably before the response is sent. If the `key` was used within the policy's window, nothing
/// is stored, and the response is 200 with the first event in its current state.
#[utoipa::path(
    post, path = "/events", tag = "publish", security(("token" = ["publish"])),
    request_body = PublishRequest,
    params(
        ("idempotency-key" = Option<String>, Header, description = "The same as `key` in the body."),
        ("traceparent" = Option<String>, Header, description = "W3C trace context; delivered to the worker."),
        ("tracestate" = Option<String>, Header, description = "W3C trace context; delivered to the worker."),
    ),
    responses(
        (status = 201, description = "Stored.", body = EventBody),
        (status = 200, description = "The key was used before: the first event.", body = EventBody),
        (status = 404, description = "No such namespace."),
        (status = 409, description = "The key was used for an event with another type or payload; nothing was stored."),
    )
)]
async fn publish(
    InNamespace(queue): InNamespace,
    headers: HeaderMap,
    JsonBody(request, _memory): JsonBody<PublishRequest>,
) -> Result<(StatusCode, Json<EventBody>), ApiError> {
    let published = queue.publish(new_event(with_headers(request, &headers)?)?).await?;
    if !published.duplicate {
        let body = event_body::published(published.event, published.max_retries);
        return Ok((StatusCode::CREATED, Json(body)));
    }
    let body = match queue.get(published.event.id).await {
        Ok(first) => event_body::for_subscription(MAIN, first)?,
        // Only completed events can be missing: their history may be disabled by the policy.
        Err(Error::EventNotFound { .. }) => {
            event_body::completed_without_history(published.event, published.max_retries)
        }
        Err(error) => return Err(error.into()),
    };
    Ok((StatusCode::OK, Json(body)))
}

fn published_body(Published { event, duplicate, .. }: Published) -> PublishedBody {
    PublishedBody { id: event.id, duplicate, created_at: event.created_at }
}

/// Publish a batch of events
///
/// Either all are stored or none. An error names the position of the invalid event.
#[utoipa::path(
    post, path = "/events/batch", tag = "publish", security(("token" = ["publish"])),
    request_body = PublishBatchRequest,
    responses(
        (status = 201, description = "Stored.", body = PublishedBatchBody),
        (status = 404, description = "No such namespace."),
        (status = 409, description = "The key was used for an event with another type or payload; nothing was stored."),
    )
)]
async fn publish_batch(
    InNamespace(queue): InNamespace,
    headers: HeaderMap,
    BatchBody(request, _memory): BatchBody<PublishBatchRequest>,
) -> Result<(StatusCode, Json<PublishedBatchBody>), ApiError> {
    if headers.contains_key("idempotency-key") {
        return Err(ApiError::invalid(
            "key",
            "each event of a batch has its own key; the header Idempotency-Key is not allowed here",
        ));
    }
    let event = |event: PublishRequest| new_event(with_trace(event, &headers)?);
    let events = request.events.0.into_iter().enumerate();
    let events = events.map(|(index, new)| event(new).map_err(|error| error.in_item("events", index)));
    let published = queue.publish_all(events.collect::<Result<_, _>>()?).await?;
    Ok((StatusCode::CREATED, Json(PublishedBatchBody { events: published.into_iter().map(published_body).collect() })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparent_is_recognized_by_its_form() {
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
