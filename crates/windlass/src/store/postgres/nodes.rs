//! Registered nodes and their heartbeats.

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::error::from_sqlx;
use super::row::{get, json};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::node::registry::{NodeStatus, NodeView};
use crate::store::{NodeStore, PreparedNode};

const REGISTER: &str = "
INSERT INTO windlass.nodes AS n (namespace, node_id, display_name, description, metadata, event_types, registered_at,
    last_heartbeat)
SELECT $1::text, $2::text, $3::text, $4::text, $5::json, $6::text[], coalesce($7, now()), coalesce($7, now())
WHERE EXISTS (SELECT FROM windlass.nodes WHERE namespace = $1 AND node_id = $2)
   OR (SELECT count(*) FROM windlass.nodes WHERE namespace = $1) < $8
ON CONFLICT (namespace, node_id) DO UPDATE SET display_name = excluded.display_name,
    description = excluded.description, metadata = excluded.metadata, event_types = excluded.event_types,
    last_heartbeat = excluded.last_heartbeat, stopped_at = NULL
RETURNING n.node_id, n.display_name, n.description, n.metadata::text AS metadata, n.event_types, n.registered_at,
    n.last_heartbeat, n.stopped_at";

const TOUCH: &str = "
UPDATE windlass.nodes SET last_heartbeat = coalesce($3, now()), stopped_at = NULL
WHERE namespace = $1 AND node_id = $2";

const STOP: &str = "
UPDATE windlass.nodes SET stopped_at = coalesce(stopped_at, $3, now()) WHERE namespace = $1 AND node_id = $2";

// Ordered by bytes, as everywhere.
const NODES: &str = r#"
SELECT node_id, display_name, description, metadata::text AS metadata, event_types, registered_at, last_heartbeat,
       stopped_at
FROM windlass.nodes WHERE namespace = $1 AND ($2::text IS NULL OR node_id = $2) ORDER BY node_id COLLATE "C""#;

#[async_trait]
impl NodeStore for PgStore {
    async fn register_node(
        &self,
        namespace: &str,
        node: &PreparedNode,
        max: usize,
        now: Option<Timestamp>,
    ) -> Result<Option<NodeView>> {
        let mut connection = self.writes.get().await?;
        let register = sqlx::query(REGISTER)
            .bind(namespace)
            .bind(&node.node_id)
            .bind(&node.display_name)
            .bind(&node.description)
            .bind(node.metadata.get())
            .bind(&node.event_types)
            .bind(now)
            .bind(max as i64);
        let row = register.fetch_optional(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        row.as_ref().map(view).transpose()
    }

    async fn touch_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool> {
        change(self, TOUCH, namespace, node_id, now).await
    }

    async fn stop_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool> {
        change(self, STOP, namespace, node_id, now).await
    }

    async fn nodes(&self, namespace: &str, node_id: Option<&str>) -> Result<Vec<NodeView>> {
        let mut connection = self.reads.get().await?;
        let query = sqlx::query(NODES).bind(namespace).bind(node_id);
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        rows.iter().map(view).collect()
    }
}

async fn change(
    store: &PgStore,
    sql: &'static str,
    namespace: &str,
    node_id: &str,
    now: Option<Timestamp>,
) -> Result<bool> {
    let mut connection = store.writes.get().await?;
    let change = sqlx::query(sql).bind(namespace).bind(node_id).bind(now);
    let changed = change.execute(&mut *connection).await.map_err(from_sqlx)?.rows_affected();
    connection.done();
    Ok(changed > 0)
}

fn view(row: &PgRow) -> Result<NodeView> {
    Ok(NodeView {
        node_id: get(row, "node_id")?,
        display_name: get(row, "display_name")?,
        description: get(row, "description")?,
        metadata: json(get(row, "metadata")?)?,
        event_types: get(row, "event_types")?,
        registered_at: get(row, "registered_at")?,
        last_heartbeat: get(row, "last_heartbeat")?,
        stopped_at: get(row, "stopped_at")?,
        status: NodeStatus::Alive,
    })
}
