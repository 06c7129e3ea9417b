//! `/nodes`: registered processes and their heartbeats.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::NodeView;

use crate::NameList;

/// The nodes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodesBody {
    /// By id.
    pub nodes: Vec<NodeView>,
}

/// Properties of a node.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "display_name": "Shop API", "event_types": ["order.paid"] }))]
pub struct RegisterNodeRequest {
    /// Display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Purpose of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON object defined by the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Box<RawValue>>,
    /// The event types that the node handles, each exact or a prefix ending in `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_types: Option<NameList>,
}

/// The recorded heartbeat.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeHeartbeatBody {
    /// The node.
    pub node_id: String,
    /// When the heartbeat arrived.
    pub last_heartbeat: DateTime<Utc>,
}
