//! `/nodes`: registered processes and their heartbeats.

use axum::Json;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Error, NewNode, NodeView, Queue};
use windlass_api::{NodeHeartbeatBody, NodesBody, RegisterNodeRequest};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{InNamespace, JsonBody, NodeId};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_nodes))
        .routes(routes!(register_node, stop_node))
        .routes(routes!(heartbeat_node))
}

/// List nodes
///
/// A node is `stale` after three missed heartbeats of 30 s. It is removed after a week.
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

fn new_node(node_id: &str, request: RegisterNodeRequest) -> Result<NewNode, ApiError> {
    let mut node = NewNode::new(node_id).event_types(request.event_types.unwrap_or_default().into_list());
    if let Some(display_name) = request.display_name {
        node = node.display_name(display_name);
    }
    if let Some(description) = request.description {
        node = node.description(description);
    }
    Ok(match request.metadata {
        Some(metadata) => node.metadata(&metadata)?,
        None => node,
    })
}

/// Register a node
///
/// If the node exists, everything except its registration time is replaced. Characters of the id other than ASCII
/// letters, digits, `-`, `_`, `.` and `:` become `-`. The response has the resulting id.
#[utoipa::path(
    put, path = "/nodes/{node_id}", tag = "nodes", security(("token" = ["consume"])),
    params(("node_id" = String, Path, description = "Id of the node.")),
    request_body = RegisterNodeRequest,
    responses(
        (status = 200, description = "Registered.", body = NodeView),
        (status = 404, description = "No such namespace."),
    )
)]
async fn register_node(
    InNamespace(queue): InNamespace,
    NodeId(node_id): NodeId,
    JsonBody(request, _memory): JsonBody<RegisterNodeRequest>,
) -> Result<Json<NodeView>, ApiError> {
    Ok(Json(queue.register_node(new_node(&node_id, request)?).await?))
}

/// Send the heartbeat of a node
///
/// Send one every 30 s.
#[utoipa::path(
    post, path = "/nodes/{node_id}/heartbeat", tag = "nodes", security(("token" = ["consume"])),
    params(("node_id" = String, Path, description = "Id of the node.")),
    responses(
        (status = 200, description = "Recorded.", body = NodeHeartbeatBody),
        (status = 404, description = "No such node: it was never registered, or removed after a long silence."),
    )
)]
async fn heartbeat_node(
    InNamespace(queue): InNamespace,
    NodeId(node_id): NodeId,
) -> Result<Json<NodeHeartbeatBody>, ApiError> {
    require_registered(&queue, &node_id, queue.touch_node(&node_id).await?)?;
    let NodeView { node_id, last_heartbeat, .. } = queue.node(&node_id).await?;
    Ok(Json(NodeHeartbeatBody { node_id, last_heartbeat }))
}

/// Stop a node
///
/// Marks the node as stopped. It stays in the list for a week.
#[utoipa::path(
    delete, path = "/nodes/{node_id}", tag = "nodes", security(("token" = ["consume"])),
    params(("node_id" = String, Path, description = "Id of the node.")),
    responses(
        (status = 204, description = "Recorded."),
        (status = 404, description = "No such node."),
    )
)]
async fn stop_node(InNamespace(queue): InNamespace, NodeId(node_id): NodeId) -> Result<StatusCode, ApiError> {
    require_registered(&queue, &node_id, queue.stop_node(&node_id).await?)?;
    Ok(StatusCode::NO_CONTENT)
}

fn require_registered(queue: &Queue, node_id: &str, is_registered: bool) -> Result<(), ApiError> {
    let not_found = || Error::NodeNotFound { namespace: queue.namespace().to_owned(), node_id: node_id.to_owned() };
    if is_registered { Ok(()) } else { Err(not_found().into()) }
}
