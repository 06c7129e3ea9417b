//! Every failure as an answer: a status, and `{"error": sentence, "code": stable_word}`.

use std::time::Duration;

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use windlass::Error;

/// Every code that an answer can carry. `docs/errors.md` has a section for each.
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

/// How long a client that is turned away for the moment should wait, in seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// A failure, on its way to the client.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub body: ErrorBody,
}

/// What went wrong.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(example = json!({ "error": "max: must be from 1 to 1000", "code": "invalid", "field": "max" }))]
pub(crate) struct ErrorBody {
    /// A sentence for people.
    pub error: String,
    /// A word for programs; it stays the same across versions. See docs/errors.md.
    pub code: &'static str,
    /// The field that is not acceptable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<&'static str>,
    /// With `max_retries_exceeded`: the failures that were reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_count: Option<u32>,
    /// With `max_retries_exceeded`: the failures that were allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_retries: Option<u32>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, error: impl Into<String>) -> ApiError {
        debug_assert!(CODES.contains(&code), "{code} is not in CODES");
        let body = ErrorBody { error: error.into(), code, field: None, retry_count: None, max_retries: None };
        ApiError { status, body }
    }

    /// A value that the client sent is not acceptable.
    pub fn invalid(field: &'static str, problem: impl std::fmt::Display) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid", format!("{field}: {problem}")).of_field(field)
    }

    /// Not now; later perhaps.
    pub fn unavailable(code: &'static str, error: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, error)
    }

    /// Nothing is known yet.
    pub fn timed_out(limit: Duration) -> ApiError {
        let error = format!("no answer within {} s; what was asked for may or may not be done", limit.as_secs());
        ApiError::unavailable("timed_out", error)
    }

    /// The report was stored, and it was the last: the source document wants an error here.
    pub fn max_retries_exceeded(retry_count: u32, max_retries: u32) -> ApiError {
        let mut error = ApiError::new(StatusCode::BAD_REQUEST, "max_retries_exceeded", "Max retries exceeded");
        (error.body.retry_count, error.body.max_retries) = (Some(retry_count), Some(max_retries));
        error
    }

    /// It is about one of several things that were sent together.
    pub fn in_item(mut self, what: &str, index: usize) -> ApiError {
        self.body.error = format!("{what}[{index}]: {}", self.body.error);
        self
    }

    fn of_field(mut self, field: &'static str) -> ApiError {
        self.body.field = Some(field);
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

/// What is meant to be large is too large; a name that is too long is a bad name.
fn too_large(field: &str) -> StatusCode {
    match field {
        "payload" | "metadata" | "detail" => StatusCode::PAYLOAD_TOO_LARGE,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// The driver's words, which may name hosts and files, go to the log only.
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
        // For the dashboard, which says the same on a page.
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
    fn codes_are_in_order_and_distinct() {
        assert!(CODES.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn each_code_has_its_section_in_the_document() {
        let document = include_str!("../../../docs/errors.md");
        let sections: Vec<&str> = document.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(sections, CODES);
    }

    #[test]
    fn a_payload_is_too_large_but_a_name_is_bad() {
        let error = |field| ApiError::from(Error::TooLarge { field, size: 300, max: 200 });
        assert_eq!(error("payload").status, 413);
        assert_eq!(error("worker_id").status, 400);
    }

    #[test]
    fn what_the_driver_says_stays_in_the_log() {
        let error = ApiError::from(Error::DatabaseUnavailable { detail: "10.1.2.3:5432 refused".into() });
        assert_eq!(error.status, 503);
        assert!(!error.body.error.contains("10.1.2.3"), "{}", error.body.error);
    }
}
