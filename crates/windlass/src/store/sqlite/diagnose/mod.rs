//! Facts about the work in all namespaces for `windlass diagnose`. `file.rs` has those about the file.

use async_trait::async_trait;
use rusqlite::{Connection, Params, Row};

use super::row::{self, INFINITY};
use super::{SqliteStore, maintenance_tasks, migrate};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::task::MaintenanceTask;
use crate::observe::diagnose::maintenance::{FailedTick, LateSchedule, MaintenanceTaskState};
use crate::observe::diagnose::schema::{Indexes, NamedRemedy, parse_index_statements};
use crate::observe::diagnose::work::{
    BlockedGroup, MinuteSample, OldestReadyDelivery, SilentDelivery, SilentNode, SilentWorker,
};
use crate::store::{Checked, DiagnoseStore, ROWS_MAX};

mod file;

impl SqliteStore {
    /// All rows of a statement.
    async fn query_all<T, P, F>(&self, sql: &'static str, params: P, of: F) -> Checked<Vec<T>>
    where
        T: Send + 'static,
        P: Params + Send + 'static,
        F: FnMut(&Row) -> rusqlite::Result<T> + Send + 'static,
    {
        let all = move |conn: &Connection| -> Result<Vec<T>> {
            let mut select = conn.prepare_cached(sql)?;
            Ok(select.query_map(params, of)?.collect::<rusqlite::Result<_>>()?)
        };
        Ok(self.read(all).await?)
    }
}

/// The indexes of a new database.
const EXPECTED: &str = include_str!("../indexes.sql");

const INDEXES: &str = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL";

fn indexes(found: &[String]) -> Indexes {
    let missing = parse_index_statements(EXPECTED).filter(|(name, _)| !found.iter().any(|found| found == name));
    let missing = missing.map(|(name, statement)| NamedRemedy { name: name.to_owned(), remedy: statement.to_owned() });
    Indexes { expected: parse_index_statements(EXPECTED).count(), missing: missing.collect(), invalid: Vec::new() }
}

// The leases of each subscription that expire first: they are the ones that were not renewed.
const HELD: &str = "
SELECT q.namespace, q.event_id, q.event_type, q.worker_id, q.updated_at, q.lease_expires_at
FROM subscriptions s CROSS JOIN event_queue q
WHERE (q.subscription_id, q.event_id) IN (
        SELECT h.subscription_id, h.event_id FROM event_queue h INDEXED BY event_queue_leased
        WHERE h.subscription_id = s.subscription_id AND h.lease IS NOT NULL ORDER BY h.lease_expires_at LIMIT ?4)
  AND (q.lease_expires_at < ?1 OR q.updated_at < ?2)
ORDER BY q.updated_at LIMIT ?3";

const WORKERS: &str = "
SELECT q.namespace, q.worker_id, count(*), max(q.updated_at) AS seen_at
FROM subscriptions s CROSS JOIN event_queue q
WHERE (q.subscription_id, q.event_id) IN (
        SELECT h.subscription_id, h.event_id FROM event_queue h INDEXED BY event_queue_leased
        WHERE h.subscription_id = s.subscription_id AND h.lease IS NOT NULL ORDER BY h.lease_expires_at LIMIT ?3)
GROUP BY q.namespace, q.worker_id HAVING max(q.updated_at) < ?1
ORDER BY seen_at LIMIT ?2";

const NODES: &str = "
SELECT namespace, node_id, last_heartbeat FROM nodes
WHERE stopped_at IS NULL AND last_heartbeat < ?1 ORDER BY last_heartbeat DESC LIMIT ?2";

const WAITING: &str = "
SELECT namespace, subscription, event_type, ready_at FROM (
    SELECT l.namespace, l.subscription, l.event_type,
           (SELECT q.ready_at FROM event_queue q INDEXED BY event_queue_lane
            WHERE q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at < ?1
            ORDER BY q.ready_at LIMIT 1) AS ready_at
    FROM lanes l)
WHERE ready_at IS NOT NULL ORDER BY ready_at LIMIT ?2";

// Groups whose first delivery cannot be claimed yet although others are due.
const GROUPS: &str = "
SELECT l.namespace, q.group_id, q.event_id, q.retry_count, q.ready_at, g.depth - 1 AS behind
FROM lanes l
CROSS JOIN event_queue q
JOIN event_groups g ON g.group_id = q.group_id AND g.subscription = q.subscription AND g.namespace = q.namespace
WHERE (q.subscription_id, q.event_id) IN (
        SELECT f.subscription_id, f.event_id FROM event_queue f INDEXED BY event_queue_lane
        WHERE f.lane_id = l.lane_id AND f.lease IS NULL AND f.ready_at > ?1 AND f.ready_at < ?4
        ORDER BY f.ready_at LIMIT ?3)
  AND g.depth > 1
  AND (SELECT w.due_at FROM event_queue w INDEXED BY event_queue_group
       WHERE w.group_id = q.group_id AND w.subscription = q.subscription AND w.namespace = q.namespace
         AND (w.ready_at = 9223372036854775807) = 1
       ORDER BY w.due_at, w.event_id LIMIT 1) <= ?1
ORDER BY behind DESC LIMIT ?2";

const MINUTES: &str = "
SELECT s.namespace, sum(s.published), sum(s.completed + s.failed + s.expired + s.cancelled), sum(s.depth)
FROM namespaces n CROSS JOIN samples s
WHERE s.namespace = n.namespace AND s.span_s = 60 AND s.at >= ?1
GROUP BY s.namespace, s.at ORDER BY s.namespace, s.at";

const DUTIES: &str = "
SELECT task, every_ms, next_at, worker_id, runs, last_run_at, took_ms, done, error, namespace, held_until
FROM maintenance_tasks ORDER BY next_at";

const ARRIVED: &str = "
SELECT n.namespace, e.created_at
FROM namespaces n CROSS JOIN events e
  ON e.id = (SELECT min(a.event_id) FROM arrivals a WHERE a.namespace = n.namespace)
WHERE e.created_at < ?1 ORDER BY e.created_at LIMIT ?2";

const LATE: &str = "
SELECT s.namespace, s.name, s.next_at
FROM namespaces n CROSS JOIN schedules s
WHERE s.schedule_id IN (
        SELECT d.schedule_id FROM schedules d INDEXED BY schedules_due
        WHERE d.namespace = n.namespace AND d.next_at IS NOT NULL AND d.next_at < ?1 ORDER BY d.next_at LIMIT ?2)
ORDER BY s.next_at LIMIT ?2";

const FAILED: &str = "
SELECT f.namespace, f.schedule_id, f.tick_at, f.error
FROM namespaces n CROSS JOIN schedule_fires f
WHERE (f.schedule_id, f.tick_at, f.manual) IN (
        SELECT t.schedule_id, t.tick_at, t.manual FROM schedule_fires t INDEXED BY schedule_fires_by_time
        WHERE t.namespace = n.namespace AND t.fired_at >= ?1 ORDER BY t.fired_at DESC LIMIT ?3)
  AND f.error IS NOT NULL
ORDER BY f.fired_at DESC LIMIT ?2";

const DEAD: &str = "
SELECT namespace, dead FROM (
    SELECT n.namespace, (SELECT count(*) FROM (
        SELECT 1 FROM dead_letters d WHERE d.namespace = n.namespace AND d.failed_at >= ?1 LIMIT ?2)) AS dead
    FROM namespaces n)
WHERE dead > 0 ORDER BY namespace";

const LANES: &str = "SELECT namespace, count(*) FROM lanes GROUP BY namespace ORDER BY namespace";

const PAUSED: &str = "SELECT namespace, subscription FROM subscriptions WHERE paused ORDER BY 1, 2";

fn counted(row: &Row) -> rusqlite::Result<(String, u64)> {
    Ok((row.get(0)?, row::count(row, 1)?))
}

#[async_trait]
impl DiagnoseStore for SqliteStore {
    async fn schema_versions(&self) -> Checked<(i64, i64)> {
        Ok((self.read(migrate::found).await?, migrate::KNOWN))
    }

