//! Schedules that pg_cron runs, as jobs named after the schedule's id.

use sqlx::{Connection as _, PgConnection};

use super::PgStore;
use super::error::from_sqlx;
use super::row::get;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::schedule::pg_cron::PgCronSchedule;

// Before version 1.5, pg_cron uses GMT and has no setting for it. It does not run jobs of databases other than its own.
const FIND: &str = "
SELECT s.schedule_id::text AS schedule_id, s.cron, s.timezone, s.title, s.payload::text AS payload,
    (SELECT coalesce(nullif(current_setting('cron.timezone', true), ''), 'GMT') FROM pg_extension
     WHERE extname = 'pg_cron' AND current_setting('cron.database_name', true) = current_database()) AS pg_cron_timezone
FROM windlass.schedules s WHERE s.namespace = $1 AND s.schedule_id = $2::text::uuid FOR UPDATE OF s";

const SCHEDULE: &str = "SELECT cron.schedule($1, $2, $3)";

const HAND: &str = "
UPDATE windlass.schedules SET runner = 'pg_cron', next_at = NULL,
    updated_at = greatest(coalesce($3, now()), updated_at + interval '1 microsecond')
WHERE namespace = $1 AND schedule_id = $2::text::uuid";

/// Lets pg_cron run a schedule from the commit on, with the expression that `expression` returns. Returns whether the
/// schedule exists.
pub(crate) async fn schedule(
    store: &PgStore,
    namespace: &str,
    schedule_id: &str,
    expression: fn(&PgCronSchedule) -> Result<String>,
    now: Option<Timestamp>,
) -> Result<bool> {
    let mut connection = store.writes.get().await?;
    let mut tx = connection.begin().await.map_err(from_sqlx)?;
    let handed = schedule_in(&mut tx, namespace, schedule_id, expression, now).await?;
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    Ok(handed)
}

/// The same in a transaction that changes the schedule. An existing job is replaced.
pub(super) async fn schedule_in(
    connection: &mut PgConnection,
    namespace: &str,
    schedule_id: &str,
    expression: fn(&PgCronSchedule) -> Result<String>,
    now: Option<Timestamp>,
) -> Result<bool> {
    let find = sqlx::query(FIND).bind(namespace).bind(schedule_id);
    let Some(row) = find.fetch_optional(&mut *connection).await.map_err(from_sqlx)? else { return Ok(false) };
    let expression = expression(&PgCronSchedule {
        cron: get(&row, "cron")?,
        timezone: get(&row, "timezone")?,
        title: get(&row, "title")?,
        payload: get(&row, "payload")?,
        pg_cron_timezone: get(&row, "pg_cron_timezone")?,
    })?;
    let schedule_id: String = get(&row, "schedule_id")?;
    let schedule = sqlx::query(SCHEDULE)
        .bind(name(&schedule_id))
        .bind(expression)
        .bind(format!("SELECT windlass.run_scheduled_task('{schedule_id}')"));
    schedule.execute(&mut *connection).await.map_err(from_pg_cron)?;
    let hand = sqlx::query(HAND).bind(namespace).bind(schedule_id).bind(now);
    hand.execute(connection).await.map_err(from_sqlx)?;
    Ok(true)
}

// Job names have at most 63 bytes before version 1.6, so the name does not contain the namespace.
fn name(schedule_id: &str) -> String {
    format!("windlass:{schedule_id}")
}

/// Errors about arguments are reported to the caller.
fn from_pg_cron(error: sqlx::Error) -> Error {
    match error.as_database_error() {
        Some(said) if said.code().is_some_and(|code| code.starts_with("22")) => {
            Error::invalid("cron", format!("pg_cron says: {}", said.message()))
        }
        _ => from_sqlx(error),
    }
}

const LOCK: &str = "
SELECT cron, timezone, runner, coalesce($3, now()) AS now
FROM windlass.schedules WHERE namespace = $1 AND schedule_id = $2::text::uuid FOR UPDATE";

const TAKE: &str = "
UPDATE windlass.schedules SET runner = 'windlass', next_at = CASE WHEN active THEN $3::timestamptz END,
    updated_at = greatest(coalesce($4, now()), updated_at + interval '1 microsecond')
WHERE namespace = $1 AND schedule_id = $2::text::uuid";

/// Lets Windlass run a schedule again instead of pg_cron, from the tick on that `next` finds for its expression and
/// time zone. Returns whether the schedule exists.
pub(crate) async fn unschedule(
    store: &PgStore,
    namespace: &str,
    schedule_id: &str,
    next: fn(&str, &str, Timestamp) -> Result<Option<Timestamp>>,
    now: Option<Timestamp>,
) -> Result<bool> {
    let mut connection = store.writes.get().await?;
    let mut tx = connection.begin().await.map_err(from_sqlx)?;
    let lock = sqlx::query(LOCK).bind(namespace).bind(schedule_id).bind(now);
    let Some(row) = lock.fetch_optional(&mut *tx).await.map_err(from_sqlx)? else { return Ok(false) };
    if get::<String>(&row, "runner")? == "pg_cron" {
        let next_at = next(&get::<String>(&row, "cron")?, &get::<String>(&row, "timezone")?, get(&row, "now")?)?;
        let take = sqlx::query(TAKE).bind(namespace).bind(schedule_id).bind(next_at).bind(now);
        take.execute(&mut *tx).await.map_err(from_sqlx)?;
        unschedule_in(&mut tx, schedule_id).await?;
    }
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    Ok(true)
}

const IS_INSTALLED: &str = "SELECT FROM pg_extension WHERE extname = 'pg_cron'";

const UNSCHEDULE: &str = "SELECT cron.unschedule(jobid) FROM cron.job WHERE jobname::text = $1";

/// Removes the job in a transaction that removes the schedule or lets Windlass run it. Does nothing if there is no job.
pub(super) async fn unschedule_in(connection: &mut PgConnection, schedule_id: &str) -> Result<()> {
    let installed = sqlx::query(IS_INSTALLED).fetch_optional(&mut *connection).await.map_err(from_sqlx)?;
    if installed.is_some() {
        let unschedule = sqlx::query(UNSCHEDULE).bind(name(&schedule_id.to_lowercase()));
        unschedule.execute(connection).await.map_err(from_sqlx)?;
    }
    Ok(())
}
