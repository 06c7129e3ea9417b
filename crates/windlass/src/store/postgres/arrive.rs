//! Publishing in transactions of the application. Stores each event with an arrival and nothing else; the router
//! creates the deliveries after the commit.

use std::collections::HashMap;

use sqlx::{Connection as _, PgConnection};

use super::enqueue::{column, optional, signed};
use super::error::from_sqlx;
use super::inspect;
use super::publish::check_contents;
use super::row::get;
use crate::clock::{Timestamp, micros};
use crate::error::{Error, Result};
use crate::event::{Event, same_contents};
use crate::store::{PreparedEvent, PublishOutcome};

/// Refuses a connection without an open transaction, as far as the driver knows.
pub(crate) fn check_transaction(connection: &PgConnection) -> Result<()> {
    match connection.is_in_transaction() {
        true => Ok(()),
        false => Err(Error::invalid("tx", "no transaction has begun on this connection; begin one first")),
    }
}

const KNOWN_KEYS: &str = "
SELECT i.key, k.event_id, k.created_at FROM unnest($2::text[]) AS i(key)
CROSS JOIN LATERAL windlass._known_key($1, i.key, coalesce($3, clock_timestamp())) AS k
WHERE k.event_id IS NOT NULL";

/// Stores all events or none. A key that is visible to this transaction keeps its first event. The router finds keys
/// that other transactions had not committed.
pub(crate) async fn publish_in(
    connection: &mut PgConnection,
    namespace: &str,
    events: &[PreparedEvent],
    now: Option<Timestamp>,
) -> Result<Vec<PublishOutcome>> {
    let keys: Vec<&str> = events.iter().filter_map(|prepared| prepared.event.key.as_deref()).collect();
    let mut first: HashMap<&str, PublishOutcome> = HashMap::new();
    if !keys.is_empty() {
        let known = sqlx::query(KNOWN_KEYS).bind(namespace).bind(&keys).bind(now).fetch_all(&mut *connection);
        for row in known.await.map_err(from_sqlx)? {
            let key: String = get(&row, "key")?;
            let stored = PublishOutcome::duplicate_of(get(&row, "event_id")?, get(&row, "created_at")?);
            first.extend(keys.iter().find(|known| **known == key).map(|key| (*key, stored)));
        }
        let repeated =
            events.iter().filter_map(|prepared| Some((prepared, *first.get(prepared.event.key.as_deref()?)?)));
        check_contents(connection, namespace, repeated).await?;
    }
    // Of several new events with one key, only the first is stored.
    let mut stored_of: HashMap<&str, &PreparedEvent> = HashMap::new();
    let mut new: Vec<&PreparedEvent> = Vec::with_capacity(events.len());
    for prepared in events {
        match prepared.event.key.as_deref() {
            Some(key) if first.contains_key(key) => {}
            Some(key) => match stored_of.get(key) {
                Some(earlier) if !same_contents(&earlier.event, &prepared.event) => {
                    return Err(Error::KeyConflict { key: key.to_owned(), event_id: None });
                }
                Some(_) => {}
                None => {
                    stored_of.insert(key, prepared);
                    new.push(prepared);
                }
            },
            None => new.push(prepared),
        }
    }
    let mut stored = arrive(connection, namespace, &new, vec![None; new.len()], now).await?.into_iter();
    let mut answers = Vec::with_capacity(events.len());
    for prepared in events {
        let known = prepared.event.key.as_deref().and_then(|key| first.get(key)).copied();
        let answer = match known {
            Some(known) => known,
            None => stored.next().ok_or(Error::Closed)?,
        };
        if let Some(key) = prepared.event.key.as_deref() {
            first.entry(key).or_insert(PublishOutcome { duplicate: true, ..answer });
        }
        answers.push(answer);
    }
    Ok(answers)
}

/// The events, as this transaction sees them.
pub(crate) async fn events(connection: &mut PgConnection, namespace: &str, ids: &[i64]) -> Result<Vec<Event>> {
    inspect::events(connection, namespace, ids).await
}

