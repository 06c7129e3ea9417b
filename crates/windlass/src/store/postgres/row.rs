//! Conversion of rows to values.

use serde_json::value::RawValue;
use sqlx::postgres::PgRow;
use sqlx::{Row, ValueRef};

use super::error::from_sqlx;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::event::delivery::{Lease, LiveDelivery};
use crate::queue::outcome::Attempt;

/// A column by its name.
pub(super) fn get<'r, T>(row: &'r PgRow, column: &'static str) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(column).map_err(from_sqlx)
}

/// Reads the columns of a row in order: faster than by name if there are many rows.
pub(super) struct Columns<'r> {
    row: &'r PgRow,
    next: usize,
}

impl<'r> Columns<'r> {
    pub fn of(row: &'r PgRow) -> Columns<'r> {
        Columns { row, next: 0 }
    }

    /// The next column, without checking its type: the statement determines it.
    pub fn next<T: sqlx::Decode<'r, sqlx::Postgres>>(&mut self) -> Result<T> {
        self.next += 1;
        self.row.try_get_unchecked(self.next - 1).map_err(from_sqlx)
    }

    pub fn skip(&mut self, columns: usize) {
        self.next += columns;
    }

    /// Whether the next column is null.
    pub fn is_null(&self) -> bool {
        self.row.try_get_raw(self.next).is_ok_and(|value| value.is_null())
    }

    pub fn next_count(&mut self) -> Result<u32> {
        self.next::<i32>().map(i32::unsigned_abs)
    }

    pub fn next_count_or_none(&mut self) -> Result<Option<u32>> {
        Ok(self.next::<Option<i32>>()?.map(i32::unsigned_abs))
    }
}

/// A count. No table stores negative ones.
pub(super) fn count(row: &PgRow, column: &'static str) -> Result<u32> {
    get::<i32>(row, column).map(i32::unsigned_abs)
}

pub(super) fn count_or_none(row: &PgRow, column: &'static str) -> Result<Option<u32>> {
    Ok(get::<Option<i32>>(row, column)?.map(i32::unsigned_abs))
}

pub(super) fn json(text: String) -> Result<Box<RawValue>> {
    RawValue::from_string(text).map_err(|error| Error::Database { detail: format!("stored JSON is damaged: {error}") })
}

/// Needs the columns of `events`, with payload, metadata and scheduled_task_id as text.
pub(super) fn event(row: &PgRow) -> Result<Event> {
    Ok(Event {
        id: get(row, "id")?,
        namespace: get(row, "namespace")?,
        event_type: get(row, "event_type")?,
        title: get(row, "title")?,
        description: get(row, "description")?,
        tags: get(row, "tags")?,
        payload: json(get(row, "payload")?)?,
        group_id: get(row, "group_id")?,
        key: get(row, "key")?,
        priority: get(row, "priority")?,
        producer: get(row, "producer")?,
        scheduled_task_id: get(row, "scheduled_task_id")?,
        run_at: get(row, "run_at")?,
        expires_at: get(row, "expires_at")?,
        metadata: get::<Option<String>>(row, "metadata")?.map(json).transpose()?,
        created_at: get(row, "created_at")?,
    })
}

/// Needs the columns of `event_queue` that are in `LiveDelivery`.
pub(super) fn live(row: &PgRow) -> Result<LiveDelivery> {
    Ok(LiveDelivery {
        event_id: get(row, "event_id")?,
        subscription_id: get(row, "subscription_id")?,
        lane_id: get(row, "lane_id")?,
        event_type: get(row, "event_type")?,
        lease: get::<Option<i64>>(row, "lease")?.map(Lease),
        attempts: count(row, "attempts")?,
        attempts_limit: count(row, "attempts_limit")?,
        retry_count: count(row, "retry_count")?,
        max_retries: count_or_none(row, "max_retries")?,
        subscription: get(row, "subscription")?,
        group_id: get(row, "group_id")?,
        picked_at: None,
    })
}

/// Needs the columns of `event_attempts` that are in `Attempt`.
pub(super) fn attempt(row: &PgRow) -> Result<Attempt> {
    Ok(Attempt {
        event_id: get(row, "event_id")?,
        subscription: get(row, "subscription")?,
        attempt: count(row, "attempt")?,
        worker_id: get(row, "worker_id")?,
        action: get::<String>(row, "action")?.parse()?,
        status_code: get(row, "status_code")?,
        execution_time_ms: get::<Option<i64>>(row, "execution_time_ms")?.map(i64::unsigned_abs),
        error_message: get(row, "error_message")?,
        next_retry_at: get(row, "next_retry_at")?,
        retry_count: count(row, "retry_count")?,
        max_retries: count_or_none(row, "max_retries")?,
        finished_at: get(row, "finished_at")?,
    })
}