    async fn indexes(&self) -> Checked<Indexes> {
        Ok(indexes(&self.query_all(INDEXES, [], |row| row.get(0)).await?))
    }

    async fn silent_deliveries(
        &self,
        lease_expired_before: Timestamp,
        silent_before: Timestamp,
        limit: usize,
    ) -> Checked<Vec<SilentDelivery>> {
        let (run_out, silent) = (lease_expired_before.timestamp_micros(), silent_before.timestamp_micros());
        self.query_all(HELD, (run_out, silent, limit as i64, ROWS_MAX), |row| {
            Ok(SilentDelivery {
                namespace: row.get(0)?,
                event_id: row.get(1)?,
                event_type: row.get(2)?,
                worker_id: row.get(3)?,
                updated_at: row::timestamp(row, 4)?,
                lease_expires_at: row::timestamp(row, 5)?,
            })
        })
        .await
    }

    async fn silent_workers(&self, before: Timestamp, limit: usize) -> Checked<Vec<SilentWorker>> {
        self.query_all(WORKERS, (before.timestamp_micros(), limit as i64, ROWS_MAX), |row| {
            let (held, seen_at) = (row::count(row, 2)?, row::timestamp(row, 3)?);
            Ok(SilentWorker { namespace: row.get(0)?, worker_id: row.get(1)?, held, seen_at })
        })
        .await
    }

