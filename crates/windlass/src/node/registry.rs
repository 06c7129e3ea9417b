//! Nodes: processes that publish or handle events make themselves known, and say now and then that they live.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::clock::{Timestamp, after};
use crate::error::{Error, Result};
use crate::event::names;
use crate::event::{check_json, to_raw};
use crate::policy::limits::Limits;
use crate::queue::Queue;
use crate::store::PreparedNode;

/// How often a node says that it lives.
pub const HEARTBEAT: Duration = Duration::from_secs(30);

/// How long a node may be silent: three heartbeats.
const SILENCE_MAX: Duration = Duration::from_secs(3 * HEARTBEAT.as_secs());

/// The longest id, in bytes.
const ID_BYTES_MAX: usize = 63;

/// Leaves room for the rest of a generated id.
const HOST_BYTES_MAX: usize = 40;

/// A node, as it is registered in its namespace.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeView {
    /// Its id, unique in its namespace.
    pub node_id: String,
    /// Its name, for people.
    pub display_name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// Anything people want to keep with it.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Box<RawValue>,
    /// The event types that it handles.
    pub event_types: Vec<String>,
    /// When it was registered for the first time.
    pub registered_at: DateTime<Utc>,
    /// When it was last heard of.
    pub last_heartbeat: DateTime<Utc>,
    /// When it said that it stopped.
    pub stopped_at: Option<DateTime<Utc>>,
    /// Whether it lives, as far as can be told.
    pub status: NodeStatus,
}

/// Whether a node lives, as far as can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// It was heard of lately.
    Alive,
    /// It was silent for three heartbeats.
    Stale,
    /// It said that it stops.
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
    /// One of this id. Characters other than ASCII letters, digits, `-`, `_`, `.` and `:` are replaced by `-`; where
    /// nothing is left, it gets an id.
    pub fn new(node_id: impl AsRef<str>) -> NewNode {
        NewNode(PreparedNode {
            node_id: sanitize(node_id.as_ref()),
            display_name: None,
            description: None,
            metadata: empty_object(),
            event_types: Vec::new(),
        })
    }

    /// The same, under another id.
    pub(crate) fn node_id(mut self, node_id: &str) -> NewNode {
        self.0.node_id = node_id.to_owned();
        self
    }

    /// A name for people.
    pub fn display_name(mut self, display_name: impl Into<String>) -> NewNode {
        self.0.display_name = Some(display_name.into());
        self
    }

    /// What it is for.
    pub fn description(mut self, description: impl Into<String>) -> NewNode {
        self.0.description = Some(description.into());
        self
    }

    /// A JSON object with anything people want to keep with it.
    pub fn metadata<T: Serialize + ?Sized>(mut self, metadata: &T) -> Result<NewNode> {
        self.0.metadata = to_raw("metadata", metadata)?;
        Ok(self)
    }

    /// The event types that it handles, by exact name or by prefix ending in `*`.
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

    /// Gives it an id if it has none. What was named twice is kept once.
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

/// An id that can stand in a path, a log and a terminal; empty if nothing is left of it.
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

/// The host, the process and a few letters, since processes of several containers may have the same of both.
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
    /// Registers a node, or refreshes what is known of it: all but when it was registered is replaced, and it is alive
    /// again if it was stopped. The answer has the id that is used.
    pub async fn register_node(&self, node: NewNode) -> Result<NodeView> {
        node.check(self.limits())?;
        self.topology().await?;
        let (node, max) = (node.prepare(), self.limits().nodes_max);
        let registered = self.store().register_node(self.namespace(), &node, max, self.now()).await?;
        registered.ok_or_else(|| {
            let problem = format!("a namespace has at most {max} nodes; one that is silent for a week is forgotten");
            Error::invalid("node_id", problem)
        })
    }

    /// A node's heartbeat; `false`: it is not registered.
    pub async fn touch_node(&self, node_id: &str) -> Result<bool> {
        self.topology().await?;
        self.store().touch_node(self.namespace(), &sanitize(node_id), self.now()).await
    }

    /// Notes that a node stopped; `false`: it is not registered.
    pub async fn stop_node(&self, node_id: &str) -> Result<bool> {
        self.topology().await?;
        self.store().stop_node(self.namespace(), &sanitize(node_id), self.now()).await
    }

    /// What is known of one node.
    pub async fn node(&self, node_id: &str) -> Result<NodeView> {
        let node_id = sanitize(node_id);
        let found = self.find_nodes(Some(&node_id)).await?.pop();
        found.ok_or_else(|| Error::NodeNotFound { namespace: self.namespace().to_owned(), node_id })
    }

    /// The nodes of this namespace, by id.
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
    fn an_id_is_made_fit_for_a_path() {
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
    fn generated_ids_differ_and_are_fit() {
        let (one, two) = (generated_id(), generated_id());
        assert_eq!(sanitize(&one), one);
        assert!(one.contains(&format!("-{}-", std::process::id())) && one != two, "{one} {two}");
    }
}
