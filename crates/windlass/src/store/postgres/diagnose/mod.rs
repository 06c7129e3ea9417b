//! Facts about the work in all namespaces for `windlass diagnose`. `server.rs` has those about the server.

use async_trait::async_trait;
use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{Connection as _, Row as _};

use super::error::from_sqlx;
use super::months::is_refused;
use super::row::{count, get};
use super::{PgStore, fix_planner, maintenance_tasks, migrate};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::task::MaintenanceTask;
use crate::observe::diagnose::CheckFailure;
use crate::observe::diagnose::maintenance::{FailedTick, LateSchedule, MaintenanceTaskState};
use crate::observe::diagnose::schema::{Indexes, NamedRemedy, parse_index_statements};
use crate::observe::diagnose::work::{
    BlockedGroup, MinuteSample, OldestReadyDelivery, SilentDelivery, SilentNode, SilentWorker,
};
use crate::store::{Checked, DiagnoseStore, ROWS_MAX};

mod server;

/// Limits the time of a statement, and forbids plans that read whole tables.
const BEGIN: &str = concat!(
    "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL statement_timeout = '5s'; ",
    fix_planner!("SET LOCAL")
);

type Statement<'q> = Query<'q, Postgres, PgArguments>;

/// Runs a statement and returns its rows.
async fn rows(store: &PgStore, statement: Statement<'_>) -> Checked<Vec<PgRow>> {
    let mut connection = store.reads.get().await?;
    let unseen = |error| unseen(store, error);
    let mut tx = connection.begin_with(BEGIN).await.map_err(unseen)?;
    let rows = statement.fetch_all(&mut *tx).await.map_err(unseen)?;
    tx.commit().await.map_err(unseen)?;
    connection.done();
    Ok(rows)
}

async fn row(store: &PgStore, statement: Statement<'_>) -> Checked<PgRow> {
    let gone = || from_sqlx(sqlx::Error::RowNotFound);
    rows(store, statement).await?.pop().ok_or_else(|| gone().into())
}

fn unseen(store: &PgStore, error: sqlx::Error) -> CheckFailure {
    if !is_refused(&error) {
        return from_sqlx(error).into();
    }
    let role = store.options.get_username();
    let grant = format!(
        "let the role see it: GRANT pg_monitor TO \"{role}\"; GRANT SELECT ON ALL TABLES IN SCHEMA windlass TO \"{role}\""
    );
    CheckFailure::Refused { detail: error.to_string(), grant }
}

fn all<T>(rows: &[PgRow], of: impl Fn(&PgRow) -> Result<T>) -> Checked<Vec<T>> {
    Ok(rows.iter().map(of).collect::<Result<_>>()?)
}

fn number(row: &PgRow, column: &'static str) -> Result<u64> {
    get::<i64>(row, column).map(i64::unsigned_abs)
}

fn pair<T>(row: &PgRow) -> Result<(String, T)>
where
    T: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
{
    Ok((row.try_get(0).map_err(from_sqlx)?, row.try_get(1).map_err(from_sqlx)?))
}

/// The indexes of a new database.
const EXPECTED: &str = include_str!("../indexes.sql");

// Indexes of partitions are created and dropped with them.
const INDEXES: &str = "
SELECT c.relname::text AS name, i.indisvalid AND i.indisready AS valid
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = 'windlass'::regnamespace AND NOT c.relispartition";

/// Makes the statement concurrent, which does not block writers, if the server supports it.
fn make(statement: &str) -> String {
    match statement.contains(" ON ONLY ") {
        true => statement.replace(" ON ONLY ", " ON "),
        false => statement.replace(" INDEX ", " INDEX CONCURRENTLY "),
    }
}

fn make_again(name: &str, statement: &str) -> String {
    match statement.contains(" ON ONLY ") {
        true => format!("DROP INDEX windlass.{name}; {}", make(statement)),
        false => format!("REINDEX INDEX CONCURRENTLY windlass.{name}"),
    }
}

async fn indexes(store: &PgStore) -> Checked<Indexes> {
    let found: Vec<(String, bool)> = all(&rows(store, sqlx::query(INDEXES)).await?, pair)?;
    let mut indexes = Indexes::default();
    for (name, statement) in parse_index_statements(EXPECTED) {
        indexes.expected += 1;
        let amiss = |remedy| NamedRemedy { name: name.to_owned(), remedy };
        match found.iter().find(|(found, _)| found == name) {
            None => indexes.missing.push(amiss(make(statement))),
            Some((_, false)) => indexes.invalid.push(amiss(make_again(name, statement))),
            Some((_, true)) => {}
        }
    }
    Ok(indexes)
}

