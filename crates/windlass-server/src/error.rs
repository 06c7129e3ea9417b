//! Every failure as an answer: a status, and `{"error": sentence, "code": stable_word}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use windlass::Error;

/// A failure, on its way to the client.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    error: String,
}

#[derive(Serialize)]
struct Body {
    error: String,
    code: &'static str,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, error: impl Into<String>) -> ApiError {
        ApiError { status, code, error: error.into() }
    }

    /// A value that the client sent is not acceptable.
    pub fn invalid(error: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid", error)
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        let status = match &error {
            Error::Invalid { .. } => StatusCode::BAD_REQUEST,
            Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Error::NamespaceNotFound { .. } | Error::SubscriptionNotFound { .. } | Error::EventNotFound { .. } => {
                StatusCode::NOT_FOUND
            }
            Error::Exists { .. } | Error::WrongStatus { .. } => StatusCode::CONFLICT,
            Error::DatabaseReadOnly { .. } | Error::Closed => StatusCode::SERVICE_UNAVAILABLE,
            error if error.is_temporary() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError::new(status, error.code(), error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), code = self.code, "{}", self.error);
        }
        (self.status, Json(Body { error: self.error, code: self.code })).into_response()
    }
}
