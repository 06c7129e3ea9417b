//! Deleting rows that nothing refers to any more. Several processes may do it concurrently: each skips rows that
//! another has locked.

use std::time::Duration;

use async_trait::async_trait;

use super::PgStore;
use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::store::PruneStore;

// OFFSET 0 keeps the ORDER BY – see `transition::END` – and keeps the planner from reading the whole queue for a join.
pub(super) const RESULTS: &str = "
DELETE FROM windlass.handler_results WHERE ctid = ANY(ARRAY(
    SELECT r.ctid FROM windlass.handler_results r
    WHERE r.namespace = $1
      AND NOT EXISTS (SELECT FROM windlass.event_queue q
                      WHERE q.event_id BETWEEN r.event_id AND r.event_id AND q.subscription_id = r.subscription_id
                      ORDER BY q.event_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM windlass.dead_letters d
                      WHERE d.event_id BETWEEN r.event_id AND r.event_id AND d.subscription_id = r.subscription_id
                      ORDER BY d.event_id OFFSET 0)
    LIMIT $2 FOR UPDATE OF r SKIP LOCKED)) AND namespace = $1";

const NODES: &str = "
DELETE FROM windlass.nodes WHERE ctid = ANY(ARRAY(
    SELECT n.ctid FROM windlass.nodes n
    WHERE n.namespace = $1 AND n.last_heartbeat < coalesce($3, now()) - $4 * interval '1 microsecond'
    LIMIT $2 FOR UPDATE SKIP LOCKED)) AND namespace = $1";

const KEYS: &str = "
DELETE FROM windlass.event_keys WHERE ctid = ANY(ARRAY(
    SELECT k.ctid FROM windlass.event_keys k
    WHERE k.namespace = $1 AND k.expires_at <= coalesce($3, now())
    ORDER BY k.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)) AND namespace = $1";

const FIRES: &str = "
DELETE FROM windlass.schedule_fires WHERE ctid = ANY(ARRAY(
    SELECT f.ctid FROM windlass.schedule_fires f
    WHERE f.namespace = $1 AND f.fired_at < coalesce($3, now()) - $4 * interval '1 microsecond'
    ORDER BY f.fired_at LIMIT $2 FOR UPDATE SKIP LOCKED)) AND namespace = $1";

#[async_trait]
impl PruneStore for PgStore {
    async fn prune(&self, namespace: &str, node_kept: Duration, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        retry_deadlocks!(async {
            let limit = limit as i64;
            let mut connection = self.maintenance.get().await?;
            let mut pruned = 0;
            for prune in [
                sqlx::query(RESULTS).bind(namespace).bind(limit),
                sqlx::query(NODES).bind(namespace).bind(limit).bind(now).bind(micros(node_kept)),
                sqlx::query(KEYS).bind(namespace).bind(limit).bind(now),
            ] {
                pruned += prune.execute(&mut *connection).await.map_err(from_sqlx)?.rows_affected();
            }
            connection.done();
            Ok(pruned as usize)
        })
    }

    async fn prune_fires(
        &self,
        namespace: &str,
        kept: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        retry_deadlocks!(async {
            let mut connection = self.maintenance.get().await?;
            let prune = sqlx::query(FIRES).bind(namespace).bind(limit as i64).bind(now).bind(micros(kept));
            let pruned = prune.execute(&mut *connection).await.map_err(from_sqlx)?.rows_affected();
            connection.done();
            Ok(pruned as usize)
        })
    }
}