// Leased deliveries were usually ready before pending ones, so the beginning of each lane suffices.
const HELD: &str = "
SELECT l.namespace, q.event_id, l.event_type, q.worker_id, q.updated_at, q.lease_expires_at
FROM windlass.lanes l CROSS JOIN LATERAL (
    SELECT q.event_id, q.lease, q.worker_id, q.updated_at, q.lease_expires_at FROM windlass.event_queue q
    WHERE q.lane_id = l.lane_id AND q.namespace = l.namespace ORDER BY q.ready_at, q.event_id LIMIT $4) AS q
WHERE q.lease IS NOT NULL AND (q.lease_expires_at < $1 OR q.updated_at < $2)
ORDER BY q.updated_at LIMIT $3";

const WORKERS: &str = "
SELECT l.namespace, q.worker_id, count(*) AS held, max(q.updated_at) AS seen_at
FROM windlass.lanes l CROSS JOIN LATERAL (
    SELECT q.lease, q.worker_id, q.updated_at FROM windlass.event_queue q
    WHERE q.lane_id = l.lane_id AND q.namespace = l.namespace ORDER BY q.ready_at, q.event_id LIMIT $3) AS q
WHERE q.lease IS NOT NULL
GROUP BY l.namespace, q.worker_id HAVING max(q.updated_at) < $1
ORDER BY seen_at LIMIT $2";

const NODES: &str = "
SELECT namespace, node_id, last_heartbeat FROM windlass.nodes
WHERE stopped_at IS NULL AND last_heartbeat < $1 ORDER BY last_heartbeat DESC LIMIT $2";

const WAITING: &str = "
SELECT l.namespace, l.subscription, l.event_type, q.ready_at
FROM windlass.lanes l CROSS JOIN LATERAL (
    SELECT h.ready_at FROM (
        SELECT q.ready_at, q.lease FROM windlass.event_queue q
        WHERE q.lane_id = l.lane_id AND q.namespace = l.namespace AND q.ready_at < $1
        ORDER BY q.ready_at, q.event_id LIMIT $3) AS h
    WHERE h.lease IS NULL ORDER BY h.ready_at LIMIT 1) AS q
ORDER BY q.ready_at LIMIT $2";

// Groups whose first delivery cannot be claimed yet although others are due.
const GROUPS: &str = "
SELECT l.namespace, q.group_id, q.event_id, q.retry_count, q.ready_at, g.depth - 1 AS behind
FROM windlass.lanes l CROSS JOIN LATERAL (
    SELECT q.event_id, q.subscription, q.namespace, q.group_id, q.retry_count, q.ready_at, q.lease
    FROM windlass.event_queue q
    WHERE q.lane_id = l.lane_id AND q.namespace = l.namespace AND q.ready_at > $1 AND q.ready_at < 'infinity'
    ORDER BY q.ready_at, q.event_id LIMIT $3) AS q
CROSS JOIN LATERAL (
    SELECT g.depth FROM windlass.event_groups g
    WHERE g.group_id = q.group_id AND g.subscription = q.subscription AND g.namespace = q.namespace LIMIT 1) AS g
WHERE q.group_id IS NOT NULL AND q.lease IS NULL AND g.depth > 1
  AND (SELECT w.due_at FROM windlass.event_queue w
       WHERE w.group_id = q.group_id AND w.subscription = q.subscription AND w.namespace = q.namespace
         AND NOT isfinite(w.ready_at)
       ORDER BY w.due_at, w.event_id LIMIT 1) <= $1
ORDER BY behind DESC LIMIT $2";

const MINUTES: &str = "
SELECT n.namespace, s.published, s.ended, s.depth
FROM windlass.namespaces n CROSS JOIN LATERAL (
    SELECT s.at, sum(s.published)::bigint AS published,
           sum(s.completed + s.failed + s.expired + s.cancelled)::bigint AS ended, sum(s.depth)::bigint AS depth
    FROM windlass.samples s WHERE s.namespace = n.namespace AND s.span_s = 60 AND s.at >= $1 GROUP BY s.at) AS s
ORDER BY n.namespace, s.at";

