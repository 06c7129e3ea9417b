//! Error responses: a status, and `{"error": sentence, "code": stable_word}`.

use std::time::Duration;

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use windlass::Error;
use windlass_api::ErrorBody;

/// Every error code of the API. `docs/errors.md` has a section for each.
pub(crate) const CODES: &[&str] = &[
    "closed",
    "cross_site",
    "database",
    "database_full",
    "database_locked",
    "database_read_only",
    "database_unavailable",
    "dead_letter_not_found",
    "event_not_found",
    "exists",
    "invalid",
    "invalid_json",
    "key_conflict",
    "lost",
    "max_retries_exceeded",
    "namespace_not_found",
    "no_token",
    "node_not_found",
    "other_namespace",
    "overloaded",
    "schedule_not_found",
    "shutting_down",
    "slow_request",
    "subscription_not_found",
    "timed_out",
    "token_in_query",
    "too_large",
    "too_many_filters",
    "too_many_streams",
    "too_many_waiting",
    "unknown_path",
    "unsupported_media_type",
    "wrong_method",
    "wrong_scope",
    "wrong_status",
    "wrong_token",
];

/// The `Retry-After` of 429 and 503 responses, in seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// An error response.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub body: ErrorBody,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, error: impl Into<String>) -> ApiError {
        debug_assert!(CODES.contains(&code), "{code} is not in CODES");
        let body =
            ErrorBody { error: error.into(), code: code.into(), field: None, retry_count: None, max_retries: None };
        ApiError { status, body }
    }

    /// 400: a value that the client sent is invalid.
    pub fn invalid(field: &'static str, problem: impl std::fmt::Display) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid", format!("{field}: {problem}")).of_field(field)
    }

    /// 503: the client may retry.
    pub fn unavailable(code: &'static str, error: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, error)
    }

    /// 503: the request took too long and its outcome is unknown.
    pub fn timed_out(limit: Duration) -> ApiError {
        let error = format!("no response within {} s; the request may or may not have taken effect", limit.as_secs());
        ApiError::unavailable("timed_out", error)
    }

    /// 400, although the report was stored: the API contract requires an error for the last failure.
    pub fn max_retries_exceeded(retry_count: u32, max_retries: u32) -> ApiError {
        let mut error = ApiError::new(StatusCode::BAD_REQUEST, "max_retries_exceeded", "Max retries exceeded");
        (error.body.retry_count, error.body.max_retries) = (Some(retry_count), Some(max_retries));
        error
    }

    /// Names the item of the request that the error is about.
    pub fn in_item(mut self, what: &str, index: usize) -> ApiError {
        self.body.error = format!("{what}[{index}]: {}", self.body.error);
        self
    }

    fn of_field(mut self, field: &'static str) -> ApiError {
        self.body.field = Some(field.into());
        self
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        let (status, field) = match error.in_item() {
            Error::Invalid { field, .. } => (StatusCode::BAD_REQUEST, Some(*field)),
            Error::TooLarge { field, .. } => (too_large(field), Some(*field)),
            Error::NamespaceNotFound { .. }
            | Error::SubscriptionNotFound { .. }
            | Error::EventNotFound { .. }
            | Error::NodeNotFound { .. }
            | Error::ScheduleNotFound { .. } => (StatusCode::NOT_FOUND, None),
            Error::KeyConflict { .. } => (StatusCode::CONFLICT, Some("key")),
            Error::Exists { .. } | Error::WrongStatus { .. } => (StatusCode::CONFLICT, None),
            Error::TooManyFilters { .. } => (StatusCode::TOO_MANY_REQUESTS, None),
            _ => return of_database(&error),
        };
        let answer = ApiError::new(status, error.code(), error.to_string());
        match field {
            Some(field) => answer.of_field(field),
            None => answer,
        }
    }
}

/// 413 for fields that hold data. A name that is too long is an invalid name: 400.
fn too_large(field: &str) -> StatusCode {
    match field {
        "payload" | "metadata" | "detail" => StatusCode::PAYLOAD_TOO_LARGE,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// The driver's message may name hosts and files, so it is logged and not sent to the client.
fn of_database(error: &Error) -> ApiError {
    tracing::warn!(code = error.code(), "{error}");
    match error {
        Error::DatabaseUnavailable { .. } => ApiError::unavailable(
            error.code(),
            "the database cannot be reached at the moment; if something was sent to be stored, it may or may not be",
        ),
        Error::DatabaseLocked { .. } => {
            ApiError::unavailable(error.code(), "another process keeps the database locked; nothing was changed")
        }
        Error::DatabaseReadOnly { .. } => {
            ApiError::unavailable(error.code(), "the database can only be read at the moment; nothing was changed")
        }
        Error::DatabaseFull { .. } => {
            ApiError::unavailable(error.code(), "the database has no space left; nothing was changed")
        }
        Error::Closed => ApiError::unavailable(error.code(), "the server is closing its database"),
        _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "database", "the database failed; the log says how"),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, later) = (self.status, matches!(self.status.as_u16(), 429 | 503));
        let mut response = (status, Json(&self.body)).into_response();
        // The dashboard renders the same error as a page.
        response.extensions_mut().insert(self.body);
        if later {
            response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_are_sorted_and_unique() {
        assert!(CODES.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn each_error_code_is_documented() {
        let document = include_str!("../../../docs/errors.md");
        let sections: Vec<&str> = document.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(sections, CODES);
    }

    #[test]
    fn large_payload_is_413_and_long_name_is_400() {
        let error = |field| ApiError::from(Error::TooLarge { field, size: 300, max: 200 });
        assert_eq!(error("payload").status, 413);
        assert_eq!(error("worker_id").status, 400);
    }

    #[test]
    fn driver_message_is_not_sent_to_the_client() {
        let error = ApiError::from(Error::DatabaseUnavailable { detail: "10.1.2.3:5432 refused".into() });
        assert_eq!(error.status, 503);
        assert!(!error.body.error.contains("10.1.2.3"), "{}", error.body.error);
    }
}
