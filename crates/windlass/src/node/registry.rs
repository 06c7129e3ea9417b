//! The registry of nodes: registration, heartbeats and status.
//!
//! [`Node`](crate::Node) registers itself; other processes call [`Queue::register_node`] directly.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::{Timestamp, after};
use crate::error::{Error, Result};
use crate::event::names;
use crate::event::{check_json, to_raw};
use crate::policy::limits::Limits;
use crate::queue::Queue;
use crate::store::PreparedNode;

/// How often a node sends a heartbeat.
pub const HEARTBEAT: Duration = Duration::from_secs(30);

/// A node without a heartbeat for this long is stale.
const SILENCE_MAX: Duration = Duration::from_secs(3 * HEARTBEAT.as_secs());

/// The longest id, in bytes.
const ID_BYTES_MAX: usize = 63;

/// The longest host name in a generated id, so that the whole id stays below [`ID_BYTES_MAX`].
const HOST_BYTES_MAX: usize = 40;

/// A registered node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeView {
    /// The node's id, unique in its namespace.
    pub node_id: String,
    /// A human-readable name.
    pub display_name: Option<String>,
    /// A human-readable description.
    pub description: Option<String>,
    /// Metadata: a JSON object.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Box<RawValue>,
    /// The event types that the node handles.
    pub event_types: Vec<String>,
    /// When the node was first registered.
    pub registered_at: DateTime<Utc>,
    /// When the last heartbeat arrived.
    pub last_heartbeat: DateTime<Utc>,
    /// When the node reported that it stopped.
    pub stopped_at: Option<DateTime<Utc>>,
    /// The status, derived from the heartbeats.
    pub status: NodeStatus,
}

/// The status of a node, derived from its heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// The last heartbeat is recent.
    Alive,
    /// No heartbeat has arrived for three intervals.
    Stale,
    /// The node reported that it stopped.
    Stopped,
}

impl NodeView {
    fn status_at(&self, now: Timestamp) -> NodeStatus {
        if self.stopped_at.is_some() {
            NodeStatus::Stopped
        } else if after(self.last_heartbeat, SILENCE_MAX) <= now {
            NodeStatus::Stale
        } else {
            NodeStatus::Alive
        }
    }
}

/// A node to register.
///
/// ```
/// use windlass::NewNode;
///
/// let node = NewNode::new("api-1").display_name("Shop API").event_types(["order.paid"]);
/// ```
#[derive(Debug, Clone)]
pub struct NewNode(PreparedNode);

impl NewNode {
    /// A node with this id. Characters other than ASCII letters, digits, `-`, `_`, `.` and `:` are replaced by `-`. If
    /// nothing is left, an id is generated.
    pub fn new(node_id: impl AsRef<str>) -> NewNode {
        NewNode(PreparedNode {
            node_id: sanitize(node_id.as_ref()),
            display_name: None,
            description: None,
            metadata: empty_object(),
            event_types: Vec::new(),
        })
    }

    /// Sets the id.
    pub(crate) fn node_id(mut self, node_id: &str) -> NewNode {
        self.0.node_id = node_id.to_owned();
        self
    }

    /// Sets a human-readable name.
    pub fn display_name(mut self, display_name: impl Into<String>) -> NewNode {
        self.0.display_name = Some(display_name.into());
        self
    }

    /// Sets a human-readable description.
    pub fn description(mut self, description: impl Into<String>) -> NewNode {
        self.0.description = Some(description.into());
        self
    }

    /// Sets metadata: a JSON object.
    pub fn metadata<T: Serialize + ?Sized>(mut self, metadata: &T) -> Result<NewNode> {
        self.0.metadata = to_raw("metadata", metadata)?;
        Ok(self)
    }

    /// Sets the event types that the node handles: exact names, or prefixes ending in `*`.
    pub fn event_types<T: Into<String>>(mut self, event_types: impl IntoIterator<Item = T>) -> NewNode {
        self.0.event_types = event_types.into_iter().map(Into::into).collect();
        self
    }

    fn check(&self, limits: &Limits) -> Result<()> {
        let NewNode(node) = self;
        if let Some(display_name) = &node.display_name {
            names::check_text("display_name", display_name, limits.title_bytes_max)?;
        }
        if let Some(description) = &node.description {
            names::check_text("description", description, limits.description_bytes_max)?;
        }
        check_json("metadata", node.metadata.get(), limits.metadata_bytes_max, limits)?;
        if !node.metadata.get().starts_with('{') {
            return Err(Error::invalid("metadata", "must be a JSON object"));
        }
        let (count, max) = (node.event_types.len(), limits.node_types_max);
        if count > max {
            return Err(Error::invalid("event_types", format!("has {count} types; the limit is {max}")));
        }
        node.event_types.iter().try_for_each(|name| names::check_type_pattern("event_types", name))
    }

