//! Storing events with their deliveries.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};

use super::arrive::arrive;
use super::enqueue::{column, flags, optional, signed};
use super::error::from_sqlx;
use super::group::{self, EnteredGroups, Entries, Entry, NewMember};
use super::publish_one::{insert_one, plain};
use super::retry::retry_deadlocks;
use super::row::get;
use super::{PgStore, topology};
use crate::clock::{Timestamp, micros};
use crate::error::{Error, Result};
use crate::event::{NewEvent, same_contents};
use crate::queue::wake::ReadyLane;
use crate::store::{NewDelivery, PreparedEvent, PublishOutcome, PublishStore};

#[async_trait]
impl PublishStore for PgStore {
    async fn publish(
        &self,
        namespace: &str,
        version: i64,
        events: Arc<Vec<PreparedEvent>>,
        now: Option<Timestamp>,
    ) -> Result<Option<Vec<PublishOutcome>>> {
        let events: Vec<&PreparedEvent> = events.iter().collect();
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let published = if is_simple(&events) {
                in_order(&mut connection, namespace, version, &events, now).await?
            } else {
                let mut tx = connection.begin_with(topology::begin_and_lock(namespace)).await.map_err(from_sqlx)?;
                let published = in_order(&mut tx, namespace, version, &events, now).await?;
                match published {
                    Some(_) => tx.commit().await.map_err(from_sqlx)?,
                    None => tx.rollback().await.map_err(from_sqlx)?,
                }
                published
            };
            connection.done();
            let Some(published) = published else { return Ok(None) };
            self.notify(namespace, published.ready_lanes);
            Ok(Some(published.stored))
        })
    }
}

/// The result for each event, and the lanes in which deliveries became ready.
pub(super) struct Published {
    pub stored: Vec<PublishOutcome>,
    pub ready_lanes: Vec<ReadyLane>,
}

/// Without keys and groups, one statement stores all events and needs no transaction around it.
fn is_simple(events: &[&PreparedEvent]) -> bool {
    events.iter().all(|prepared| prepared.event.key.is_none() && prepared.event.group_id.is_none())
}

/// Claims keys first, so that only new events count in their groups; then updates the groups; then stores the rows.
async fn in_order(
    connection: &mut PgConnection,
    namespace: &str,
    version: i64,
    events: &[&PreparedEvent],
    now: Option<Timestamp>,
) -> Result<Option<Published>> {
    let keys = claim_keys(connection, namespace, events, now).await?;
    let new: Vec<usize> = (0..events.len()).filter(|at| keys.stored[*at].is_none()).collect();
    let ids = new.iter().map(|at| keys.ids.get(*at).copied()).collect();
    let new: Vec<&PreparedEvent> = new.into_iter().map(|at| events[at]).collect();
    let mut published = Published { stored: Vec::new(), ready_lanes: Vec::new() };
    if !new.is_empty() {
        match store_new(connection, Batch { namespace, version, events: &new, ids }, now).await? {
            Some(stored) => published = stored,
            None => return Ok(None),
        }
    }
    let mut stored = published.stored.into_iter();
    let answers = keys.stored.into_iter().filter_map(|known| known.or_else(|| stored.next()));
    published.stored = answers.collect();
    Ok(Some(published))
}

