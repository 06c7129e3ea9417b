//! `/nodes`: which processes there are, and which of them live.

use axum::Json;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Error, NewNode, NodeView, Queue};

use super::names::Names;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{InNamespace, JsonBody, NodeId};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_nodes))
        .routes(routes!(register_node, stop_node))
        .routes(routes!(touch_node))
}

/// The nodes.
#[derive(Serialize, ToSchema)]
struct NodesBody {
    nodes: Vec<NodeView>,
}

/// List nodes
///
/// One that was silent for three heartbeats of 30 s is `stale`; after a week it is forgotten.
#[utoipa::path(
    get, path = "/nodes", tag = "nodes", security(("token" = ["read"])),
    responses(
        (status = 200, description = "The nodes, by id.", body = NodesBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn list_nodes(InNamespace(queue): InNamespace) -> Result<Json<NodesBody>, ApiError> {
    Ok(Json(NodesBody { nodes: queue.nodes().await? }))
}

/// What a node says of itself.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "display_name": "Shop API", "event_types": ["order.paid"] }))]
struct RegisterRequest {
    /// A name for people.
    display_name: Option<String>,
    /// What it is for.
    description: Option<String>,
    /// A JSON object with anything people want to keep with it.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// The event types that it handles, each exact or a prefix ending in `*`.
    event_types: Option<Names>,
}

impl RegisterRequest {
    fn into_node(self, node_id: &str) -> Result<NewNode, ApiError> {
        let mut node = NewNode::new(node_id).event_types(self.event_types.unwrap_or_default().into_list());
        if let Some(display_name) = self.display_name {
            node = node.display_name(display_name);
        }
        if let Some(description) = self.description {
            node = node.description(description);
        }
        Ok(match self.metadata {
            Some(metadata) => node.metadata(&metadata)?,
            None => node,
        })
    }
}

/// Register a node
///
/// Or refresh what is known of it: all but when it was registered is replaced. In its id, characters other than ASCII
/// letters, digits, `-`, `_`, `.` and `:` become `-`; the answer has the id that is used.
#[utoipa::path(
    put, path = "/nodes/{node_id}", tag = "nodes", security(("token" = ["consume"])),
    params(("node_id" = String, Path, description = "Its id.")),
    request_body = RegisterRequest,
    responses(
        (status = 200, description = "Registered.", body = NodeView),
        (status = 404, description = "No such namespace."),
    )
)]
async fn register_node(
    InNamespace(queue): InNamespace,
    NodeId(node_id): NodeId,
    JsonBody(request, _room): JsonBody<RegisterRequest>,
) -> Result<Json<NodeView>, ApiError> {
    Ok(Json(queue.register_node(request.into_node(&node_id)?).await?))
}

/// When it was heard of.
#[derive(Serialize, ToSchema)]
struct HeardBody {
    node_id: String,
    last_heartbeat: DateTime<Utc>,
}

/// Say that a node lives
///
/// Every 30 s.
#[utoipa::path(
    post, path = "/nodes/{node_id}/heartbeat", tag = "nodes", security(("token" = ["consume"])),
    params(("node_id" = String, Path, description = "Its id.")),
    responses(
        (status = 200, description = "Noted.", body = HeardBody),
        (status = 404, description = "No such node: it was silent for so long that it was forgotten, or never there."),
    )
)]
async fn touch_node(InNamespace(queue): InNamespace, NodeId(node_id): NodeId) -> Result<Json<HeardBody>, ApiError> {
    known(&queue, &node_id, queue.touch_node(&node_id).await?)?;
    let NodeView { node_id, last_heartbeat, .. } = queue.node(&node_id).await?;
    Ok(Json(HeardBody { node_id, last_heartbeat }))
}

/// Say that a node stops
///
/// It stays in the list for a week.
#[utoipa::path(
    delete, path = "/nodes/{node_id}", tag = "nodes", security(("token" = ["consume"])),
    params(("node_id" = String, Path, description = "Its id.")),
    responses(
        (status = 204, description = "Noted."),
        (status = 404, description = "No such node."),
    )
)]
async fn stop_node(InNamespace(queue): InNamespace, NodeId(node_id): NodeId) -> Result<StatusCode, ApiError> {
    known(&queue, &node_id, queue.stop_node(&node_id).await?)?;
    Ok(StatusCode::NO_CONTENT)
}

fn known(queue: &Queue, node_id: &str, known: bool) -> Result<(), ApiError> {
    let none = || Error::NodeNotFound { namespace: queue.namespace().to_owned(), node_id: node_id.to_owned() };
    if known { Ok(()) } else { Err(none().into()) }
}
