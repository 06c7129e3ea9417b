//! Storing events with their deliveries.

use rusqlite::{Connection, OptionalExtension, Statement};

use super::enqueue::{Entry, enqueue_all};
use super::row;
use crate::clock::{from_micros, micros};
use crate::error::Result;
use crate::event::NewEvent;
use crate::store::{Prepared, Stored};

pub(super) fn publish(
    conn: &Connection,
    namespace: &str,
    version: i64,
    events: &[Prepared],
    now: i64,
) -> Result<Option<Vec<Stored>>> {
    if row::version(conn, namespace)? != Some(version) {
        return Ok(None);
    }
    store_all(conn, namespace, events, now).map(Some)
}

/// Stores all events, and then their deliveries.
pub(super) fn store_all(conn: &Connection, namespace: &str, events: &[Prepared], now: i64) -> Result<Vec<Stored>> {
    let mut insert = conn.prepare_cached(INSERT)?;
    let (mut stored, mut entries) = (Vec::with_capacity(events.len()), Vec::with_capacity(events.len()));
    for prepared in events {
        let (event, entry) = store(conn, &mut insert, namespace, prepared, now)?;
        entries.extend(entry.into_iter().flat_map(|entry| prepared.deliveries.iter().map(move |to| (entry, to))));
        stored.push(event);
    }
    enqueue_all(conn, namespace, entries, now)?;
    Ok(stored)
}

/// Stores an event without its deliveries. Returns no entry if it is a duplicate.
fn store<'a>(
    conn: &Connection,
    insert_event: &mut Statement<'_>,
    namespace: &str,
    prepared: &'a Prepared,
    now: i64,
) -> Result<(Stored, Option<Entry<'a>>)> {
    let event = &prepared.event;
    if let Some(key) = &event.key
        && let Some(first) = first_of_key(conn, namespace, key, now)?
    {
        return Ok((first, None));
    }
    let run_at = row::micros(event.run_at).or(event.delay.map(|delay| now.saturating_add(micros(delay))));
    let due_at = run_at.map_or(now, |run_at| run_at.max(now));
    let expires_in = prepared.expires_in.map(|expires_in| due_at.saturating_add(micros(expires_in)));
    let expires_at = row::micros(event.expires_at).or(expires_in);
    let event_id = insert(insert_event, namespace, event, (run_at, expires_at), now)?;
    if let Some(key) = &event.key {
        let expires_at = now.saturating_add(micros(prepared.key_window));
        conn.prepare_cached(PUT_KEY)?.execute((namespace, key, event_id, now, expires_at))?;
    }
    let entry = Entry {
        event_id,
        event_type: &event.event_type,
        priority: event.priority,
        group_id: event.group_id.as_deref(),
        expires_at,
        due_at,
        attempts: 0,
        created_at: now,
        is_new: true,
    };
    Ok((Stored { event_id, created_at: from_micros(now), duplicate: false }, Some(entry)))
}

const FIRST_OF_KEY: &str = "
SELECT event_id, created_at FROM event_keys WHERE namespace = ?1 AND key = ?2 AND expires_at > ?3";
const PUT_KEY: &str = "
INSERT OR REPLACE INTO event_keys (namespace, key, event_id, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)";

fn first_of_key(conn: &Connection, namespace: &str, key: &str, now: i64) -> Result<Option<Stored>> {
    let mut select = conn.prepare_cached(FIRST_OF_KEY)?;
    let found = select.query_row((namespace, key, now), |row| {
        Ok(Stored { event_id: row.get(0)?, created_at: row::instant(row, 1)?, duplicate: true })
    });
    Ok(found.optional()?)
}

const INSERT: &str = "
INSERT INTO events (namespace, event_type, title, description, tags, payload, group_id, key, priority, producer,
                    scheduled_task_id, run_at, expires_at, metadata, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";

fn insert(
    insert: &mut Statement<'_>,
    namespace: &str,
    event: &NewEvent,
    (run_at, expires_at): (Option<i64>, Option<i64>),
    now: i64,
) -> Result<i64> {
    let id = insert.insert((
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
    Ok(id)
}
