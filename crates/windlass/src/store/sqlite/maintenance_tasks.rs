//! Which worker runs which maintenance task, and when each is due again.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::writer::Durability;
use super::{SqliteStore, row};
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::maintenance::task::{MaintenanceRun, MaintenanceTask, MaintenanceTaskView};
use crate::store::MaintenanceTaskStore;
use crate::topology::DEFAULT_NAMESPACE;

#[async_trait]
impl MaintenanceTaskStore for SqliteStore {
    async fn due_maintenance_tasks(
        &self,
        namespace: Option<&str>,
        tasks: &[MaintenanceTask],
        now: Option<Timestamp>,
    ) -> Result<Vec<(String, MaintenanceTask)>> {
        let (namespace, tasks, now) = (namespace.map(str::to_owned), tasks.to_vec(), self.now(now));
        self.read(move |conn| due(conn, namespace.as_deref(), &tasks, now)).await
    }

    async fn acquire_maintenance_tasks(
        &self,
        namespace: &str,
        tasks: &[MaintenanceTask],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<Vec<MaintenanceTask>> {
        let (namespace, tasks, worker_id) = (namespace.to_owned(), tasks.to_vec(), worker_id.to_owned());
        // Relaxed: if the record is lost in a power failure, the task only runs again.
        let work = move |conn: &Connection, now| acquire(conn, &namespace, &tasks, &worker_id, now);
        self.writer.write(Durability::Relaxed, row::micros(now), work).await
    }

    async fn extend_maintenance_task(
        &self,
        namespace: &str,
        task: MaintenanceTask,
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()> {
        let (namespace, worker_id) = (namespace.to_owned(), worker_id.to_owned());
        let work = move |conn: &Connection, now| extend(conn, &namespace, task, &worker_id, now);
        self.writer.write(Durability::Relaxed, row::micros(now), work).await
    }

    async fn record_maintenance_runs(
        &self,
        namespace: &str,
        runs: &[MaintenanceRun],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()> {
        let (namespace, runs, worker_id) = (namespace.to_owned(), runs.to_vec(), worker_id.to_owned());
        let work = move |conn: &Connection, now| record(conn, &namespace, &runs, &worker_id, now);
        self.writer.write(Durability::Relaxed, row::micros(now), work).await
    }

    async fn maintenance_tasks(&self, namespace: &str) -> Result<Vec<MaintenanceTaskView>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| maintenance_tasks(conn, &namespace)).await
    }
}

// A due time further ahead than the interval was written before the clock was set back.
const DUE: &str = "
SELECT n.namespace FROM namespaces n LEFT JOIN maintenance_tasks d ON d.namespace = n.namespace AND d.task = ?2
WHERE n.namespace = coalesce(?1, n.namespace)
  AND (d.next_at IS NULL OR d.next_at <= ?3 OR d.next_at > ?3 + 2 * ?4)
  AND (d.held_until IS NULL OR d.held_until <= ?3 OR d.held_until > ?3 + ?5)";

fn due(
    conn: &Connection,
    namespace: Option<&str>,
    tasks: &[MaintenanceTask],
    now: i64,
) -> Result<Vec<(String, MaintenanceTask)>> {
    let mut select = conn.prepare_cached(DUE)?;
    let mut due = Vec::new();
    for task in tasks {
        let namespace = if task.is_database_wide() { Some(DEFAULT_NAMESPACE) } else { namespace };
        let values = (namespace, task.as_str(), now, micros(task.every()), micros(MaintenanceTask::LEASE));
        for namespace in select.query_map(values, |row| row.get(0))? {
            due.push((namespace?, *task));
        }
    }
    Ok(due)
}

// Checks again that the task is due: another worker may have acquired it.
const TAKE: &str = "
INSERT INTO maintenance_tasks (namespace, task, every_ms, next_at, held_until, worker_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE
SET every_ms = excluded.every_ms, held_until = excluded.held_until, worker_id = excluded.worker_id
WHERE (next_at <= excluded.next_at OR next_at > excluded.next_at + 2000 * excluded.every_ms)
  AND (held_until IS NULL OR held_until <= excluded.next_at OR held_until > excluded.held_until)
RETURNING 1";

fn acquire(
    conn: &Connection,
    namespace: &str,
    tasks: &[MaintenanceTask],
    worker_id: &str,
    now: i64,
) -> Result<Vec<MaintenanceTask>> {
    let mut take = conn.prepare_cached(TAKE)?;
    let mut taken = Vec::new();
    for task in tasks {
        let held_until = now.saturating_add(micros(MaintenanceTask::LEASE));
        let values = (namespace, task.as_str(), ms(task.every()), now, held_until, worker_id);
        if take.query_row(values, |_| Ok(())).optional()?.is_some() {
            taken.push(*task);
        }
    }
    Ok(taken)
}

const HOLD: &str = "
UPDATE maintenance_tasks SET held_until = ?4 WHERE namespace = ?1 AND task = ?2 AND worker_id = ?3 AND held_until IS NOT NULL";

fn extend(conn: &Connection, namespace: &str, task: MaintenanceTask, worker_id: &str, now: i64) -> Result<()> {
    let held_until = now.saturating_add(micros(MaintenanceTask::LEASE));
    conn.prepare_cached(HOLD)?.execute((namespace, task.as_str(), worker_id, held_until))?;
    Ok(())
}

// A worker that held the task for too long has lost it and may not reschedule it.
const NOTE: &str = "
UPDATE maintenance_tasks
SET next_at = ?3, held_until = NULL, runs = runs + 1, last_run_at = ?4, took_ms = ?5, done = ?6, error = ?7
WHERE namespace = ?1 AND task = ?2 AND worker_id = ?8";

fn record(conn: &Connection, namespace: &str, runs: &[MaintenanceRun], worker_id: &str, now: i64) -> Result<()> {
    let mut note = conn.prepare_cached(NOTE)?;
    for run in runs {
        let next_at = now.saturating_add(micros(run.next_in()));
        let error = run.error.as_ref().map(ToString::to_string);
        let (took, done) = (ms(run.took), run.done as i64);
        note.execute((namespace, run.task.as_str(), next_at, now, took, done, error, worker_id))?;
    }
    Ok(())
}

const DUTIES: &str = "
SELECT task, every_ms, next_at, worker_id, runs, last_run_at, took_ms, done, error
FROM maintenance_tasks WHERE namespace = ?1 ORDER BY task";

pub(super) fn maintenance_tasks(conn: &Connection, namespace: &str) -> Result<Vec<MaintenanceTaskView>> {
    let mut select = conn.prepare_cached(DUTIES)?;
    let (mut rows, mut tasks) = (select.query([namespace])?, Vec::new());
    while let Some(row) = rows.next()? {
        // Skips tasks that only a newer version knows.
        if row.get_ref(0)?.as_str().is_ok_and(|task| task.parse::<MaintenanceTask>().is_ok()) {
            tasks.push(view(row)?);
        }
    }
    Ok(tasks)
}

pub(super) fn view(row: &Row) -> rusqlite::Result<MaintenanceTaskView> {
    let count = |index| row.get::<_, Option<i64>>(index).map(|count| count.map(i64::unsigned_abs));
    Ok(MaintenanceTaskView {
        task: row::parse_text(row, 0)?,
        every_ms: row::count(row, 1)?,
        next_at: row::timestamp(row, 2)?,
        worker_id: row.get(3)?,
        runs: row::count(row, 4)?,
        last_run_at: row::timestamp_or_null(row, 5)?,
        took_ms: count(6)?,
        done: count(7)?,
        error: row.get(8)?,
    })
}

fn ms(duration: Duration) -> i64 {
    duration.as_millis() as i64
}