/// Stores new events. Events of groups with arrivals are stored as arrivals, so that the router keeps the order.
/// `None`: the namespace has another version.
pub(super) async fn store_new(
    connection: &mut PgConnection,
    batch: Batch<'_>,
    now: Option<Timestamp>,
) -> Result<Option<Published>> {
    let entered = group::enter(connection, batch.namespace, members(batch.events), true, now).await?;
    if entered.left_out.is_empty() {
        return store_direct(connection, batch, &entered, now).await;
    }
    let left_out = entered.left_out.iter().map(|(_, group_id)| group_id.as_str()).collect::<HashSet<_>>();
    let arrives = |at: usize| batch.events[at].event.group_id.as_deref().is_some_and(|id| left_out.contains(id));
    let part = |arriving: bool| {
        let places: Vec<usize> = (0..batch.events.len()).filter(|at| arrives(*at) == arriving).collect();
        (column(&places, |at| batch.events[*at]), column(&places, |at| batch.ids[*at]))
    };
    let ((direct, direct_ids), (later, later_ids)) = (part(false), part(true));
    let (namespace, version) = (batch.namespace, batch.version);
    let direct = Batch { namespace, version, events: &direct, ids: direct_ids };
    let Some(mut published) = store_direct(connection, direct, &entered, now).await? else { return Ok(None) };
    let mut direct = published.stored.into_iter();
    let mut later = arrive(connection, namespace, &later, later_ids, now).await?.into_iter();
    let stored = (0..batch.events.len()).map(|at| if arrives(at) { later.next() } else { direct.next() });
    published.stored = stored.flatten().collect();
    Ok(Some(published))
}

/// Stores events with their deliveries in the groups that were entered.
async fn store_direct(
    connection: &mut PgConnection,
    batch: Batch<'_>,
    entered: &EnteredGroups,
    now: Option<Timestamp>,
) -> Result<Option<Published>> {
    let namespace = batch.namespace;
    if batch.events.is_empty() {
        return Ok(Some(Published { stored: Vec::new(), ready_lanes: Vec::new() }));
    }
    if let Some((event, delivery)) = plain(&batch) {
        let stored = insert_one(connection, (namespace, batch.version), (event, delivery), now).await?;
        return Ok(stored.map(|stored| Published { stored: vec![stored], ready_lanes: vec![delivery.ready_lane()] }));
    }
    let planned = Entries::new(entered, members(batch.events));
    let Some(mut published) = insert(connection, batch, &planned.entries, now).await? else { return Ok(None) };
    published.ready_lanes.extend(planned.settle(connection, namespace, now).await?);
    Ok(Some(published))
}

