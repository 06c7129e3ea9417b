//! Stored schedules.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{SqliteStore, row};
use crate::clock::{Timestamp, from_micros};
use crate::error::Result;
use crate::observe::inspect::Page;
use crate::schedule::{ScheduleFilter, ScheduleFire, ScheduleView};
use crate::store::{DueSchedules, PreparedSchedule, PutOutcome, SchedulePosition, ScheduleStore};

/// The columns of a view.
macro_rules! columns {
    () => {
        "schedule_id, name, cron, timezone, event_type, title, description, tags, payload, group_id, priority,
    max_retries, metadata, expires_in_ms, missed, runner, active, next_at, last_at, last_event_id, created_at, updated_at"
    };
}

const COUNT: &str = "SELECT count(*) FROM schedules WHERE namespace = ?1";

macro_rules! add {
    () => {
        "
INSERT INTO schedules AS s (namespace, schedule_id, name, cron, timezone, event_type, title, description, tags, payload,
    group_id, priority, max_retries, metadata, expires_in_ms, missed, active, next_at, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?19)"
    };
}

const ADD: &str = concat!(
    add!(),
    "
ON CONFLICT (namespace, name) DO NOTHING
RETURNING ",
    columns!()
);

/// The replaced columns. If the ticks are the same, a due tick stays due. `updated_at` strictly increases, so that
/// other processes notice the change even if the clock was set back.
macro_rules! replaced {
    ($active:literal) => {
        concat!(
            "
    cron = ?4, timezone = ?5, event_type = ?6, title = ?7, description = ?8, tags = ?9, payload = ?10, group_id = ?11,
    priority = ?12, max_retries = ?13, metadata = ?14, expires_in_ms = ?15, missed = ?16, active = ",
            $active,
            ",
    next_at = CASE WHEN s.runner <> 'windlass' OR NOT (",
            $active,
            ") THEN NULL WHEN s.active AND s.cron = ?4 AND s.timezone = ?5 THEN min(coalesce(s.next_at, ?18), ?18)
        ELSE ?18 END,
    updated_at = max(?19, s.updated_at + 1)"
        )
    };
}

const REPLACE: &str = concat!(
    "
UPDATE OR IGNORE schedules AS s SET name = ?3,",
    replaced!("?17"),
    "
WHERE schedule_id = ?2 AND namespace = ?1
RETURNING ",
    columns!()
);

const DECLARE: &str = concat!(
    add!(),
    "
ON CONFLICT (namespace, name) DO UPDATE SET",
    replaced!("s.active AND ?17"),
    "
RETURNING ",
    columns!()
);

const PAUSE: &str = "
UPDATE schedules SET active = 0, next_at = NULL, updated_at = max(?3, updated_at + 1)
WHERE schedule_id = ?2 AND namespace = ?1";

const RESUME: &str = "
UPDATE schedules SET active = 1, next_at = CASE WHEN runner = 'windlass' THEN ?4 END,
    updated_at = max(?5, updated_at + 1)
WHERE schedule_id = ?2 AND namespace = ?1 AND updated_at = ?3 AND NOT active";

const REMOVE: &str = "DELETE FROM schedules WHERE schedule_id = ?2 AND namespace = ?1";

macro_rules! matching {
    () => {
        "
FROM schedules WHERE namespace = ?1 AND (?2 IS NULL OR name = ?2) AND (?3 IS NULL OR active = ?3)
  AND (?4 IS NULL OR event_type = ?4)"
    };
}

const LIST: &str = concat!("SELECT ", columns!(), matching!(), " ORDER BY name LIMIT ?5 OFFSET ?6");

const TOTAL: &str = concat!("SELECT count(*)", matching!());

const FIRES: &str = "
SELECT tick_at, manual, fired_at, event_id, skipped, error FROM schedule_fires
WHERE schedule_id = ?2 AND namespace = ?1 AND tick_at < ?3 ORDER BY tick_at DESC, manual DESC LIMIT ?4";

#[async_trait]
impl ScheduleStore for SqliteStore {
    async fn count_schedules(&self, namespace: &str) -> Result<u64> {
        let namespace = namespace.to_owned();
        self.read(move |conn| Ok(conn.prepare_cached(COUNT)?.query_row([&namespace], |row| row::count(row, 0))?)).await
    }

    async fn add_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        let (namespace, new) = (namespace.to_owned(), new.clone());
        self.write(now, move |conn, now| {
            Ok(put(conn, ADD, &namespace, &new, now)?
                .map_or(PutOutcome::NameTaken, |view| PutOutcome::Done(Box::new(view))))
        })
        .await
    }

    async fn put_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        let (namespace, new) = (namespace.to_owned(), new.clone());
        self.write(now, move |conn, now| match put(conn, REPLACE, &namespace, &new, now)? {
            Some(view) => Ok(PutOutcome::Done(Box::new(view))),
            None if one(conn, &namespace, &new.schedule_id)?.is_some() => Ok(PutOutcome::NameTaken),
            None => Ok(PutOutcome::NotFound),
        })
        .await
    }

    async fn declare_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        let (namespace, new) = (namespace.to_owned(), new.clone());
        self.write(now, move |conn, now| {
            Ok(put(conn, DECLARE, &namespace, &new, now)?
                .map_or(PutOutcome::NotFound, |view| PutOutcome::Done(Box::new(view))))
        })
        .await
    }

    async fn pause_schedule(&self, namespace: &str, schedule_id: &str, now: Option<Timestamp>) -> Result<bool> {
        let (namespace, id) = (namespace.to_owned(), schedule_id.to_owned());
        self.write(now, move |conn, now| Ok(conn.prepare_cached(PAUSE)?.execute((&namespace, &id, now))? > 0)).await
    }

    async fn resume_schedule(
        &self,
        namespace: &str,
        schedule_id: &str,
        updated_at: Timestamp,
        next_at: Option<Timestamp>,
        now: Option<Timestamp>,
    ) -> Result<bool> {
        let (namespace, id) = (namespace.to_owned(), schedule_id.to_owned());
        self.write(now, move |conn, now| {
            let values = (&namespace, &id, updated_at.timestamp_micros(), row::micros(next_at), now);
            Ok(conn.prepare_cached(RESUME)?.execute(values)? > 0)
        })
        .await
    }

    async fn remove_schedule(&self, namespace: &str, schedule_id: &str) -> Result<bool> {
        let (namespace, id) = (namespace.to_owned(), schedule_id.to_owned());
        self.write(None, move |conn, _| Ok(conn.prepare_cached(REMOVE)?.execute((&namespace, &id))? > 0)).await
    }

    async fn schedule(&self, namespace: &str, schedule_id: &str) -> Result<Option<ScheduleView>> {
        let (namespace, id) = (namespace.to_owned(), schedule_id.to_owned());
        self.read(move |conn| one(conn, &namespace, &id)).await
    }

    async fn schedules(&self, namespace: &str, filter: &ScheduleFilter) -> Result<Page<ScheduleView>> {
        let (namespace, filter) = (namespace.to_owned(), filter.clone());
        self.read(move |conn| {
            let ScheduleFilter { name, active, event_type, limit, offset } = &filter;
            let mut total = conn.prepare_cached(TOTAL)?;
            let total = total.query_row((&namespace, name, active, event_type), |row| row::count(row, 0))?;
            let mut select = conn.prepare_cached(LIST)?;
            let values = (&namespace, name, active, event_type, *limit as i64, *offset as i64);
            let items = select.query_map(values, view)?.collect::<rusqlite::Result<_>>()?;
            Ok(Page { items, total })
        })
        .await
    }

    async fn schedule_fires(
        &self,
        namespace: &str,
        schedule_id: &str,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<ScheduleFire>> {
        let (namespace, id) = (namespace.to_owned(), schedule_id.to_owned());
        self.read(move |conn| {
            let fire = |row: &Row| {
                Ok(ScheduleFire {
                    tick_at: row::timestamp(row, 0)?,
                    manual: row.get(1)?,
                    fired_at: row::timestamp(row, 2)?,
                    event_id: row.get(3)?,
                    skipped: row.get(4)?,
                    error: row.get(5)?,
                })
            };
            let mut select = conn.prepare_cached(FIRES)?;
            let before = row::micros(before).unwrap_or(i64::MAX);
            let fires = select.query_map((&namespace, &id, before, limit as i64), fire)?;
            Ok(fires.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn next_ticks(&self, now: Option<Timestamp>) -> Result<Vec<(String, Duration)>> {
        let now = self.now(now);
        self.read(move |conn| next_ticks(conn, now)).await
    }

    async fn due_schedules(
        &self,
        namespace: &str,
        after: Option<&SchedulePosition>,
        limit: usize,
        bytes: usize,
        now: Option<Timestamp>,
    ) -> Result<DueSchedules> {
        let (namespace, after, now) = (namespace.to_owned(), after.cloned(), SqliteStore::now(self, now));
        self.read(move |conn| due(conn, &namespace, after, limit, bytes, now)).await
    }
}

fn view(row: &Row) -> rusqlite::Result<ScheduleView> {
    Ok(ScheduleView {
        id: row.get(0)?,
        name: row.get(1)?,
        cron: row.get(2)?,
        timezone: row.get(3)?,
        event_type: row.get(4)?,
        title: row.get(5)?,
        description: row.get(6)?,
        tags: row.get(7)?,
        payload: row::json(row, 8)?,
        group_id: row.get(9)?,
        priority: row.get(10)?,
        max_retries: row.get(11)?,
        metadata: row::json_or_null(row, 12)?,
        expires_in_ms: row.get::<_, Option<i64>>(13)?.map(i64::unsigned_abs),
        missed: row::parse_text(row, 14)?,
        runner: row::parse_text(row, 15)?,
        active: row.get(16)?,
        next_at: row::timestamp_or_null(row, 17)?,
        next_runs: Vec::new(),
        last_at: row::timestamp_or_null(row, 18)?,
        last_event_id: row.get(19)?,
        created_at: row::timestamp(row, 20)?,
        updated_at: row::timestamp(row, 21)?,
    })
}

fn put(
    conn: &Connection,
    sql: &str,
    namespace: &str,
    new: &PreparedSchedule,
    now: i64,
) -> Result<Option<ScheduleView>> {
    let event = &new.event;
    let values = params![
        namespace,
        new.schedule_id,
        new.name,
        new.cron,
        new.timezone,
        event.event_type,
        event.title,
        event.description,
        event.tags,
        event.payload.get(),
        event.group_id,
        event.priority,
        event.max_retries,
        event.metadata.as_deref().map(|metadata| metadata.get()),
        new.expires_in_ms(),
        new.missed.as_str(),
        new.active,
        row::micros(new.next_at),
        now,
    ];
    Ok(conn.prepare_cached(sql)?.query_row(values, view).optional()?)
}

const ONE: &str = concat!("SELECT ", columns!(), " FROM schedules WHERE schedule_id = ?2 AND namespace = ?1");

fn one(conn: &Connection, namespace: &str, schedule_id: &str) -> Result<Option<ScheduleView>> {
    Ok(conn.prepare_cached(ONE)?.query_row((namespace, schedule_id), view).optional()?)
}

const FIRST: &str = "
SELECT next_at FROM schedules INDEXED BY schedules_due
WHERE namespace = ?1 AND next_at IS NOT NULL AND (next_at, schedule_id) > (?2, ?3) ORDER BY next_at LIMIT 1";

const DUE: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM schedules INDEXED BY schedules_due
WHERE namespace = ?1 AND next_at <= ?4 AND (next_at, schedule_id) > (?2, ?3) ORDER BY next_at, schedule_id LIMIT ?5"
);

fn due(
    conn: &Connection,
    namespace: &str,
    after: Option<SchedulePosition>,
    limit: usize,
    bytes: usize,
    now: i64,
) -> Result<DueSchedules> {
    let (after_tick, after_id) =
        after.map_or((i64::MIN, String::new()), |place| (place.next_at.timestamp_micros(), place.schedule_id));
    let mut first = conn.prepare_cached(FIRST)?;
    let next_at = first.query_row((namespace, after_tick, &after_id), |row| row::timestamp(row, 0)).optional()?;
    let mut due = DueSchedules { now: from_micros(now), next_at, schedules: vec![], unreadable: vec![], last: None };
    let mut select = conn.prepare_cached(DUE)?;
    let mut rows = select.query((namespace, after_tick, &after_id, now, limit as i64))?;
    let mut read = 0;
    while read < bytes
        && let Some(row) = rows.next()?
    {
        let schedule_id: String = row.get(0)?;
        due.last = Some(SchedulePosition { next_at: row::timestamp(row, 17)?, schedule_id: schedule_id.clone() });
        match view(row) {
            Ok(view) => {
                read += view.payload.get().len();
                due.schedules.push(view);
            }
            Err(error) => due.unreadable.push((schedule_id, error.into())),
        }
    }
    Ok(due)
}

// Jumps from one namespace to the next by index: each may have many schedules.
const NEXT_TICKS: &str = "
WITH RECURSIVE present(namespace) AS (
    SELECT min(namespace) FROM schedules WHERE next_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(s.namespace) FROM schedules s WHERE s.next_at IS NOT NULL AND s.namespace > p.namespace)
    FROM present p WHERE p.namespace IS NOT NULL)
SELECT p.namespace, (SELECT min(s.next_at) FROM schedules s WHERE s.namespace = p.namespace AND s.next_at IS NOT NULL)
FROM present p WHERE p.namespace IS NOT NULL";

fn next_ticks(conn: &Connection, now: i64) -> Result<Vec<(String, Duration)>> {
    let mut select = conn.prepare_cached(NEXT_TICKS)?;
    let ticks = select.query_map([], |row| {
        let wait = row.get::<_, i64>(1)?.saturating_sub(now);
        Ok((row.get(0)?, Duration::from_micros(wait.max(0).unsigned_abs())))
    })?;
    Ok(ticks.collect::<rusqlite::Result<_>>()?)
}
