//! Registered nodes and their heartbeats. The store does not decide whether a node is alive.

use async_trait::async_trait;
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::node::registry::NodeView;

/// A validated node, ready to be registered.
#[derive(Debug, Clone)]
pub(crate) struct PreparedNode {
    pub node_id: String,
    pub display_name: Option<String>,
    pub description: Option<String>,
    pub metadata: Box<RawValue>,
    pub event_types: Vec<String>,
}

#[async_trait]
pub(crate) trait NodeStore {
    /// Adds the node, or replaces everything except its registration time, and records a heartbeat. `None`: the node
    /// would be new, and the namespace has `max` nodes.
    async fn register_node(
        &self,
        namespace: &str,
        node: &PreparedNode,
        max: usize,
        now: Option<Timestamp>,
    ) -> Result<Option<NodeView>>;

    /// Records a heartbeat. Returns whether the node exists.
    async fn touch_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool>;

    /// Records when the node stopped, unless that is recorded. Returns whether the node exists.
    async fn stop_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool>;

    /// All nodes, or the one with this id, ordered by id.
    async fn nodes(&self, namespace: &str, node_id: Option<&str>) -> Result<Vec<NodeView>>;
}
