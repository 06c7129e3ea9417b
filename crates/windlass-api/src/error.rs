//! Error responses: `{"error": sentence, "code": stable_word}`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An error.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "error": "max: must be from 1 to 1000", "code": "invalid", "field": "max" }))]
pub struct ErrorBody {
    /// The message, for people.
    pub error: String,
    /// The code, for programs. It stays the same across versions. See docs/errors.md.
    pub code: Cow<'static, str>,
    /// The invalid field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<Cow<'static, str>>,
    /// With `max_retries_exceeded`: the number of reported failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u32>,
    /// With `max_retries_exceeded`: the number of allowed failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
}
