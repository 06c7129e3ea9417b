//! Nodes.

use rusqlite::{Connection, OptionalExtension, Row};

use super::row;
use super::topology::to_json;
use crate::error::Result;
use crate::node::registry::{NodeStatus, NodeView};
use crate::store::PreparedNode;

const REGISTER: &str = "
INSERT INTO nodes (namespace, node_id, display_name, description, metadata, event_types, registered_at, last_heartbeat)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7
WHERE EXISTS (SELECT 1 FROM nodes WHERE namespace = ?1 AND node_id = ?2)
   OR (SELECT count(*) FROM nodes WHERE namespace = ?1) < ?8
ON CONFLICT DO UPDATE SET display_name = excluded.display_name, description = excluded.description,
    metadata = excluded.metadata, event_types = excluded.event_types, last_heartbeat = excluded.last_heartbeat,
    stopped_at = NULL
RETURNING node_id, display_name, description, metadata, event_types, registered_at, last_heartbeat, stopped_at";

pub(super) fn register(
    conn: &Connection,
    namespace: &str,
    node: &PreparedNode,
    max: usize,
    now: i64,
) -> Result<Option<NodeView>> {
    let types = to_json(&node.event_types)?;
    let (display_name, description, metadata) = (&node.display_name, &node.description, node.metadata.get());
    let values = (namespace, &node.node_id, display_name, description, metadata, types, now, max as i64);
    Ok(conn.prepare_cached(REGISTER)?.query_row(values, view).optional()?)
}

const TOUCH: &str = "
UPDATE nodes SET last_heartbeat = ?3, stopped_at = NULL WHERE namespace = ?1 AND node_id = ?2";

pub(super) fn touch(conn: &Connection, namespace: &str, node_id: &str, now: i64) -> Result<bool> {
    Ok(conn.prepare_cached(TOUCH)?.execute((namespace, node_id, now))? > 0)
}

const STOP: &str = "UPDATE nodes SET stopped_at = coalesce(stopped_at, ?3) WHERE namespace = ?1 AND node_id = ?2";

pub(super) fn stop(conn: &Connection, namespace: &str, node_id: &str, now: i64) -> Result<bool> {
    Ok(conn.prepare_cached(STOP)?.execute((namespace, node_id, now))? > 0)
}

const NODES: &str = "
SELECT node_id, display_name, description, metadata, event_types, registered_at, last_heartbeat, stopped_at
FROM nodes WHERE namespace = ?1 AND (?2 IS NULL OR node_id = ?2) ORDER BY node_id";

pub(super) fn nodes(conn: &Connection, namespace: &str, node_id: Option<&str>) -> Result<Vec<NodeView>> {
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
        event_types: row::parsed(row, 4)?,
        registered_at: row::instant(row, 5)?,
        last_heartbeat: row::instant(row, 6)?,
        stopped_at: row::instant_if_any(row, 7)?,
        status: NodeStatus::Alive,
    })
}
