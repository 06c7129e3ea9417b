//! Stored schedules.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection};

use super::enqueue::signed;
use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use super::row::{count, count_or_none, get, json};
use super::{PgStore, pg_cron};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::inspect::Page;
use crate::schedule::{ScheduleFilter, ScheduleFire, ScheduleRunner, ScheduleView};
use crate::store::{DueSchedules, PreparedSchedule, PutOutcome, SchedulePosition, ScheduleStore};

/// The columns of a view.
macro_rules! columns {
    () => {
        "s.schedule_id::text AS schedule_id, s.name, s.cron, s.timezone, s.event_type, s.title, s.description, s.tags,
    s.payload::text AS payload, s.group_id, s.priority, s.max_retries, s.metadata::text AS metadata, s.expires_in_ms,
    s.missed, s.runner, s.active, s.next_at, s.last_at, s.last_event_id, s.created_at, s.updated_at"
    };
}

/// Strictly increases, so that processes which read the schedule before notice the change even if the clock was set
/// back.
macro_rules! changed_at {
    ($now:literal) => {
        concat!("greatest(coalesce(", $now, ", now()), s.updated_at + interval '1 microsecond')")
    };
}

pub(super) use changed_at;

fn view(row: &PgRow) -> Result<ScheduleView> {
    Ok(ScheduleView {
        id: get(row, "schedule_id")?,
        name: get(row, "name")?,
        cron: get(row, "cron")?,
        timezone: get(row, "timezone")?,
        event_type: get(row, "event_type")?,
        title: get(row, "title")?,
        description: get(row, "description")?,
        tags: get(row, "tags")?,
        payload: json(get(row, "payload")?)?,
        group_id: get(row, "group_id")?,
        priority: get(row, "priority")?,
        max_retries: count_or_none(row, "max_retries")?,
        metadata: get::<Option<String>>(row, "metadata")?.map(json).transpose()?,
        expires_in_ms: get::<Option<i64>>(row, "expires_in_ms")?.map(i64::unsigned_abs),
        missed: get::<String>(row, "missed")?.parse()?,
        runner: get::<String>(row, "runner")?.parse()?,
        active: get(row, "active")?,
        next_at: get(row, "next_at")?,
        next_runs: Vec::new(),
        last_at: get(row, "last_at")?,
        last_event_id: get(row, "last_event_id")?,
        created_at: get(row, "created_at")?,
        updated_at: get(row, "updated_at")?,
    })
}

const COUNT: &str = "SELECT count(*) FROM windlass.schedules WHERE namespace = $1";

macro_rules! add {
    () => {
        "
INSERT INTO windlass.schedules AS s (namespace, schedule_id, name, cron, timezone, event_type, title, description, tags,
    payload, group_id, priority, max_retries, metadata, expires_in_ms, missed, active, next_at, created_at, updated_at)
VALUES ($1, $2::uuid, $3, $4, $5, $6, $7, $8, $9, $10::json, $11, $12, $13, $14::json, $15, $16, $17, $18,
    coalesce($19, now()), coalesce($19, now()))"
    };
}

const ADD: &str = concat!(
    add!(),
    "
ON CONFLICT (namespace, name) DO NOTHING
RETURNING ",
    columns!()
);