/// The deliveries of the events, in order.
fn members<'a>(events: &'a [&'a PreparedEvent]) -> impl Iterator<Item = NewMember<'a>> {
    (0..).zip(events).flat_map(|(order, prepared)| {
        let prepared: &'a PreparedEvent = prepared;
        let NewEvent { group_id, run_at, delay, .. } = &prepared.event;
        let member = move |delivery| {
            let group_id = group_id.as_deref();
            NewMember { delivery, group_id, order, run_at: *run_at, delay: *delay, is_past: false }
        };
        prepared.deliveries.iter().map(member)
    })
}

// The transaction gets its id before it draws event ids: claims rely on this to know which events may not be committed
// yet.
pub(super) const IDS: &str = "
WITH tx AS MATERIALIZED (SELECT pg_current_xact_id() AS id)
SELECT nextval('windlass.events_id_seq') FROM tx, generate_series(1, $1) WHERE tx.id IS NOT NULL";

// A key that was used within its window keeps its event. Keys are claimed in one order, so that two batches with the
// same keys wait for each other instead of deadlocking. The key of an arrival is claimed for the arrival, unless the
// arrival itself repeats the key of an earlier event.
pub(super) const CLAIM_KEYS: &str = "
INSERT INTO windlass.event_keys AS k (namespace, key, event_id, created_at, expires_at)
SELECT $1, i.key, coalesce(a.event_id, i.id), f.at, f.at + i.window_us * interval '1 microsecond'
FROM unnest($2::text[], $3::bigint[], $4::bigint[], $6::timestamptz[]) AS i(key, window_us, id, created_at)
LEFT JOIN LATERAL (
    SELECT a.event_id, a.created_at FROM windlass.arrivals a
    WHERE (a.namespace = $1) IS TRUE AND a.key = i.key
      AND NOT EXISTS (SELECT FROM windlass.event_keys k
                      WHERE k.namespace = $1 AND k.key = i.key AND k.expires_at > a.created_at AND k.event_id <> a.event_id)
    ORDER BY a.key, a.event_id LIMIT 1) AS a ON true,
LATERAL (SELECT coalesce(a.created_at, i.created_at, $5, now()) AS at) AS f
ON CONFLICT (namespace, key) DO UPDATE SET
    event_id = CASE WHEN k.expires_at <= excluded.created_at THEN excluded.event_id ELSE k.event_id END,
    created_at = CASE WHEN k.expires_at <= excluded.created_at THEN excluded.created_at ELSE k.created_at END,
    expires_at = CASE WHEN k.expires_at <= excluded.created_at THEN excluded.expires_at ELSE k.expires_at END
RETURNING k.key, k.event_id, k.created_at";

/// The result of claiming the keys of a batch.
#[derive(Default)]
struct Keys {
    /// The id for each event, in order; empty if no event has a key.
    ids: Vec<i64>,
    /// For each event: the first event of its key if this event must not be stored.
    stored: Vec<Option<PublishOutcome>>,
}

/// Draws ids for the whole batch in order, because they determine the order within groups.
async fn claim_keys(
    connection: &mut PgConnection,
    namespace: &str,
    events: &[&PreparedEvent],
    now: Option<Timestamp>,
) -> Result<Keys> {
    let mut stored = vec![None; events.len()];
    if events.iter().all(|prepared| prepared.event.key.is_none()) {
        return Ok(Keys { ids: Vec::new(), stored });
    }
    let draw = sqlx::query_scalar(IDS).bind(events.len() as i64);
    let ids: Vec<i64> = draw.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, prepared) in events.iter().enumerate() {
        if let Some(key) = prepared.event.key.as_deref() {
            first.entry(key).or_insert(at);
        }
    }
    let keys = first.iter().map(|(key, at)| KeyClaim {
        key,
        window: events[*at].key_window,
        event_id: ids[*at],
        created_at: None,
    });
    let owners = claim(connection, namespace, &keys.collect::<Vec<_>>(), now).await?;
    for (at, prepared) in events.iter().enumerate() {
        let Some(key) = prepared.event.key.as_deref() else { continue };
        stored[at] = owners.get(key).filter(|owner| owner.event_id != ids[at]).copied();
        let earlier = first.get(key).filter(|first| **first != at).map(|first| &events[*first].event);
        if earlier.is_some_and(|earlier| !same_contents(earlier, &prepared.event)) {
            return Err(Error::KeyConflict { key: key.to_owned(), event_id: None });
        }
    }
    // If this batch stores the first event of the key, the contents were compared above.
    let known = events.iter().zip(&stored).filter_map(|(prepared, stored)| Some((*prepared, (*stored)?)));
    check_contents(connection, namespace, known.filter(|(_, stored)| !ids.contains(&stored.event_id))).await?;
    Ok(Keys { ids, stored })
}

/// A key that an event claims.
pub(super) struct KeyClaim<'a> {
    pub key: &'a str,
    pub window: Duration,
    pub event_id: i64,
    /// `None`: now.
    pub created_at: Option<Timestamp>,
}