    /// Generates an id if the node has none, and removes duplicate event types.
    fn prepare(self) -> PreparedNode {
        let NewNode(mut node) = self;
        if node.node_id.is_empty() {
            node.node_id = generated_id();
        }
        node.event_types.sort();
        node.event_types.dedup();
        node
    }
}

fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("this is JSON")
}

/// Makes an id safe for paths, logs and terminals. The result may be empty.
pub(crate) fn sanitize(id: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    let mut clean = String::with_capacity(id.len());
    let mut replaced = false;
    for c in id.trim().chars() {
        if allowed(c) {
            clean.push(c);
        } else if !replaced {
            clean.push('-');
        }
        replaced = !allowed(c);
    }
    clean.truncate(ID_BYTES_MAX);
    clean.trim_matches('-').to_owned()
}

/// Host name, process id and a few random letters: processes in different containers may share host name and process
/// id.
pub(crate) fn generated_id() -> String {
    let letters: String = (0..4).map(|_| fastrand::lowercase()).collect();
    format!("{}-{}-{letters}", host(), std::process::id())
}

fn host() -> String {
    let named = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    let mut host = sanitize(&named.unwrap_or_default());
    host.truncate(HOST_BYTES_MAX);
    if host.is_empty() { "node".to_owned() } else { host }
}

impl Queue {
    /// Registers a node, or updates its registration: everything except the time of registration is replaced, and a
    /// stopped node is alive again. The returned view has the id that is used.
    pub async fn register_node(&self, node: NewNode) -> Result<NodeView> {
        node.check(self.limits())?;
        self.topology().await?;
        let (node, max) = (node.prepare(), self.limits().nodes_max);
        let registered = self.store().register_node(self.namespace(), &node, max, self.now()).await?;
        registered.ok_or_else(|| {
            let problem =
                format!("a namespace has at most {max} nodes; nodes without a heartbeat for a week are removed");
            Error::invalid("node_id", problem)
        })
    }

    /// Records a heartbeat of a node. Returns `false` if the node is not registered.
    pub async fn touch_node(&self, node_id: &str) -> Result<bool> {
        self.topology().await?;
        self.store().touch_node(self.namespace(), &sanitize(node_id), self.now()).await
    }

    /// Records that a node stopped. Returns `false` if the node is not registered.
    pub async fn stop_node(&self, node_id: &str) -> Result<bool> {
        self.topology().await?;
        self.store().stop_node(self.namespace(), &sanitize(node_id), self.now()).await
    }

    /// One node.
    pub async fn node(&self, node_id: &str) -> Result<NodeView> {
        let node_id = sanitize(node_id);
        let found = self.find_nodes(Some(&node_id)).await?.pop();
        found.ok_or_else(|| Error::NodeNotFound { namespace: self.namespace().to_owned(), node_id })
    }

    /// The nodes of this namespace, ordered by id.
    pub async fn nodes(&self) -> Result<Vec<NodeView>> {
        self.find_nodes(None).await
    }

    async fn find_nodes(&self, node_id: Option<&str>) -> Result<Vec<NodeView>> {
        self.topology().await?;
        let mut nodes = self.store().nodes(self.namespace(), node_id).await?;
        let now = self.store().now(self.now()).await?;
        for node in &mut nodes {
            node.status = node.status_at(now);
        }
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // C2
    #[test]
    fn node_id_is_sanitized() {
        let long = "x".repeat(62) + "---" + &"y".repeat(40);
        let table = [
            ("api-1", "api-1"),
            ("  api-1\n", "api-1"),
            ("host:8742", "host:8742"),
            ("a_b.c:d-E9", "a_b.c:d-E9"),
            ("my node", "my-node"),
            ("my / \0node", "my-node"),
            ("größe", "gr-e"),
            ("a - b", "a---b"),
            ("-a-", "a"),
            ("/a/", "a"),
            (&long, &"x".repeat(62)),
            ("", ""),
            (" \t", ""),
            ("€", ""),
            ("--", ""),
        ];
        for (given, expected) in table {
            assert_eq!(sanitize(given), expected, "{given:?}");
            assert_eq!(sanitize(expected), expected);
        }
    }

    // C2
    #[test]
    fn generated_ids_are_unique_and_valid() {
        let (one, two) = (generated_id(), generated_id());
        assert_eq!(sanitize(&one), one);
        assert!(one.contains(&format!("-{}-", std::process::id())) && one != two, "{one} {two}");
    }
}
