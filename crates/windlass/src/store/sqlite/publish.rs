//! Storing events with their deliveries.

use rusqlite::{CachedStatement, Connection, OptionalExtension, Statement};

use super::enqueue::{ENQUEUE, Entry, enqueue};
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
    let mut inserts = Inserts::prepare(conn)?;
    let stored = events.iter().map(|prepared| store(conn, &mut inserts, namespace, prepared, now));
    stored.collect::<Result<Vec<_>>>().map(Some)
}

/// The statements that every event needs: looked up once for all.
pub(super) struct Inserts<'c> {
    event: CachedStatement<'c>,
    delivery: CachedStatement<'c>,
}

impl Inserts<'_> {
    pub fn prepare(conn: &Connection) -> Result<Inserts<'_>> {
        Ok(Inserts { event: conn.prepare_cached(INSERT)?, delivery: conn.prepare_cached(ENQUEUE)? })
    }
}

pub(super) fn store(
    conn: &Connection,
    inserts: &mut Inserts<'_>,
    namespace: &str,
    prepared: &Prepared,
    now: i64,
) -> Result<Stored> {
    let event = &prepared.event;
    if let Some(key) = &event.key
        && let Some(first) = first_of_key(conn, namespace, key, now)?
    {
        return Ok(first);
    }
    let run_at = row::micros(event.run_at).or(event.delay.map(|delay| now.saturating_add(micros(delay))));
    let due_at = run_at.map_or(now, |run_at| run_at.max(now));
    let expires_in = prepared.expires_in.map(|expires_in| due_at.saturating_add(micros(expires_in)));
    let expires_at = row::micros(event.expires_at).or(expires_in);
    let event_id = insert(&mut inserts.event, namespace, event, (run_at, expires_at), now)?;
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
    for delivery in &prepared.deliveries {
        enqueue(conn, &mut inserts.delivery, namespace, &entry, delivery, now)?;
    }
    Ok(Stored { event_id, created_at: from_micros(now), duplicate: false })
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