/// Claims the keys, which must be sorted. Returns the event of each key.
pub(super) async fn claim(
    connection: &mut PgConnection,
    namespace: &str,
    keys: &[KeyClaim<'_>],
    now: Option<Timestamp>,
) -> Result<HashMap<String, PublishOutcome>> {
    let claim = sqlx::query(CLAIM_KEYS)
        .bind(namespace)
        .bind(column(keys, |claim| claim.key))
        .bind(column(keys, |claim| micros(claim.window)))
        .bind(column(keys, |claim| claim.event_id))
        .bind(now)
        .bind(optional(keys, |claim| claim.created_at));
    let mut owners = HashMap::with_capacity(keys.len());
    for row in claim.fetch_all(connection).await.map_err(from_sqlx)? {
        let owner = PublishOutcome::duplicate_of(get(&row, "event_id")?, get(&row, "created_at")?);
        owners.insert(get(&row, "key")?, owner);
    }
    Ok(owners)
}

const CONFLICTS: &str = "
SELECT i.n FROM unnest($2::bigint[], $3::timestamptz[], $4::text[], $5::text[]) WITH ORDINALITY
  AS i(event_id, created_at, event_type, payload, n)
WHERE NOT windlass._has_content($1, i.event_id, i.created_at, i.event_type, i.payload)
ORDER BY i.n LIMIT 1";

/// Returns an error if a key was used for an event with another type or payload.
pub(super) async fn check_contents<'a>(
    connection: &mut PgConnection,
    namespace: &str,
    known: impl Iterator<Item = (&'a PreparedEvent, PublishOutcome)>,
) -> Result<()> {
    let known: Vec<(&PreparedEvent, PublishOutcome)> = known.collect();
    if known.is_empty() {
        return Ok(());
    }
    let conflicts = sqlx::query_scalar::<_, i64>(CONFLICTS)
        .bind(namespace)
        .bind(column(&known, |(_, first)| first.event_id))
        .bind(column(&known, |(_, first)| first.created_at))
        .bind(column(&known, |(prepared, _)| prepared.event.event_type.as_str()))
        .bind(column(&known, |(prepared, _)| prepared.event.payload.get()));
    let Some(n) = conflicts.fetch_optional(connection).await.map_err(from_sqlx)? else { return Ok(()) };
    let (prepared, first) = &known[n as usize - 1];
    let key = prepared.event.key.clone().unwrap_or_default();
    Err(Error::KeyConflict { key, event_id: Some(first.event_id) })
}

/// New events, with ids for those that have them already.
pub(super) struct Batch<'a> {
    pub namespace: &'a str,
    pub version: i64,
    pub events: &'a [&'a PreparedEvent],
    pub ids: Vec<Option<i64>>,
}

// One statement, so that a single publish is one round trip and one commit. If the version is not $2, it draws no ids
// and stores nothing. The lock keeps the version until the commit, so that a new subscription misses no event.
const INSERT: &str = "
WITH topology AS MATERIALIZED (
    SELECT windlass._hold_topology($1, $2) AS is_current
), ids AS MATERIALIZED (
    SELECT array_agg(coalesce(g.id, nextval('windlass.events_id_seq'))) AS id
    FROM topology, unnest($3::bigint[]) AS g(id) WHERE topology.is_current
), stored AS (
    INSERT INTO windlass.events (id, namespace, event_type, title, description, tags, payload, group_id, key,
        priority, producer, scheduled_task_id, run_at, expires_at, metadata, created_at)
    SELECT ids.id[e.n], $1, e.event_type, e.title, e.description, e.tags, e.payload::json, e.group_id, e.key,
           e.priority, e.producer, e.scheduled_task_id::uuid,
           coalesce(e.run_at, coalesce($4, now()) + e.delay_us * interval '1 microsecond'),
           coalesce(e.expires_at, greatest(coalesce($4, now()), e.run_at,
               coalesce($4, now()) + e.delay_us * interval '1 microsecond') + e.expires_in_us * interval '1 microsecond'),
           e.metadata::json, coalesce($4, now())
    FROM ids, unnest($5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[],
                     $12::smallint[], $13::text[], $14::timestamptz[], $15::bigint[], $16::timestamptz[],
                     $17::text[], $28::bigint[], $30::text[])
      WITH ORDINALITY AS e(event_type, title, description, tags, payload, group_id, key, priority, producer,
                           run_at, delay_us, expires_at, metadata, expires_in_us, scheduled_task_id, n)
    WHERE ids.id IS NOT NULL
), queued AS (
    INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type, priority,
        out_of_order, ready_at, due_at, attempts_limit, max_retries, group_id, expires_at, updated_at, created_at)
    SELECT ids.id[d.n], d.subscription_id, d.lane_id, $1, d.subscription, d.event_type, d.priority,
           d.priority <> 0 OR d.waits IS TRUE OR due.at > coalesce($4, now()),
           CASE WHEN d.waits THEN 'infinity' ELSE due.at END, d.due_at,
           d.attempts_limit, d.max_retries, d.group_id,
           coalesce(d.expires_at, due.at + d.expires_in_us * interval '1 microsecond'),
           coalesce($4, now()), coalesce($4, now())
    FROM ids, unnest($18::integer[], $19::bigint[], $20::text[], $21::boolean[], $22::integer[], $23::integer[],
                     $24::text[], $25::timestamptz[], $26::timestamptz[], $27::bigint[], $29::bigint[],
                     $31::bigint[], $32::text[], $33::smallint[], $34::timestamptz[])
           AS d(n, lane_id, subscription, waits, attempts_limit, max_retries, group_id, expires_at, run_at,
                delay_us, expires_in_us, subscription_id, event_type, priority, due_at),
         LATERAL (SELECT greatest(coalesce($4, now()), d.run_at, d.due_at,
                                  coalesce($4, now()) + d.delay_us * interval '1 microsecond') AS at) AS due
    WHERE ids.id IS NOT NULL
)
SELECT ids.id, coalesce($4, now()) AS created_at FROM ids";