/// The replaced columns. If the ticks are the same, a due tick stays due.
macro_rules! replaced {
    ($active:literal) => {
        concat!(
            "
    cron = $4, timezone = $5, event_type = $6, title = $7, description = $8, tags = $9, payload = $10::json,
    group_id = $11, priority = $12, max_retries = $13, metadata = $14::json, expires_in_ms = $15, missed = $16,
    active = ",
            $active,
            ",
    next_at = CASE WHEN s.runner <> 'windlass' OR NOT (",
            $active,
            ") THEN NULL WHEN s.active AND s.cron = $4 AND s.timezone = $5 THEN least(s.next_at, $18) ELSE $18 END,
    updated_at = ",
            changed_at!("$19")
        )
    };
}

const REPLACE: &str = concat!(
    "
UPDATE windlass.schedules s SET name = $3,",
    replaced!("$17"),
    "
WHERE s.schedule_id = $2::uuid AND s.namespace = $1
RETURNING ",
    columns!()
);

const DECLARE: &str = concat!(
    add!(),
    "
ON CONFLICT (namespace, name) DO UPDATE SET",
    replaced!("s.active AND $17"),
    "
RETURNING ",
    columns!()
);

const PAUSE: &str = concat!(
    "
UPDATE windlass.schedules s SET active = false, next_at = NULL, updated_at = ",
    changed_at!("$3"),
    "
WHERE s.schedule_id = $2::uuid AND s.namespace = $1"
);

const RESUME: &str = concat!(
    "
UPDATE windlass.schedules s SET active = true, next_at = CASE WHEN runner = 'windlass' THEN $4 END, updated_at = ",
    changed_at!("$5"),
    "
WHERE s.schedule_id = $2::uuid AND s.namespace = $1 AND s.updated_at = $3 AND NOT s.active"
);

const REMOVE: &str =
    "DELETE FROM windlass.schedules WHERE schedule_id = $2::uuid AND namespace = $1 RETURNING runner = 'pg_cron'";

const ONE: &str =
    concat!("SELECT ", columns!(), " FROM windlass.schedules s WHERE s.schedule_id = $2::uuid AND s.namespace = $1");

macro_rules! matching {
    () => {
        "
FROM windlass.schedules s WHERE s.namespace = $1 AND ($2::text IS NULL OR s.name = $2)
  AND ($3::boolean IS NULL OR s.active = $3) AND ($4::text IS NULL OR s.event_type = $4)"
    };
}

const LIST: &str = concat!("SELECT ", columns!(), matching!(), " ORDER BY s.name LIMIT $5 OFFSET $6");

const TOTAL: &str = concat!("SELECT count(*)", matching!());

const FIRES: &str = "
SELECT tick_at, manual, fired_at, event_id, skipped, error FROM windlass.schedule_fires
WHERE schedule_id = $2::uuid AND namespace = $1 AND tick_at < coalesce($3, 'infinity')
ORDER BY tick_at DESC, manual DESC LIMIT $4";

// Jumps from one namespace to the next by index: each may have many schedules.
pub(super) const NEXT_TICKS: &str = "
WITH RECURSIVE present AS (
    SELECT (SELECT namespace FROM windlass.schedules WHERE next_at IS NOT NULL
            ORDER BY namespace, next_at LIMIT 1) AS namespace
    UNION ALL
    SELECT (SELECT s.namespace FROM windlass.schedules s WHERE s.next_at IS NOT NULL AND s.namespace > p.namespace
            ORDER BY s.namespace, s.next_at LIMIT 1)
    FROM present p WHERE p.namespace IS NOT NULL)
SELECT p.namespace, coalesce($1, now()) AS now, (
    SELECT s.next_at FROM windlass.schedules s WHERE s.namespace = p.namespace AND s.next_at IS NOT NULL
    ORDER BY s.next_at LIMIT 1) AS next_at
FROM present p WHERE p.namespace IS NOT NULL";

macro_rules! after {
    ($next_at:literal, $schedule_id:literal) => {
        concat!(
            "(next_at, schedule_id) > (coalesce(",
            $next_at,
            "::timestamptz, '-infinity'), ",
            $schedule_id,
            "::uuid)"
        )
    };
}

pub(super) const FIRST: &str = concat!(
    "
SELECT coalesce($2, now()) AS now, (
    SELECT next_at FROM windlass.schedules
    WHERE namespace = $1 AND next_at IS NOT NULL AND ",
    after!("$3", "$4"),
    " ORDER BY next_at, schedule_id LIMIT 1) AS next_at"
);

pub(super) const DUE: &str = concat!(
    "
SELECT ",
    columns!(),
    "
FROM (
    SELECT s.*, sum(octet_length(s.payload::text)) OVER (ORDER BY s.next_at, s.schedule_id ROWS UNBOUNDED PRECEDING)
                - octet_length(s.payload::text) AS bytes_before
    FROM (
        SELECT * FROM windlass.schedules
        WHERE namespace = $1 AND next_at <= $2 AND ",
    after!("$5", "$6"),
    " ORDER BY next_at, schedule_id LIMIT $3) AS s) AS s
WHERE s.bytes_before < $4 ORDER BY s.next_at, s.schedule_id"
);

/// Less than every id.
const NO_ID: &str = "00000000-0000-0000-0000-000000000000";

#[async_trait]
impl ScheduleStore for PgStore {
    async fn count_schedules(&self, namespace: &str) -> Result<u64> {
        let mut connection = self.reads.get().await?;
        let count = sqlx::query_scalar::<_, i64>(COUNT).bind(namespace);
        let count = count.fetch_one(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(count.unsigned_abs())
    }

    async fn add_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        let mut connection = self.writes.get().await?;
        let added = put(&mut connection, ADD, namespace, new, now).await?;
        connection.done();
        Ok(added.unwrap_or(PutOutcome::NameTaken))
    }

    async fn put_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        retry_deadlocks!(async { put_anew(self, REPLACE, namespace, new, now).await })
    }

    async fn declare_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        retry_deadlocks!(async { put_anew(self, DECLARE, namespace, new, now).await })
    }

    async fn pause_schedule(&self, namespace: &str, schedule_id: &str, now: Option<Timestamp>) -> Result<bool> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let pause = sqlx::query(PAUSE).bind(namespace).bind(schedule_id).bind(now);
            let paused = pause.execute(&mut *connection).await.map_err(from_sqlx)?.rows_affected();
            connection.done();
            Ok(paused > 0)
        })
    }

    async fn resume_schedule(
        &self,
        namespace: &str,
        schedule_id: &str,
        updated_at: Timestamp,
        next_at: Option<Timestamp>,
        now: Option<Timestamp>,
    ) -> Result<bool> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let resume = sqlx::query(RESUME).bind(namespace).bind(schedule_id).bind(updated_at).bind(next_at).bind(now);
            let resumed = resume.execute(&mut *connection).await.map_err(from_sqlx)?.rows_affected();
            connection.done();
            Ok(resumed > 0)
        })
    }

    async fn remove_schedule(&self, namespace: &str, schedule_id: &str) -> Result<bool> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            let remove = sqlx::query_scalar(REMOVE).bind(namespace).bind(schedule_id);
            let by_pg_cron: Option<bool> = remove.fetch_optional(&mut *tx).await.map_err(from_sqlx)?;
            if by_pg_cron == Some(true) {
                pg_cron::unschedule_in(&mut tx, schedule_id).await?;
            }
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            Ok(by_pg_cron.is_some())
        })
    }

    async fn schedule(&self, namespace: &str, schedule_id: &str) -> Result<Option<ScheduleView>> {
        let mut connection = self.reads.get().await?;
        let one = sqlx::query(ONE).bind(namespace).bind(schedule_id);
        let row = one.fetch_optional(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        row.as_ref().map(view).transpose()
    }

    async fn schedules(&self, namespace: &str, filter: &ScheduleFilter) -> Result<Page<ScheduleView>> {
        let ScheduleFilter { name, active, event_type, limit, offset } = filter;
        let mut connection = self.reads.get().await?;
        let total = sqlx::query_scalar::<_, i64>(TOTAL).bind(namespace).bind(name).bind(active).bind(event_type);
        let total = total.fetch_one(&mut *connection).await.map_err(from_sqlx)?.unsigned_abs();
        let list = sqlx::query(LIST).bind(namespace).bind(name).bind(active).bind(event_type);
        let list = list.bind(*limit as i64).bind(*offset as i64);
        let rows = list.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(Page { items: rows.iter().map(view).collect::<Result<_>>()?, total })
    }

    async fn schedule_fires(
        &self,
        namespace: &str,
        schedule_id: &str,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<ScheduleFire>> {
        let mut connection = self.reads.get().await?;
        let fires = sqlx::query(FIRES).bind(namespace).bind(schedule_id).bind(before).bind(limit as i64);
        let rows = fires.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let fire = |row: &PgRow| {
            Ok(ScheduleFire {
                tick_at: get(row, "tick_at")?,
                manual: get(row, "manual")?,
                fired_at: get(row, "fired_at")?,
                event_id: get(row, "event_id")?,
                skipped: count(row, "skipped")?,
                error: get(row, "error")?,
            })
        };
        rows.iter().map(fire).collect()
    }

    async fn next_ticks(&self, now: Option<Timestamp>) -> Result<Vec<(String, Duration)>> {
        let mut connection = self.writes.get().await?;
        let rows = sqlx::query(NEXT_TICKS).bind(now).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let tick = |row: &PgRow| {
            let (now, next_at): (Timestamp, Timestamp) = (get(row, "now")?, get(row, "next_at")?);
            Ok((get(row, "namespace")?, (next_at - now).to_std().unwrap_or_default()))
        };
        rows.iter().map(tick).collect()
    }

    async fn due_schedules(
        &self,
        namespace: &str,
        after: Option<&SchedulePosition>,
        limit: usize,
        bytes: usize,
        now: Option<Timestamp>,
    ) -> Result<DueSchedules> {
        let (after_tick, after_id) = after.map_or((None, NO_ID), |place| (Some(place.next_at), &place.schedule_id));
        let mut connection = self.writes.get().await?;
        let first = sqlx::query(FIRST).bind(namespace).bind(now).bind(after_tick).bind(after_id);
        let row = first.fetch_one(&mut *connection).await.map_err(from_sqlx)?;
        let (now, next_at): (Timestamp, Option<Timestamp>) = (get(&row, "now")?, get(&row, "next_at")?);
        let mut rows = Vec::new();
        if next_at.is_some_and(|next_at| next_at <= now) {
            let due = sqlx::query(DUE).bind(namespace).bind(now).bind(limit as i64).bind(bytes as i64);
            rows = due.bind(after_tick).bind(after_id).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        }
        connection.done();
        let mut due = DueSchedules { now, next_at, schedules: vec![], unreadable: vec![], last: None };
        for row in &rows {
            let place = SchedulePosition { next_at: get(row, "next_at")?, schedule_id: get(row, "schedule_id")? };
            match view(row) {
                Ok(view) => due.schedules.push(view),
                Err(error) => due.unreadable.push((place.schedule_id.clone(), error)),
            }
            due.last = Some(place);
        }
        Ok(due)
    }
}

/// Also replaces the job if pg_cron runs the schedule.
async fn put_anew(
    store: &PgStore,
    sql: &'static str,
    namespace: &str,
    new: &PreparedSchedule,
    now: Option<Timestamp>,
) -> Result<PutOutcome> {
    let mut connection = store.writes.get().await?;
    let mut tx = connection.begin().await.map_err(from_sqlx)?;
    let replaced = match put(&mut tx, sql, namespace, new, now).await? {
        Some(PutOutcome::Done(view)) if view.runner == ScheduleRunner::PgCron => {
            pg_cron::schedule_in(&mut tx, namespace, &view.id, crate::schedule::pg_cron::expression, now).await?;
            let row = sqlx::query(ONE).bind(namespace).bind(&view.id).fetch_one(&mut *tx).await;
            Some(PutOutcome::Done(Box::new(self::view(&row.map_err(from_sqlx)?)?)))
        }
        replaced => replaced,
    };
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    Ok(replaced.unwrap_or(PutOutcome::NotFound))
}

async fn put(
    connection: &mut PgConnection,
    sql: &'static str,
    namespace: &str,
    new: &PreparedSchedule,
    now: Option<Timestamp>,
) -> Result<Option<PutOutcome>> {
    let event = &new.event;
    let put = sqlx::query(sql)
        .bind(namespace)
        .bind(&new.schedule_id)
        .bind(&new.name)
        .bind(&new.cron)
        .bind(&new.timezone)
        .bind(&event.event_type)
        .bind(&event.title)
        .bind(&event.description)
        .bind(&event.tags)
        .bind(event.payload.get())
        .bind(&event.group_id)
        .bind(event.priority)
        .bind(event.max_retries.map(signed))
        .bind(event.metadata.as_deref().map(|metadata| metadata.get()))
        .bind(new.expires_in_ms())
        .bind(new.missed.as_str())
        .bind(new.active)
        .bind(new.next_at)
        .bind(now);
    let row = put.fetch_optional(connection).await;
    if row.as_ref().is_err_and(|error| error.as_database_error().is_some_and(|error| error.is_unique_violation())) {
        return Ok(Some(PutOutcome::NameTaken));
    }
    row.map_err(from_sqlx)?.as_ref().map(|row| view(row).map(|view| PutOutcome::Done(Box::new(view)))).transpose()
}
