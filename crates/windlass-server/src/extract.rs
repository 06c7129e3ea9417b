//! Extractors: path parameters, query strings and request bodies. A rejection is an [`ApiError`].
//!
//! Request bodies are limited in size, in time and in the memory that all of them use together.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, HttpBody};
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use windlass::{Limits, Queue};

use crate::app::App;
use crate::error::ApiError;

/// The queue in the namespace of the path; `default` if the path names none.
pub(crate) struct InNamespace(pub Queue);

impl FromRequestParts<App> for InNamespace {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<InNamespace, ApiError> {
        Ok(InNamespace(match path_part(parts, "namespace").await? {
            Some(namespace) => app.queue.in_namespace(&namespace)?,
            None => app.queue.clone(),
        }))
    }
}

/// The `{id}` of the path.
pub(crate) struct EventId(pub i64);

impl FromRequestParts<App> for EventId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<EventId, ApiError> {
        let id = path_part(parts, "id").await?.unwrap_or_default();
        let bad = |_| ApiError::invalid("id", format!("'{}' is not the number of an event", id.escape_debug()));
        id.parse().map(EventId).map_err(bad)
    }
}

/// The `{subscription}` of the path.
pub(crate) struct SubscriptionName(pub String);

impl FromRequestParts<App> for SubscriptionName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<SubscriptionName, ApiError> {
        path_part(parts, "subscription").await.map(|name| SubscriptionName(name.unwrap_or_default()))
    }
}

/// The `{node_id}` of the path.
pub(crate) struct NodeId(pub String);

impl FromRequestParts<App> for NodeId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<NodeId, ApiError> {
        path_part(parts, "node_id").await.map(|id| NodeId(id.unwrap_or_default()))
    }
}

/// The `{schedule_id}` of the path.
pub(crate) struct ScheduleId(pub String);

impl FromRequestParts<App> for ScheduleId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<ScheduleId, ApiError> {
        path_part(parts, "schedule_id").await.map(|id| ScheduleId(id.unwrap_or_default()))
    }
}

/// A parameter of the path, if the route has it.
pub(crate) async fn path_part(parts: &mut Parts, name: &'static str) -> Result<Option<String>, ApiError> {
    let all = RawPathParams::from_request_parts(parts, &()).await;
    let all = all.map_err(|rejection| bad_request("invalid", format!("path: {}", rejection.body_text())))?;
    Ok(all.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()))
}

/// The query string.
pub(crate) struct QueryArgs<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for QueryArgs<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<QueryArgs<T>, ApiError> {
        if parts.uri.query().is_some_and(|query| query.contains("%00")) {
            return Err(bad_request("invalid", "query string: must not contain the character U+0000".to_owned()));
        }
        match Query::from_request_parts(parts, app).await {
            Ok(Query(args)) => Ok(QueryArgs(args)),
            Err(rejection) => Err(bad_request("invalid", format!("query string: {}", parser_message(&rejection)))),
        }
    }
}

/// Raises a timestamp to 1970, so that every database can represent it. No event is older.
pub(crate) fn clamp_to_epoch(timestamp: DateTime<Utc>) -> DateTime<Utc> {
    timestamp.max(DateTime::UNIX_EPOCH)
}

/// A JSON body, and the memory that it occupies while the request is handled.
pub(crate) struct JsonBody<T>(pub T, pub BodyMemory);

/// Like [`JsonBody`], for a body with many events.
pub(crate) struct BatchBody<T>(pub T, pub BodyMemory);

/// The fields of a form in order, and the memory that they occupy.
pub(crate) struct FormBody(pub Vec<(String, String)>, pub BodyMemory);

impl FromRequest<App> for FormBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<FormBody, ApiError> {
        if content_type(request.headers()) != "application/x-www-form-urlencoded" {
            let error = "the body must be a form: `Content-Type: application/x-www-form-urlencoded`";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", error));
        }
        // URL encoding may triple the size of a payload.
        let max = event_bytes_max(app.queue.limits()).saturating_mul(3);
        let (bytes, memory) = read_body(request, app, max).await?;
        let fields: Vec<(String, String)> = form_urlencoded::parse(&bytes).into_owned().collect();
        if fields.iter().any(|(_, value)| value.contains('\0')) {
            return Err(bad_request("invalid", "the form must not contain the character U+0000".to_owned()));
        }
        Ok(FormBody(fields, memory))
    }
}

/// Memory reserved for one body; released when the request ends.
pub(crate) struct BodyMemory {
    permit: OwnedSemaphorePermit,
    bytes: usize,
}

