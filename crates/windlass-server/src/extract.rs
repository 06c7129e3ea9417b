//! What handlers take from a request, each refusal in the form of `error.rs`.

use std::future::poll_fn;
use std::pin::Pin;

use axum::Json;
use axum::body::{Body, HttpBody};
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use windlass::Queue;

use crate::error::ApiError;

/// The queue, in the namespace that the path names: `default` where it names none.
pub(crate) struct InNamespace(pub Queue);

impl FromRequestParts<Queue> for InNamespace {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, queue: &Queue) -> Result<InNamespace, ApiError> {
        Ok(InNamespace(match path_part(parts, "namespace").await? {
            Some(namespace) => queue.in_namespace(&namespace)?,
            None => queue.clone(),
        }))
    }
}

/// The `{id}` of the path.
pub(crate) struct EventId(pub i64);

impl FromRequestParts<Queue> for EventId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Queue) -> Result<EventId, ApiError> {
        let id = path_part(parts, "id").await?.unwrap_or_default();
        let bad = |_| ApiError::invalid(format!("id: '{}' is not the number of an event", id.escape_debug()));
        id.parse().map(EventId).map_err(bad)
    }
}

async fn path_part(parts: &mut Parts, name: &str) -> Result<Option<String>, ApiError> {
    let all = RawPathParams::from_request_parts(parts, &()).await;
    let all = all.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    Ok(all.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()))
}

/// The query string.
pub(crate) struct Args<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Queue> for Args<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, queue: &Queue) -> Result<Args<T>, ApiError> {
        match Query::from_request_parts(parts, queue).await {
            Ok(Query(args)) => Ok(Args(args)),
            Err(rejection) => Err(ApiError::invalid(format!("query string: {}", reason(&rejection)))),
        }
    }
}

/// The body, as JSON.
pub(crate) struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Queue> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, queue: &Queue) -> Result<JsonBody<T>, ApiError> {
        let (parts, body) = request.into_parts();
        let bytes = read(body, queue.limits().payload_bytes_max.saturating_add(BESIDE_PAYLOAD)).await?;
        match Json::from_request(Request::from_parts(parts, Body::from(bytes)), queue).await {
            Ok(Json(value)) => Ok(JsonBody(value)),
            Err(rejection) => Err(refused(&rejection)),
        }
    }
}

/// Room in a body for all but the payload. The library checks each field.
const BESIDE_PAYLOAD: usize = 128 << 10;

/// How much of a body that is too large is read and thrown away.
const DISCARDED_MAX: usize = 64 << 20;

/// Reads the body, to its end even where it is too large: many clients do not look at the answer
/// before they have sent everything, and would see nothing but a broken connection.
async fn read(mut body: Body, max: usize) -> Result<Vec<u8>, ApiError> {
    let (mut bytes, mut size) = (Vec::new(), 0usize);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|error| ApiError::invalid(format!("the body could not be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        size = size.saturating_add(data.len());
        if size <= max {
            bytes.extend_from_slice(&data);
        } else if size > max.saturating_add(DISCARDED_MAX) {
            break;
        }
    }
    if size > max {
        let error = format!("the request body is larger than {max} bytes");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error));
    }
    Ok(bytes)
}

fn refused(rejection: &JsonRejection) -> ApiError {
    match rejection {
        JsonRejection::MissingJsonContentType(_) => ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "the body must be JSON, and the request must say so: `Content-Type: application/json`",
        ),
        JsonRejection::JsonSyntaxError(_) => ApiError::new(
            StatusCode::BAD_REQUEST,
            "invalid_json",
            format!("the body is not valid JSON: {}", reason(rejection)),
        ),
        _ => ApiError::invalid(format!("the body is not as expected: {}", reason(rejection))),
    }
}

/// What the parser said, without axum's introduction to it.
fn reason(rejection: &dyn std::error::Error) -> String {
    rejection.source().map_or_else(|| rejection.to_string(), ToString::to_string)
}