const DUTIES: &str = "
SELECT namespace, task, every_ms, next_at, worker_id, runs, last_run_at, took_ms, done, error, held_until
FROM windlass.maintenance_tasks ORDER BY next_at";

const ARRIVED: &str = "
SELECT n.namespace, a.created_at
FROM windlass.namespaces n CROSS JOIN LATERAL (
    SELECT a.created_at FROM windlass.arrivals a WHERE a.namespace = n.namespace ORDER BY a.event_id LIMIT 1) AS a
WHERE a.created_at < $1 ORDER BY a.created_at LIMIT $2";

const LATE: &str = "
SELECT n.namespace, s.name, s.next_at
FROM windlass.namespaces n CROSS JOIN LATERAL (
    SELECT s.name, s.next_at FROM windlass.schedules s
    WHERE s.namespace = n.namespace AND s.next_at IS NOT NULL AND s.next_at < $1 ORDER BY s.next_at LIMIT $2) AS s
ORDER BY s.next_at LIMIT $2";

const FAILED: &str = "
SELECT n.namespace, f.schedule_id, f.tick_at, f.error
FROM windlass.namespaces n CROSS JOIN LATERAL (
    SELECT f.schedule_id::text AS schedule_id, f.tick_at, f.fired_at, f.error FROM (
        SELECT f.schedule_id, f.tick_at, f.fired_at, f.error FROM windlass.schedule_fires f
        WHERE f.namespace = n.namespace AND f.fired_at >= $1 ORDER BY f.fired_at DESC LIMIT $3) AS f
    WHERE f.error IS NOT NULL) AS f
ORDER BY f.fired_at DESC LIMIT $2";

const DEAD: &str = "
SELECT n.namespace, d.dead
FROM windlass.namespaces n CROSS JOIN LATERAL (
    SELECT count(*) AS dead FROM (
        SELECT FROM windlass.dead_letters d WHERE d.namespace = n.namespace AND d.failed_at >= $1 LIMIT $2) AS d) AS d
WHERE d.dead > 0 ORDER BY n.namespace";

const LANES: &str = "SELECT namespace, count(*) FROM windlass.lanes GROUP BY namespace ORDER BY namespace";

const PAUSED: &str = "SELECT namespace, subscription FROM windlass.subscriptions WHERE paused ORDER BY 1, 2";

#[async_trait]
impl DiagnoseStore for PgStore {
    async fn schema_versions(&self) -> Checked<(i64, i64)> {
        let mut connection = self.reads.get().await?;
        let found = migrate::found(&mut connection).await?;
        connection.done();
        Ok((found, migrate::KNOWN))
    }

    async fn indexes(&self) -> Checked<Indexes> {
        indexes(self).await
    }

    async fn silent_deliveries(
        &self,
        lease_expired_before: Timestamp,
        silent_before: Timestamp,
        limit: usize,
    ) -> Checked<Vec<SilentDelivery>> {
        let query = sqlx::query(HELD).bind(lease_expired_before).bind(silent_before).bind(limit as i64).bind(ROWS_MAX);
        all(&rows(self, query).await?, |row| {
            Ok(SilentDelivery {
                namespace: get(row, "namespace")?,
                event_id: get(row, "event_id")?,
                event_type: get(row, "event_type")?,
                worker_id: get(row, "worker_id")?,
                updated_at: get(row, "updated_at")?,
                lease_expires_at: get(row, "lease_expires_at")?,
            })
        })
    }

    async fn silent_workers(&self, before: Timestamp, limit: usize) -> Checked<Vec<SilentWorker>> {
        let query = sqlx::query(WORKERS).bind(before).bind(limit as i64).bind(ROWS_MAX);
        all(&rows(self, query).await?, |row| {
            Ok(SilentWorker {
                namespace: get(row, "namespace")?,
                worker_id: get(row, "worker_id")?,
                held: number(row, "held")?,
                seen_at: get(row, "seen_at")?,
            })
        })
    }

    async fn silent_nodes(&self, before: Timestamp, limit: usize) -> Checked<Vec<SilentNode>> {
        let query = sqlx::query(NODES).bind(before).bind(limit as i64);
        all(&rows(self, query).await?, |row| {
            Ok(SilentNode {
                namespace: get(row, "namespace")?,
                node_id: get(row, "node_id")?,
                last_heartbeat: get(row, "last_heartbeat")?,
            })
        })
    }

