//! Registered nodes and their heartbeats.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::topology::to_json;
use super::{SqliteStore, row};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::node::registry::{NodeStatus, NodeView};
use crate::store::{NodeStore, PreparedNode};

const REGISTER: &str = "
INSERT INTO nodes (namespace, node_id, display_name, description, metadata, event_types, registered_at, last_heartbeat)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7
WHERE EXISTS (SELECT 1 FROM nodes WHERE namespace = ?1 AND node_id = ?2)
   OR (SELECT count(*) FROM nodes WHERE namespace = ?1) < ?8
ON CONFLICT DO UPDATE SET display_name = excluded.display_name, description = excluded.description,
    metadata = excluded.metadata, event_types = excluded.event_types, last_heartbeat = excluded.last_heartbeat,
    stopped_at = NULL
RETURNING node_id, display_name, description, metadata, event_types, registered_at, last_heartbeat, stopped_at";

const TOUCH: &str = "
UPDATE nodes SET last_heartbeat = ?3, stopped_at = NULL WHERE namespace = ?1 AND node_id = ?2";

const STOP: &str = "UPDATE nodes SET stopped_at = coalesce(stopped_at, ?3) WHERE namespace = ?1 AND node_id = ?2";

#[async_trait]
impl NodeStore for SqliteStore {
    async fn register_node(
        &self,
        namespace: &str,
        node: &PreparedNode,
        max: usize,
        now: Option<Timestamp>,
    ) -> Result<Option<NodeView>> {
        let (namespace, node) = (namespace.to_owned(), node.clone());
        self.write(now, move |conn, now| {
            let types = to_json(&node.event_types)?;
            let (display_name, description, metadata) = (&node.display_name, &node.description, node.metadata.get());
            let values = (&namespace, &node.node_id, display_name, description, metadata, types, now, max as i64);
            Ok(conn.prepare_cached(REGISTER)?.query_row(values, view).optional()?)
        })
        .await
    }

    async fn touch_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool> {
        let (namespace, node_id) = (namespace.to_owned(), node_id.to_owned());
        self.write(now, move |conn, now| Ok(conn.prepare_cached(TOUCH)?.execute((&namespace, &node_id, now))? > 0))
            .await
    }

    async fn stop_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool> {
        let (namespace, node_id) = (namespace.to_owned(), node_id.to_owned());
        self.write(now, move |conn, now| Ok(conn.prepare_cached(STOP)?.execute((&namespace, &node_id, now))? > 0)).await
    }

    async fn nodes(&self, namespace: &str, node_id: Option<&str>) -> Result<Vec<NodeView>> {
        let (namespace, node_id) = (namespace.to_owned(), node_id.map(str::to_owned));
        self.read(move |conn| nodes(conn, &namespace, node_id.as_deref())).await
    }
}

const NODES: &str = "
SELECT node_id, display_name, description, metadata, event_types, registered_at, last_heartbeat, stopped_at
FROM nodes WHERE namespace = ?1 AND (?2 IS NULL OR node_id = ?2) ORDER BY node_id";

fn nodes(conn: &Connection, namespace: &str, node_id: Option<&str>) -> Result<Vec<NodeView>> {
    let mut select = conn.prepare_cached(NODES)?;
    Ok(select.query_map((namespace, node_id), view)?.collect::<rusqlite::Result<_>>()?)
}

/// From the columns of `NODES`.
fn view(row: &Row) -> rusqlite::Result<NodeView> {
    Ok(NodeView {
        node_id: row.get(0)?,
        display_name: row.get(1)?,
        description: row.get(2)?,
        metadata: row::json(row, 3)?,
        event_types: row::parse_json(row, 4)?,
        registered_at: row::timestamp(row, 5)?,
        last_heartbeat: row::timestamp(row, 6)?,
        stopped_at: row::timestamp_or_null(row, 7)?,
        status: NodeStatus::Alive,
    })
}