async fn insert(
    connection: &mut PgConnection,
    batch: Batch<'_>,
    entries: &[Entry],
    now: Option<Timestamp>,
) -> Result<Option<Published>> {
    let events = batch.events;
    let deliveries: Vec<(i32, &PreparedEvent, &NewDelivery)> = (1..)
        .zip(events)
        .flat_map(|(n, prepared)| prepared.deliveries.iter().map(move |delivery| (n, *prepared, delivery)))
        .collect();
    let query = sqlx::query(INSERT)
        .bind(batch.namespace)
        .bind(batch.version)
        .bind(batch.ids)
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
        .bind(optional(events, |p| p.event.metadata.as_deref().map(|metadata| metadata.get())))
        .bind(column(&deliveries, |(n, ..)| *n))
        .bind(column(&deliveries, |(.., d)| d.lane_id))
        .bind(column(&deliveries, |(.., d)| d.subscription.as_str()))
        .bind(flags(entries, |entry| entry.waits))
        .bind(column(&deliveries, |(.., d)| signed(d.attempts_limit)))
        .bind(optional(&deliveries, |(.., d)| d.max_retries.map(signed)))
        .bind(optional(&deliveries, |(_, p, _)| p.event.group_id.as_deref()))
        .bind(optional(&deliveries, |(_, p, _)| p.event.expires_at))
        .bind(optional(&deliveries, |(_, p, _)| p.event.run_at))
        .bind(optional(&deliveries, |(_, p, _)| p.event.delay.map(micros)))
        .bind(optional(events, |p| p.expires_in.map(micros)))
        .bind(optional(&deliveries, |(_, p, _)| p.expires_in.map(micros)))
        .bind(optional(events, |p| p.event.scheduled_task_id.as_deref()))
        .bind(column(&deliveries, |(.., d)| d.subscription_id))
        .bind(column(&deliveries, |(_, p, _)| p.event.event_type.as_str()))
        .bind(column(&deliveries, |(_, p, _)| p.event.priority))
        .bind(optional(entries, |entry| entry.due_at));
    let row = query.fetch_one(connection).await.map_err(from_sqlx)?;
    let Some(ids) = get::<Option<Vec<i64>>>(&row, "id")? else { return Ok(None) };
    let created_at: Timestamp = get(&row, "created_at")?;
    let stored = ids.into_iter().map(|event_id| PublishOutcome::new(event_id, created_at)).collect();
    let ready_lanes = deliveries.iter().map(|(.., delivery)| delivery.ready_lane()).collect();
    Ok(Some(Published { stored, ready_lanes }))
}