// The transaction gets its id before it reads whether the router is idle: see `_arrive` in the SQL functions.
const ARRIVE: &str = "
WITH tx AS MATERIALIZED (
    SELECT pg_current_xact_id() AS id, coalesce($3, clock_timestamp()) AS now
), ids AS MATERIALIZED (
    SELECT array_agg(coalesce(g.id, nextval('windlass.events_id_seq'))) AS id
    FROM tx, unnest($2::bigint[]) AS g(id) WHERE tx.id IS NOT NULL
), arrived AS (
    INSERT INTO windlass.arrivals (namespace, event_id, created_at, max_retries, group_id, key)
    SELECT $1, ids.id[e.n], tx.now, e.max_retries, e.group_id, e.key
    FROM tx, ids, unnest($18::integer[], $9::text[], $10::text[], $7::text[]) WITH ORDINALITY
      AS e(max_retries, group_id, key, tags, n)
), stored AS (
    INSERT INTO windlass.events (id, namespace, event_type, title, description, tags, payload, group_id, key,
        priority, producer, scheduled_task_id, run_at, expires_at, metadata, created_at)
    SELECT ids.id[e.n], $1, e.event_type, e.title, e.description, e.tags, e.payload::json, e.group_id, e.key,
           e.priority, e.producer, e.scheduled_task_id::uuid, e.start_at,
           coalesce(e.expires_at, greatest(tx.now, e.start_at) + e.expires_in_us * interval '1 microsecond'),
           e.metadata::json, tx.now
    FROM tx, ids, LATERAL (
        SELECT i.*, coalesce(i.run_at, tx.now + i.delay_us * interval '1 microsecond') AS start_at
        FROM unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::smallint[],
                    $12::text[], $13::timestamptz[], $14::bigint[], $15::timestamptz[], $16::bigint[], $17::text[],
                    $19::text[])
          WITH ORDINALITY AS i(event_type, title, description, tags, payload, group_id, key, priority, producer, run_at,
                               delay_us, expires_at, expires_in_us, metadata, scheduled_task_id, n)) AS e
)
SELECT ids.id, tx.now AS created_at, windlass._notify_router($1)::text FROM tx, ids";

/// Stores events as arrivals, with ids that were drawn before.
pub(super) async fn arrive(
    connection: &mut PgConnection,
    namespace: &str,
    events: &[&PreparedEvent],
    ids: Vec<Option<i64>>,
    now: Option<Timestamp>,
) -> Result<Vec<PublishOutcome>> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let query = sqlx::query(ARRIVE)
        .bind(namespace)
        .bind(ids)
        .bind(now)
        .bind(column(events, |p| p.event.event_type.as_str()))
        .bind(optional(events, |p| p.event.title.as_deref()))
        .bind(optional(events, |p| p.event.description.as_deref()))
        .bind(column(events, |p| p.event.tags.as_str()))
        .bind(column(events, |p| p.event.payload.get()))
        .bind(optional(events, |p| p.event.group_id.as_deref()))
        .bind(optional(events, |p| p.event.key.as_deref()))
        .bind(column(events, |p| p.event.priority))
        .bind(optional(events, |p| p.event.producer.as_deref()))
        .bind(optional(events, |p| p.event.run_at))
        .bind(optional(events, |p| p.event.delay.map(micros)))
        .bind(optional(events, |p| p.event.expires_at))
        .bind(optional(events, |p| p.event.expires_in.map(micros)))
        .bind(optional(events, |p| p.event.metadata.as_deref().map(|metadata| metadata.get())))
        .bind(optional(events, |p| p.event.max_retries.map(signed)))
        .bind(optional(events, |p| p.event.scheduled_task_id.as_deref()));
    let row = query.fetch_one(connection).await.map_err(from_sqlx)?;
    let (ids, created_at): (Vec<i64>, Timestamp) = (get(&row, "id")?, get(&row, "created_at")?);
    let stored = |event_id| PublishOutcome { event_id, created_at, duplicate: false, arrived: true };
    Ok(ids.into_iter().map(stored).collect())
}
