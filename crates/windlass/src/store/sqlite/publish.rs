//! Storing events with their deliveries.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Statement};

use super::enqueue::{Entry, enqueue_all};
use super::{SqliteStore, arrive, row};
use crate::clock::{Timestamp, from_micros, micros};
use crate::error::{Error, Result};
use crate::event::{NewEvent, same_json};
use crate::store::{PreparedEvent, PublishOutcome, PublishStore};

#[async_trait]
impl PublishStore for SqliteStore {
    async fn publish(
        &self,
        namespace: &str,
        version: i64,
        events: Arc<Vec<PreparedEvent>>,
        now: Option<Timestamp>,
    ) -> Result<Option<Vec<PublishOutcome>>> {
        let namespace = namespace.to_owned();
        self.write(now, move |conn, now| publish(conn, &namespace, version, &events, now)).await
    }
}

pub(super) fn publish(
    conn: &Connection,
    namespace: &str,
    version: i64,
    events: &[PreparedEvent],
    now: i64,
) -> Result<Option<Vec<PublishOutcome>>> {
    if row::version(conn, namespace)? != Some(version) {
        return Ok(None);
    }
    store_all(conn, namespace, events, now).map(Some)
}

/// Stores all events, and then their deliveries. Events of groups with arrivals are stored as arrivals, so that the
/// router keeps the order.
pub(super) fn store_all(
    conn: &Connection,
    namespace: &str,
    events: &[PreparedEvent],
    now: i64,
) -> Result<Vec<PublishOutcome>> {
    let mut insert = conn.prepare_cached(INSERT)?;
    let (mut stored, mut entries) = (Vec::with_capacity(events.len()), Vec::with_capacity(events.len()));
    for prepared in events {
        let event = &prepared.event;
        if let Some(first) = first_of_key(conn, namespace, event, now)? {
            stored.push(first);
            continue;
        }
        if let Some(group_id) = &event.group_id
            && arrive::has_arrivals(conn, namespace, group_id)?
        {
            stored.push(arrive::arrive(conn, namespace, prepared, now)?);
            continue;
        }
        let new = insert_by(&mut insert, namespace, event, prepared.expires_in, now)?;
        if let Some(key) = &event.key {
            put_key(conn, namespace, key, new.event_id, now, prepared.key_window)?;
        }
        let entry = entry(new.event_id, event, prepared.expires_in, now);
        entries.extend(prepared.deliveries.iter().map(|to| (entry, to)));
        stored.push(new);
    }
    enqueue_all(conn, namespace, entries, now)?;
    Ok(stored)
}

/// `run_at` as stored, the earliest claim time, and the deadline.
fn times(event: &NewEvent, expires_in: Option<Duration>, now: i64) -> (Option<i64>, i64, Option<i64>) {
    let run_at = row::micros(event.run_at).or(event.delay.map(|delay| now.saturating_add(micros(delay))));
    let due_at = run_at.map_or(now, |run_at| run_at.max(now));
    let expires_in = expires_in.map(|expires_in| due_at.saturating_add(micros(expires_in)));
    (run_at, due_at, row::micros(event.expires_at).or(expires_in))
}

/// The queue fields of the deliveries of an event that was published at this time.
pub(super) fn entry(event_id: i64, event: &NewEvent, expires_in: Option<Duration>, created_at: i64) -> Entry<'_> {
    let (_, due_at, expires_at) = times(event, expires_in, created_at);
    Entry {
        event_id,
        event_type: &event.event_type,
        priority: event.priority,
        group_id: event.group_id.as_deref(),
        expires_at,
        due_at,
        attempts: 0,
        created_at,
        is_new: true,
        is_past: false,
    }
}

const FIRST_OF_KEY: &str = "
SELECT event_id, created_at FROM event_keys WHERE namespace = ?1 AND key = ?2 AND expires_at > ?3";

const PUT_KEY: &str = "
INSERT OR REPLACE INTO event_keys (namespace, key, event_id, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)";

/// The first event with the same key, if any. Returns an error if it has another type or payload.
pub(super) fn first_of_key(
    conn: &Connection,
    namespace: &str,
    event: &NewEvent,
    now: i64,
) -> Result<Option<PublishOutcome>> {
    let Some(key) = &event.key else { return Ok(None) };
    let first = match known_key(conn, namespace, key, now)? {
        Some(first) => Some(first),
        None => arrive::first_with_key(conn, namespace, key)?,
    };
    let Some(first) = first else { return Ok(None) };
    if !has_contents(conn, namespace, first.event_id, &event.event_type, event.payload.get())? {
        return Err(Error::KeyConflict { key: key.clone(), event_id: Some(first.event_id) });
    }
    Ok(Some(first))
}

/// Whether an event has this type and payload. Contents that its policy did not keep count as equal.
pub(super) fn has_contents(
    conn: &Connection,
    namespace: &str,
    event_id: i64,
    event_type: &str,
    payload: &str,
) -> Result<bool> {
    let first = row::event(conn, namespace, event_id)?;
    Ok(first.is_none_or(|first| first.event_type == event_type && same_json(first.payload.get(), payload)))
}

pub(super) fn known_key(conn: &Connection, namespace: &str, key: &str, now: i64) -> Result<Option<PublishOutcome>> {
    let mut select = conn.prepare_cached(FIRST_OF_KEY)?;
    let found = select
        .query_row((namespace, key, now), |row| Ok(PublishOutcome::duplicate_of(row.get(0)?, row::timestamp(row, 1)?)));
    Ok(found.optional()?)
}

pub(super) fn put_key(
    conn: &Connection,
    namespace: &str,
    key: &str,
    event_id: i64,
    created_at: i64,
    window: Duration,
) -> Result<()> {
    let expires_at = created_at.saturating_add(micros(window));
    conn.prepare_cached(PUT_KEY)?.execute((namespace, key, event_id, created_at, expires_at))?;
    Ok(())
}

const INSERT: &str = "
INSERT INTO events (namespace, event_type, title, description, tags, payload, group_id, key, priority, producer,
                    scheduled_task_id, run_at, expires_at, metadata, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";

/// Stores an event without deliveries.
pub(super) fn insert_event(
    conn: &Connection,
    namespace: &str,
    event: &NewEvent,
    expires_in: Option<Duration>,
    now: i64,
) -> Result<PublishOutcome> {
    let mut insert = conn.prepare_cached(INSERT)?;
    insert_by(&mut insert, namespace, event, expires_in, now)
}

fn insert_by(
    insert: &mut Statement<'_>,
    namespace: &str,
    event: &NewEvent,
    expires_in: Option<Duration>,
    now: i64,
) -> Result<PublishOutcome> {
    let (run_at, _, expires_at) = times(event, expires_in, now);
    let event_id = insert.insert((
        namespace,
        &event.event_type,
        &event.title,
        &event.description,
        &event.tags,
        event.payload.get(),
        &event.group_id,
        &event.key,
        event.priority,
        &event.producer,
        &event.scheduled_task_id,
        run_at,
        expires_at,
        event.metadata.as_ref().map(|metadata| metadata.get()),
        now,
    ))?;
    Ok(PublishOutcome::new(event_id, from_micros(now)))
}
