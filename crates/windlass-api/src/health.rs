//! `/healthz` and `/readyz`: the state of the server.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The server is healthy.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HealthBody {
    /// `ok`
    pub status: Cow<'static, str>,
}
