//! Conversion of rows to values. Times are stored in microseconds.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::value::RawValue;

use crate::clock::{Timestamp, from_micros};
use crate::error::Result;
use crate::event::Event;
use crate::event::delivery::{Lease, LiveDelivery};
use crate::queue::outcome::Attempt;

/// The ready time of a delivery that waits for its group.
pub(super) const INFINITY: i64 = i64::MAX;

pub(super) fn micros(at: Option<Timestamp>) -> Option<i64> {
    at.map(|at| at.timestamp_micros())
}

pub(super) fn timestamp(row: &Row, index: usize) -> rusqlite::Result<Timestamp> {
    row.get(index).map(from_micros)
}

pub(super) fn timestamp_or_null(row: &Row, index: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(index)?.filter(|at| *at != INFINITY).map(from_micros))
}

/// A count, which is never negative.
pub(super) fn count(row: &Row, index: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(index).map(i64::unsigned_abs)
}

pub(super) fn count_or_null(row: &Row, index: usize) -> rusqlite::Result<Option<u64>> {
    row.get::<_, Option<i64>>(index).map(|count| count.map(i64::unsigned_abs))
}

/// A text that is parse_json as an enum.
pub(super) fn parse_text<T: std::str::FromStr<Err = crate::Error>>(row: &Row, index: usize) -> rusqlite::Result<T> {
    row.get_ref(index)?.as_str()?.parse().map_err(|error| unreadable(index, error))
}

pub(super) fn json(row: &Row, index: usize) -> rusqlite::Result<Box<RawValue>> {
    RawValue::from_string(row.get(index)?).map_err(|error| unreadable(index, error))
}

pub(super) fn json_or_null(row: &Row, index: usize) -> rusqlite::Result<Option<Box<RawValue>>> {
    if row.get_ref(index)?.data_type() == Type::Null { Ok(None) } else { json(row, index).map(Some) }
}

pub(super) fn parse_json<T: serde::de::DeserializeOwned>(row: &Row, index: usize) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(index)?.as_str()?).map_err(|error| unreadable(index, error))
}

fn unreadable(index: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))
}

macro_rules! event {
    ($payload:literal) => {
        concat!(
            "SELECT id, namespace, event_type, title, description, tags, ",
            $payload,
            ", group_id, key, priority, producer, scheduled_task_id, run_at, expires_at, metadata, created_at
             FROM events WHERE id = ?1 AND namespace = ?2"
        )
    };
}

const EVENT: &str = event!("payload");
const EVENT_WITHOUT_PAYLOAD: &str = event!("'null'");

pub(super) fn event_without_payload(conn: &Connection, namespace: &str, event_id: i64) -> Result<Option<Event>> {
    Ok(conn.prepare_cached(EVENT_WITHOUT_PAYLOAD)?.query_row((event_id, namespace), event_from).optional()?)
}

pub(super) fn event(conn: &Connection, namespace: &str, event_id: i64) -> Result<Option<Event>> {
    Ok(conn.prepare_cached(EVENT)?.query_row((event_id, namespace), event_from).optional()?)
}

/// From the columns of `EVENT`.
pub(super) fn event_from(row: &Row) -> rusqlite::Result<Event> {
    Ok(Event {
        id: row.get(0)?,
        namespace: row.get(1)?,
        event_type: row.get(2)?,
        title: row.get(3)?,
        description: row.get(4)?,
        tags: row.get(5)?,
        payload: json(row, 6)?,
        group_id: row.get(7)?,
        key: row.get(8)?,
        priority: row.get(9)?,
        producer: row.get(10)?,
        scheduled_task_id: row.get(11)?,
        run_at: timestamp_or_null(row, 12)?,
        expires_at: timestamp_or_null(row, 13)?,
        metadata: json_or_null(row, 14)?,
        created_at: timestamp(row, 15)?,
    })
}

/// From the columns `event_id, subscription_id, lane_id, event_type, lease, attempts, attempts_limit, retry_count,
/// max_retries, subscription, group_id`.
pub(super) fn live(row: &Row) -> rusqlite::Result<LiveDelivery> {
    Ok(LiveDelivery {
        event_id: row.get(0)?,
        subscription_id: row.get(1)?,
        lane_id: row.get(2)?,
        event_type: row.get(3)?,
        lease: row.get::<_, Option<i64>>(4)?.map(Lease),
        attempts: row.get(5)?,
        attempts_limit: row.get(6)?,
        retry_count: row.get(7)?,
        max_retries: row.get(8)?,
        subscription: row.get(9)?,
        group_id: row.get(10)?,
        picked_at: None,
    })
}

const VERSION: &str = "SELECT version FROM namespaces WHERE namespace = ?1";

/// The namespace's version; `None` for an unknown one.
pub(super) fn version(conn: &Connection, namespace: &str) -> Result<Option<i64>> {
    Ok(conn.prepare_cached(VERSION)?.query_row([namespace], |row| row.get(0)).optional()?)
}

/// An attempt that has ended, from its columns in the order of the struct's fields, the first at `from`.
pub(super) fn attempt(row: &Row, from: usize) -> rusqlite::Result<Attempt> {
    Ok(Attempt {
        event_id: row.get(from)?,
        subscription: row.get(from + 1)?,
        attempt: row.get(from + 2)?,
        worker_id: row.get(from + 3)?,
        action: parse_text(row, from + 4)?,
        status_code: row.get(from + 5)?,
        execution_time_ms: row.get::<_, Option<i64>>(from + 6)?.map(i64::unsigned_abs),
        error_message: row.get(from + 7)?,
        next_retry_at: timestamp_or_null(row, from + 8)?,
        retry_count: row.get(from + 9)?,
        max_retries: row.get(from + 10)?,
        finished_at: timestamp(row, from + 11)?,
    })
}
