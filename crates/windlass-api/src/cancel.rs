//! `POST /events/{id}/cancel`, `POST /events/cancel`: cancel pending deliveries.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{BoundedList, NameList};

/// The canceled event.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CancelledBody {
    /// The event.
    pub event_id: i64,
    /// Number of canceled deliveries.
    pub cancelled: usize,
}

/// Selects the pending deliveries that match all given fields.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "types": "order.*", "tags": "email" }))]
pub struct CancelRequest {
    /// Deliveries of these events.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<i64>>)]
    pub event_ids: Option<BoundedList<i64>>,
    /// Deliveries of these types, each exact or a prefix ending in `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub types: Option<NameList>,
    /// Deliveries of events with any of these tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<NameList>,
    /// Deliveries of this subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// All pending deliveries. Must be true if no other field is given.
    #[serde(default)]
    pub all: bool,
}

/// The number of canceled deliveries.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CancelledManyBody {
    /// Number of canceled deliveries.
    pub cancelled: usize,
}