    async fn waiting_since(&self, before: Timestamp, limit: usize) -> Checked<Vec<OldestReadyDelivery>> {
        let query = sqlx::query(WAITING).bind(before).bind(limit as i64).bind(ROWS_MAX);
        all(&rows(self, query).await?, |row| {
            Ok(OldestReadyDelivery {
                namespace: get(row, "namespace")?,
                subscription: get(row, "subscription")?,
                event_type: get(row, "event_type")?,
                ready_at: get(row, "ready_at")?,
            })
        })
    }

    async fn arrived_before(&self, before: Timestamp, limit: usize) -> Checked<Vec<(String, Timestamp)>> {
        all(&rows(self, sqlx::query(ARRIVED).bind(before).bind(limit as i64)).await?, |row| {
            Ok((get(row, "namespace")?, get(row, "created_at")?))
        })
    }

    async fn blocked_groups(&self, now: Timestamp, limit: usize) -> Checked<Vec<BlockedGroup>> {
        let query = sqlx::query(GROUPS).bind(now).bind(limit as i64).bind(ROWS_MAX);
        all(&rows(self, query).await?, |row| {
            Ok(BlockedGroup {
                namespace: get(row, "namespace")?,
                group_id: get(row, "group_id")?,
                event_id: get(row, "event_id")?,
                retry_count: count(row, "retry_count")?,
                ready_at: get(row, "ready_at")?,
                behind: number(row, "behind")?,
            })
        })
    }

    async fn minutes(&self, since: Timestamp) -> Checked<Vec<MinuteSample>> {
        all(&rows(self, sqlx::query(MINUTES).bind(since)).await?, |row| {
            Ok(MinuteSample {
                namespace: get(row, "namespace")?,
                published: number(row, "published")?,
                ended: number(row, "ended")?,
                depth: get::<Option<i64>>(row, "depth")?.map(i64::unsigned_abs),
            })
        })
    }

    async fn all_maintenance_tasks(&self) -> Checked<Vec<MaintenanceTaskState>> {
        let rows = rows(self, sqlx::query(DUTIES)).await?;
        // Skips tasks that only a newer version knows.
        let known = |row: &&PgRow| get::<String>(row, "task").is_ok_and(|task| task.parse::<MaintenanceTask>().is_ok());
        let fact = |row: &PgRow| {
            let (namespace, held_until) = (get(row, "namespace")?, get(row, "held_until")?);
            Ok(MaintenanceTaskState { namespace, task: maintenance_tasks::view(row)?, held_until })
        };
        Ok(rows.iter().filter(known).map(fact).collect::<Result<_>>()?)
    }

    async fn late_schedules(&self, before: Timestamp, limit: usize) -> Checked<Vec<LateSchedule>> {
        let query = sqlx::query(LATE).bind(before).bind(limit as i64);
        all(&rows(self, query).await?, |row| {
            Ok(LateSchedule {
                namespace: get(row, "namespace")?,
                name: get(row, "name")?,
                next_at: get(row, "next_at")?,
            })
        })
    }

    async fn failed_ticks(&self, since: Timestamp, limit: usize) -> Checked<Vec<FailedTick>> {
        let query = sqlx::query(FAILED).bind(since).bind(limit as i64).bind(ROWS_MAX);
        all(&rows(self, query).await?, |row| {
            Ok(FailedTick {
                namespace: get(row, "namespace")?,
                schedule_id: get(row, "schedule_id")?,
                tick_at: get(row, "tick_at")?,
                error: get(row, "error")?,
            })
        })
    }

    async fn dead_since(&self, since: Timestamp, limit: usize) -> Checked<Vec<(String, u64)>> {
        let found: Vec<(String, i64)> =
            all(&rows(self, sqlx::query(DEAD).bind(since).bind(limit as i64)).await?, pair)?;
        Ok(found.into_iter().map(|(namespace, dead)| (namespace, dead.unsigned_abs())).collect())
    }

    async fn lane_counts(&self) -> Checked<Vec<(String, u64)>> {
        let found: Vec<(String, i64)> = all(&rows(self, sqlx::query(LANES)).await?, pair)?;
        Ok(found.into_iter().map(|(namespace, lanes)| (namespace, lanes.unsigned_abs())).collect())
    }

    async fn paused_subscriptions(&self) -> Checked<Vec<(String, String)>> {
        all(&rows(self, sqlx::query(PAUSED)).await?, pair)
    }
}
