//! Deleting rows that nothing refers to any more.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;

use super::SqliteStore;
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::store::PruneStore;

const FIRES: &str = "
DELETE FROM schedule_fires WHERE (schedule_id, tick_at, manual) IN (
    SELECT schedule_id, tick_at, manual FROM schedule_fires INDEXED BY schedule_fires_by_time
    WHERE namespace = ?1 AND fired_at < ?3 ORDER BY fired_at LIMIT ?2)";

#[async_trait]
impl PruneStore for SqliteStore {
    async fn prune(&self, namespace: &str, node_kept: Duration, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        let namespace = namespace.to_owned();
        self.write(now, move |conn, now| prune(conn, &namespace, node_kept, limit, now)).await
    }

    async fn prune_fires(
        &self,
        namespace: &str,
        kept: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let namespace = namespace.to_owned();
        self.write(now, move |conn, now| {
            let before = now.saturating_sub(micros(kept));
            Ok(conn.prepare_cached(FIRES)?.execute((&namespace, limit as i64, before))?)
        })
        .await
    }
}

const RESULTS: &str = "
DELETE FROM handler_results WHERE (event_id, subscription_id, handler) IN (
    SELECT event_id, subscription_id, handler FROM handler_results r
    WHERE namespace = ?1
      AND NOT EXISTS (SELECT 1 FROM event_queue q
                      WHERE q.event_id = r.event_id AND q.subscription_id = r.subscription_id)
      AND NOT EXISTS (SELECT 1 FROM dead_letters d
                      WHERE d.event_id = r.event_id AND d.subscription_id = r.subscription_id)
    LIMIT ?2)";

const NODES: &str = "
DELETE FROM nodes WHERE namespace = ?1 AND node_id IN (
    SELECT node_id FROM nodes WHERE namespace = ?1 AND last_heartbeat < ?3 LIMIT ?2)";

const KEYS: &str = "
DELETE FROM event_keys WHERE namespace = ?1 AND key IN (
    SELECT key FROM event_keys WHERE namespace = ?1 AND expires_at <= ?3 ORDER BY expires_at LIMIT ?2)";

fn prune(conn: &Connection, namespace: &str, node_kept: Duration, limit: usize, now: i64) -> Result<usize> {
    let limit = limit as i64;
    let results = conn.prepare_cached(RESULTS)?.execute((namespace, limit))?;
    let nodes = conn.prepare_cached(NODES)?.execute((namespace, limit, now.saturating_sub(micros(node_kept))))?;
    let keys = conn.prepare_cached(KEYS)?.execute((namespace, limit, now))?;
    Ok(results + nodes + keys)
}