    async fn silent_nodes(&self, before: Timestamp, limit: usize) -> Checked<Vec<SilentNode>> {
        self.query_all(NODES, (before.timestamp_micros(), limit as i64), |row| {
            let last_heartbeat = row::timestamp(row, 2)?;
            Ok(SilentNode { namespace: row.get(0)?, node_id: row.get(1)?, last_heartbeat })
        })
        .await
    }

    async fn waiting_since(&self, before: Timestamp, limit: usize) -> Checked<Vec<OldestReadyDelivery>> {
        self.query_all(WAITING, (before.timestamp_micros(), limit as i64), |row| {
            let ready_at = row::timestamp(row, 3)?;
            Ok(OldestReadyDelivery {
                namespace: row.get(0)?,
                subscription: row.get(1)?,
                event_type: row.get(2)?,
                ready_at,
            })
        })
        .await
    }

    async fn arrived_before(&self, before: Timestamp, limit: usize) -> Checked<Vec<(String, Timestamp)>> {
        let bounds = (before.timestamp_micros(), limit as i64);
        self.query_all(ARRIVED, bounds, |row| Ok((row.get(0)?, row::timestamp(row, 1)?))).await
    }

    async fn blocked_groups(&self, now: Timestamp, limit: usize) -> Checked<Vec<BlockedGroup>> {
        self.query_all(GROUPS, (now.timestamp_micros(), limit as i64, ROWS_MAX, INFINITY), |row| {
            Ok(BlockedGroup {
                namespace: row.get(0)?,
                group_id: row.get(1)?,
                event_id: row.get(2)?,
                retry_count: row.get(3)?,
                ready_at: row::timestamp(row, 4)?,
                behind: row::count(row, 5)?,
            })
        })
        .await
    }

    async fn minutes(&self, since: Timestamp) -> Checked<Vec<MinuteSample>> {
        self.query_all(MINUTES, [since.timestamp_micros()], |row| {
            Ok(MinuteSample {
                namespace: row.get(0)?,
                published: row::count(row, 1)?,
                ended: row::count(row, 2)?,
                depth: row::count_or_null(row, 3)?,
            })
        })
        .await
    }

    async fn all_maintenance_tasks(&self) -> Checked<Vec<MaintenanceTaskState>> {
        let found = self.query_all(DUTIES, [], |row| {
            // Skips tasks that only a newer version knows.
            if row.get_ref(0)?.as_str()?.parse::<MaintenanceTask>().is_err() {
                return Ok(None);
            }
            let (namespace, held_until) = (row.get(9)?, row::timestamp_or_null(row, 10)?);
            Ok(Some(MaintenanceTaskState { namespace, task: maintenance_tasks::view(row)?, held_until }))
        });
        Ok(found.await?.into_iter().flatten().collect())
    }

    async fn late_schedules(&self, before: Timestamp, limit: usize) -> Checked<Vec<LateSchedule>> {
        self.query_all(LATE, (before.timestamp_micros(), limit as i64), |row| {
            Ok(LateSchedule { namespace: row.get(0)?, name: row.get(1)?, next_at: row::timestamp(row, 2)? })
        })
        .await
    }

    async fn failed_ticks(&self, since: Timestamp, limit: usize) -> Checked<Vec<FailedTick>> {
        self.query_all(FAILED, (since.timestamp_micros(), limit as i64, ROWS_MAX), |row| {
            let (tick_at, error) = (row::timestamp(row, 2)?, row.get(3)?);
            Ok(FailedTick { namespace: row.get(0)?, schedule_id: row.get(1)?, tick_at, error })
        })
        .await
    }

    async fn dead_since(&self, since: Timestamp, limit: usize) -> Checked<Vec<(String, u64)>> {
        self.query_all(DEAD, (since.timestamp_micros(), limit as i64), counted).await
    }

    async fn lane_counts(&self) -> Checked<Vec<(String, u64)>> {
        self.query_all(LANES, [], counted).await
    }

    async fn paused_subscriptions(&self) -> Checked<Vec<(String, String)>> {
        self.query_all(PAUSED, [], |row| Ok((row.get(0)?, row.get(1)?))).await
    }
}
