//! What handlers take from a request, each refusal in the form of `error.rs`.

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

/// The queue, in the namespace that the path names: `default` where it names none.
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

/// A part of the path that the route names, if it does.
pub(crate) async fn path_part(parts: &mut Parts, name: &'static str) -> Result<Option<String>, ApiError> {
    let all = RawPathParams::from_request_parts(parts, &()).await;
    let all = all.map_err(|rejection| bad_request("invalid", format!("path: {}", rejection.body_text())))?;
    Ok(all.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()))
}

/// The query string.
pub(crate) struct Args<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Args<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Args<T>, ApiError> {
        if parts.uri.query().is_some_and(|query| query.contains("%00")) {
            return Err(bad_request("invalid", "query string: must not contain the character U+0000".to_owned()));
        }
        match Query::from_request_parts(parts, app).await {
            Ok(Query(args)) => Ok(Args(args)),
            Err(rejection) => Err(bad_request("invalid", format!("query string: {}", reason(&rejection)))),
        }
    }
}

/// An instant that every database knows. Before this one nothing happened, so it says the same.
pub(crate) fn known(instant: DateTime<Utc>) -> DateTime<Utc> {
    instant.max(DateTime::UNIX_EPOCH)
}

/// The body, as JSON, and the room it takes up for as long as it is worked on.
pub(crate) struct JsonBody<T>(pub T, pub Room);

/// The same for a body with many events in it.
pub(crate) struct BatchBody<T>(pub T, pub Room);

/// What a form holds, in the order of its fields, and the room it takes up.
pub(crate) struct FormBody(pub Vec<(String, String)>, pub Room);

impl FromRequest<App> for FormBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<FormBody, ApiError> {
        if content_type(request.headers()) != "application/x-www-form-urlencoded" {
            let error = "the body must be a form: `Content-Type: application/x-www-form-urlencoded`";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", error));
        }
        // Each byte of a payload may take three in a form.
        let max = event_bytes_max(app.queue.limits()).saturating_mul(3);
        let (bytes, room) = read_all(request, app, max).await?;
        let fields: Vec<(String, String)> = form_urlencoded::parse(&bytes).into_owned().collect();
        if fields.iter().any(|(_, value)| value.contains('\0')) {
            return Err(bad_request("invalid", "the form must not contain the character U+0000".to_owned()));
        }
        Ok(FormBody(fields, room))
    }
}

/// Given back when the request is done.
pub(crate) struct Room {
    permit: OwnedSemaphorePermit,
    bytes: usize,
}

impl Room {
    /// Room for a body that has grown to this size. It is taken as the body comes, in steps, so that nobody
    /// holds it by an announcement.
    fn grow(&mut self, app: &App, size: usize) -> Result<(), ApiError> {
        if size > self.bytes {
            let more = (size - self.bytes).next_multiple_of(ROOM_STEP);
            self.permit.merge(app.room(more)?);
            self.bytes += more;
        }
        Ok(())
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<JsonBody<T>, ApiError> {
        let max = event_bytes_max(app.queue.limits());
        read_json(request, app, max).await.map(|(value, room)| JsonBody(value, room))
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for BatchBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<BatchBody<T>, ApiError> {
        let max = app.options.batch_bytes_max.max(event_bytes_max(app.queue.limits()));
        read_json(request, app, max).await.map(|(value, room)| BatchBody(value, room))
    }
}

/// A payload, and room for all beside it. The library checks each field.
fn event_bytes_max(limits: &Limits) -> usize {
    limits.payload_bytes_max.saturating_add(128 << 10)
}

/// How long a client may take to send a body. Shorter than the whole request may take, so that a slow
/// client is told so.
const BODY_TIME: Duration = Duration::from_secs(20);

async fn read_json<T: DeserializeOwned + Send + 'static>(
    request: Request,
    app: &App,
    max: usize,
) -> Result<(T, Room), ApiError> {
    check_content_type(request.headers())?;
    let (bytes, room) = read_all(request, app, max).await?;
    if bytes.len() <= PARSED_AT_ONCE {
        return Ok((parse(&bytes)?, room));
    }
    // So that others are served meanwhile.
    match tokio::task::spawn_blocking(move || parse(&bytes)).await {
        Ok(parsed) => Ok((parsed?, room)),
        Err(error) => Err(bad_request("invalid", format!("the body could not be read: {error}"))),
    }
}

/// The body's bytes, within the limits of size, room and time.
async fn read_all(request: Request, app: &App, max: usize) -> Result<(Vec<u8>, Room), ApiError> {
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let reading = read(request.into_body(), app, announced.unwrap_or(0).min(max), max);
    timeout(BODY_TIME, reading).await.map_err(|_| {
        let error = format!("the body did not arrive within {} s", BODY_TIME.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "slow_request", error)
    })?
}

/// A body that is not larger than this is parsed in a millisecond or two.
const PARSED_AT_ONCE: usize = 1 << 20;

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| match Json::<T>::from_bytes(bytes) {
        // Once more, slower, to say where it is wrong.
        Err(rejection) => refused(&rejection),
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

/// How much of a body that is too large is read and thrown away.
const DISCARDED_MAX: usize = 64 << 20;

/// Room for a body is taken in such steps.
const ROOM_STEP: usize = 16 << 10;

/// Reads the body, to its end even where it is too large: many clients do not look at the answer
/// before they have sent everything, and would see nothing but a broken connection.
async fn read(mut body: Body, app: &App, announced: usize, max: usize) -> Result<(Vec<u8>, Room), ApiError> {
    let first = announced.min(ROOM_STEP);
    let mut room = Room { permit: app.room(first)?, bytes: first };
    let (mut bytes, mut size) = (Vec::with_capacity(first), 0usize);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|error| bad_request("invalid", format!("the body could not be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        size = size.saturating_add(data.len());
        if size <= max {
            room.grow(app, size)?;
            bytes.extend_from_slice(&data);
        } else if size > max.saturating_add(DISCARDED_MAX) {
            break;
        }
    }
    if size > max {
        let error = format!("the request body is larger than {max} bytes");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error));
    }
    Ok((bytes, room))
}

fn refused(rejection: &JsonRejection) -> ApiError {
    match rejection {
        JsonRejection::JsonSyntaxError(_) => {
            bad_request("invalid_json", format!("the body is not valid JSON: {}", reason(rejection)))
        }
        _ => bad_request("invalid", format!("the body is not as expected: {}", reason(rejection))),
    }
}

fn bad_request(code: &'static str, error: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, code, error)
}

/// What the parser said, without axum's introduction to it.
fn reason(rejection: &dyn std::error::Error) -> String {
    rejection.source().map_or_else(|| rejection.to_string(), ToString::to_string)
}
