//! Tasks: which are due, who takes them, and what came of it.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row};

use super::row;
use crate::clock::micros;
use crate::error::Result;
use crate::maintenance::task::{MaintenanceRun, MaintenanceTask, MaintenanceTaskView};
use crate::topology::DEFAULT_NAMESPACE;

// What lies further ahead than it can was written by a clock that has been put back since.
const DUE: &str = "
SELECT n.namespace FROM namespaces n LEFT JOIN maintenance_tasks d ON d.namespace = n.namespace AND d.task = ?2
WHERE n.namespace = coalesce(?1, n.namespace)
  AND (d.next_at IS NULL OR d.next_at <= ?3 OR d.next_at > ?3 + 2 * ?4)
  AND (d.held_until IS NULL OR d.held_until <= ?3 OR d.held_until > ?3 + ?5)";

pub(super) fn due(
    conn: &Connection,
    namespace: Option<&str>,
    tasks: &[MaintenanceTask],
    now: i64,
) -> Result<Vec<(String, MaintenanceTask)>> {
    let mut select = conn.prepare_cached(DUE)?;
    let mut due = Vec::new();
    for task in tasks {
        let namespace = if task.is_of_database() { Some(DEFAULT_NAMESPACE) } else { namespace };
        let values = (namespace, task.as_str(), now, micros(task.every()), micros(MaintenanceTask::PATIENCE));
        for namespace in select.query_map(values, |row| row.get(0))? {
            due.push((namespace?, *task));
        }
    }
    Ok(due)
}

// Asks once more whether it is due: somebody else may have been faster.
const TAKE: &str = "
INSERT INTO maintenance_tasks (namespace, task, every_ms, next_at, held_until, worker_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE
SET every_ms = excluded.every_ms, held_until = excluded.held_until, worker_id = excluded.worker_id
WHERE (next_at <= excluded.next_at OR next_at > excluded.next_at + 2000 * excluded.every_ms)
  AND (held_until IS NULL OR held_until <= excluded.next_at OR held_until > excluded.held_until)
RETURNING 1";

pub(super) fn take(
    conn: &Connection,
    namespace: &str,
    tasks: &[MaintenanceTask],
    worker_id: &str,
    now: i64,
) -> Result<Vec<MaintenanceTask>> {
    let mut take = conn.prepare_cached(TAKE)?;
    let mut taken = Vec::new();
    for task in tasks {
        let held_until = now.saturating_add(micros(MaintenanceTask::PATIENCE));
        let values = (namespace, task.as_str(), ms(task.every()), now, held_until, worker_id);
        if take.query_row(values, |_| Ok(())).optional()?.is_some() {
            taken.push(*task);
        }
    }
    Ok(taken)
}

const HOLD: &str = "
UPDATE maintenance_tasks SET held_until = ?4 WHERE namespace = ?1 AND task = ?2 AND worker_id = ?3 AND held_until IS NOT NULL";

pub(super) fn hold(conn: &Connection, namespace: &str, task: MaintenanceTask, worker_id: &str, now: i64) -> Result<()> {
    let held_until = now.saturating_add(micros(MaintenanceTask::PATIENCE));
    conn.prepare_cached(HOLD)?.execute((namespace, task.as_str(), worker_id, held_until))?;
    Ok(())
}

// Whoever held it for too long has lost it, and with it the right to say when it comes next.
const NOTE: &str = "
UPDATE maintenance_tasks
SET next_at = ?3, held_until = NULL, runs = runs + 1, last_run_at = ?4, took_ms = ?5, done = ?6, error = ?7
WHERE namespace = ?1 AND task = ?2 AND worker_id = ?8";

pub(super) fn note(
    conn: &Connection,
    namespace: &str,
    runs: &[MaintenanceRun],
    worker_id: &str,
    now: i64,
) -> Result<()> {
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
        // Those that only a newer version knows are left out.
        if row.get_ref(0)?.as_str().is_ok_and(|task| task.parse::<MaintenanceTask>().is_ok()) {
            tasks.push(view(row)?);
        }
    }
    Ok(tasks)
}

pub(super) fn view(row: &Row) -> rusqlite::Result<MaintenanceTaskView> {
    let count = |index| row.get::<_, Option<i64>>(index).map(|count| count.map(i64::unsigned_abs));
    Ok(MaintenanceTaskView {
        task: row::word(row, 0)?,
        every_ms: row::count(row, 1)?,
        next_at: row::instant(row, 2)?,
        worker_id: row.get(3)?,
        runs: row::count(row, 4)?,
        last_run_at: row::instant_if_any(row, 5)?,
        took_ms: count(6)?,
        done: count(7)?,
        error: row.get(8)?,
    })
}

fn ms(duration: Duration) -> i64 {
    duration.as_millis() as i64
}
