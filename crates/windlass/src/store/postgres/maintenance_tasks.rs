//! Which worker runs which maintenance task, and when each is due again.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::enqueue::column;
use super::error::from_sqlx;
use super::row::get;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::task::{MaintenanceRun, MaintenanceTask, MaintenanceTaskView};
use crate::store::MaintenanceTaskStore;

// A due time further ahead than the interval was written before the clock was set back.
const DUE: &str = "
SELECT n.namespace, w.task
FROM windlass.namespaces n
CROSS JOIN unnest($2::text[], $3::bigint[], $5::boolean[]) AS w(task, every_ms, whole)
LEFT JOIN windlass.maintenance_tasks d ON d.namespace = n.namespace AND d.task = w.task
WHERE CASE WHEN w.whole THEN n.namespace = 'default' ELSE n.namespace = coalesce($1, n.namespace) END
  AND (d.next_at IS NULL OR d.next_at <= coalesce($6, now())
       OR d.next_at > coalesce($6, now()) + 2 * w.every_ms * interval '1 millisecond')
  AND (d.held_until IS NULL OR d.held_until <= coalesce($6, now())
       OR d.held_until > coalesce($6, now()) + $4 * interval '1 millisecond')";

// Checks again that the task is due: another worker may have acquired it.
const TAKE: &str = "
INSERT INTO windlass.maintenance_tasks AS d (namespace, task, every_ms, next_at, held_until, worker_id)
SELECT $1, w.task, w.every_ms, coalesce($6, now()),
       coalesce($6, now()) + $4 * interval '1 millisecond', $5
FROM unnest($2::text[], $3::bigint[]) AS w(task, every_ms)
ON CONFLICT (namespace, task) DO UPDATE
SET every_ms = excluded.every_ms, held_until = excluded.held_until, worker_id = excluded.worker_id
WHERE (d.next_at <= excluded.next_at
       OR d.next_at > excluded.next_at + 2 * excluded.every_ms * interval '1 millisecond')
  AND (d.held_until IS NULL OR d.held_until <= excluded.next_at OR d.held_until > excluded.held_until)
RETURNING d.task";

const HOLD: &str = "
UPDATE windlass.maintenance_tasks SET held_until = coalesce($5, now()) + $4 * interval '1 millisecond'
WHERE namespace = $1 AND task = $2 AND worker_id = $3 AND held_until IS NOT NULL";

// A worker that held the task for too long has lost it and may not reschedule it.
const NOTE: &str = "
UPDATE windlass.maintenance_tasks d
SET next_at = coalesce($8, now()) + r.next_in_ms * interval '1 millisecond', held_until = NULL, runs = d.runs + 1,
    last_run_at = coalesce($8, now()), took_ms = r.took_ms, done = r.done, error = r.error
FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[])
  AS r(task, next_in_ms, took_ms, done, error)
WHERE d.namespace = $1 AND d.task = r.task AND d.worker_id = $7";

const DUTIES: &str = r#"
SELECT task, every_ms, next_at, worker_id, runs, last_run_at, took_ms, done, error
FROM windlass.maintenance_tasks WHERE namespace = $1 ORDER BY task COLLATE "C""#;

#[async_trait]
impl MaintenanceTaskStore for PgStore {
    async fn due_maintenance_tasks(
        &self,
        namespace: Option<&str>,
        tasks: &[MaintenanceTask],
        now: Option<Timestamp>,
    ) -> Result<Vec<(String, MaintenanceTask)>> {
        let mut connection = self.reads.get().await?;
        let query = sqlx::query(DUE)
            .bind(namespace)
            .bind(column(tasks, |task| task.as_str()))
            .bind(column(tasks, |task| ms(task.every())))
            .bind(ms(MaintenanceTask::LEASE))
            .bind(column(tasks, |task| task.is_database_wide()))
            .bind(now);
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        rows.iter().map(|row| Ok((get(row, "namespace")?, get::<String>(row, "task")?.parse()?))).collect()
    }

    async fn acquire_maintenance_tasks(
        &self,
        namespace: &str,
        tasks: &[MaintenanceTask],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<Vec<MaintenanceTask>> {
        let mut connection = self.writes.get().await?;
        let query = sqlx::query_scalar(TAKE)
            .bind(namespace)
            .bind(column(tasks, |task| task.as_str()))
            .bind(column(tasks, |task| ms(task.every())))
            .bind(ms(MaintenanceTask::LEASE))
            .bind(worker_id)
            .bind(now);
        let taken: Vec<String> = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        taken.iter().map(|task| task.parse()).collect()
    }

    async fn extend_maintenance_task(
        &self,
        namespace: &str,
        task: MaintenanceTask,
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()> {
        let mut connection = self.writes.get().await?;
        let hold = sqlx::query(HOLD).bind(namespace).bind(task.as_str()).bind(worker_id);
        hold.bind(ms(MaintenanceTask::LEASE)).bind(now).execute(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(())
    }

    async fn record_maintenance_runs(
        &self,
        namespace: &str,
        runs: &[MaintenanceRun],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()> {
        let mut connection = self.writes.get().await?;
        let query = sqlx::query(NOTE)
            .bind(namespace)
            .bind(column(runs, |run| run.task.as_str()))
            .bind(column(runs, |run| ms(run.next_in())))
            .bind(column(runs, |run| ms(run.took)))
            .bind(column(runs, |run| run.done as i64))
            .bind(column(runs, |run| run.error.as_ref().map(ToString::to_string)))
            .bind(worker_id)
            .bind(now);
        query.execute(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(())
    }

    async fn maintenance_tasks(&self, namespace: &str) -> Result<Vec<MaintenanceTaskView>> {
        let mut connection = self.reads.get().await?;
        let rows = sqlx::query(DUTIES).bind(namespace).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        // Skips tasks that only a newer version knows.
        let known = |row: &&PgRow| get::<String>(row, "task").is_ok_and(|task| task.parse::<MaintenanceTask>().is_ok());
        rows.iter().filter(known).map(view).collect()
    }
}

pub(super) fn view(row: &PgRow) -> Result<MaintenanceTaskView> {
    let count = |column| get::<Option<i64>>(row, column).map(|count| count.map(i64::unsigned_abs));
    Ok(MaintenanceTaskView {
        task: get::<String>(row, "task")?.parse()?,
        every_ms: get::<i64>(row, "every_ms")?.unsigned_abs(),
        next_at: get(row, "next_at")?,
        worker_id: get(row, "worker_id")?,
        runs: get::<i64>(row, "runs")?.unsigned_abs(),
        last_run_at: get(row, "last_run_at")?,
        took_ms: count("took_ms")?,
        done: count("done")?,
        error: get(row, "error")?,
    })
}

fn ms(duration: Duration) -> i64 {
    duration.as_millis() as i64
}