impl BodyMemory {
    /// Reserves memory for a body that has grown to this size. Memory is reserved in steps while the body arrives, so
    /// that a `Content-Length` header alone reserves almost none.
    fn grow(&mut self, app: &App, size: usize) -> Result<(), ApiError> {
        if size > self.bytes {
            let more = (size - self.bytes).next_multiple_of(MEMORY_STEP);
            self.permit.merge(app.reserve_body_memory(more)?);
            self.bytes += more;
        }
        Ok(())
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<JsonBody<T>, ApiError> {
        let max = event_bytes_max(app.queue.limits());
        read_json(request, app, max).await.map(|(value, memory)| JsonBody(value, memory))
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for BatchBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<BatchBody<T>, ApiError> {
        let max = app.options.batch_bytes_max.max(event_bytes_max(app.queue.limits()));
        read_json(request, app, max).await.map(|(value, memory)| BatchBody(value, memory))
    }
}

/// The largest body with one event: a payload and its other fields. The library checks each field.
fn event_bytes_max(limits: &Limits) -> usize {
    limits.payload_bytes_max.saturating_add(128 << 10)
}

/// How long a client may take to send a body. Shorter than the request timeout, so that a slow client receives
/// `slow_request` and not `timed_out`.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

async fn read_json<T: DeserializeOwned + Send + 'static>(
    request: Request,
    app: &App,
    max: usize,
) -> Result<(T, BodyMemory), ApiError> {
    check_content_type(request.headers())?;
    let (bytes, memory) = read_body(request, app, max).await?;
    if bytes.len() <= INLINE_PARSE_BYTES_MAX {
        return Ok((parse(&bytes)?, memory));
    }
    // A large body is parsed on the blocking pool, so that other requests are served meanwhile.
    match tokio::task::spawn_blocking(move || parse(&bytes)).await {
        Ok(parsed) => Ok((parsed?, memory)),
        Err(error) => Err(bad_request("invalid", format!("the body could not be read: {error}"))),
    }
}

/// Reads the body within the limits of size, memory and time.
async fn read_body(request: Request, app: &App, max: usize) -> Result<(Vec<u8>, BodyMemory), ApiError> {
    let content_length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let reading = read_chunks(request.into_body(), app, content_length.unwrap_or(0).min(max), max);
    timeout(BODY_TIMEOUT, reading).await.map_err(|_| {
        let error = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "slow_request", error)
    })?
}

/// A body of at most this size is parsed in one or two milliseconds.
const INLINE_PARSE_BYTES_MAX: usize = 1 << 20;

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| match Json::<T>::from_bytes(bytes) {
        // Parse again, slower, for an error that names the position.
        Err(rejection) => json_error(&rejection),
        Ok(_) => bad_request("invalid", format!("the body is not as expected: {error}")),
    })
}

fn content_type(headers: &HeaderMap) -> String {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = content_type(headers);
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        "the body must be JSON, and the request must say so: `Content-Type: application/json`",
    ))
}

/// How many bytes beyond the limit are read and discarded.
const DISCARDED_BYTES_MAX: usize = 64 << 20;

/// The step in which memory for a body is reserved.
const MEMORY_STEP: usize = 16 << 10;

/// Reads the body. A body that is too large is read to its end as well: many clients read the response only after
/// they have sent everything, and would otherwise see a broken connection.
async fn read_chunks(
    mut body: Body,
    app: &App,
    content_length: usize,
    max: usize,
) -> Result<(Vec<u8>, BodyMemory), ApiError> {
    let first = content_length.min(MEMORY_STEP);
    let mut memory = BodyMemory { permit: app.reserve_body_memory(first)?, bytes: first };
    let (mut bytes, mut size) = (Vec::with_capacity(first), 0usize);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|error| bad_request("invalid", format!("the body could not be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        size = size.saturating_add(data.len());
        if size <= max {
            memory.grow(app, size)?;
            bytes.extend_from_slice(&data);
        } else if size > max.saturating_add(DISCARDED_BYTES_MAX) {
            break;
        }
    }
    if size > max {
        let error = format!("the request body is larger than {max} bytes");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error));
    }
    Ok((bytes, memory))
}

fn json_error(rejection: &JsonRejection) -> ApiError {
    match rejection {
        JsonRejection::JsonSyntaxError(_) => {
            bad_request("invalid_json", format!("the body is not valid JSON: {}", parser_message(rejection)))
        }
        _ => bad_request("invalid", format!("the body is not as expected: {}", parser_message(rejection))),
    }
}

fn bad_request(code: &'static str, error: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, code, error)
}

/// The parser's message, without the text that axum puts before it.
fn parser_message(rejection: &dyn std::error::Error) -> String {
    rejection.source().map_or_else(|| rejection.to_string(), ToString::to_string)
}
