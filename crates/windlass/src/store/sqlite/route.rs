//! Routing: turns arrivals into deliveries after the transactions that published them have committed.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::enqueue::{Entry, enqueue_all};
use super::lanes::add_lanes;
use super::publish::{entry, has_contents, known_key, put_key};
use super::{SqliteStore, row};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::NewEvent;
use crate::queue::wake::ReadyLane;
use crate::store::{
    Arrival, ArrivalsPoll, PreparedEvent, Rejection, RoutePosition, RouteRequest, RouteStore, Routed, Routing, Snapshot,
};
use crate::topology::MAIN;
use crate::topology::lanes::LaneKey;

fn route(conn: &Connection, request: &RouteRequest, now: i64) -> Result<Routing> {
    if row::version(conn, &request.namespace)? != Some(request.version) {
        return Ok(Routing::Outdated);
    }
    Ok(route_batch(conn, request, now)?.map_or(Routing::Nothing, Routing::Routed))
}

/// Routes the first arrivals. `None`: there are none.
pub(super) fn route_batch(conn: &Connection, request: &RouteRequest, now: i64) -> Result<Option<Routed>> {
    let namespace = request.namespace.as_str();
    let found = read(conn, namespace, request.limit)?;
    let Some(last_id) = found.last().map(|(event_id, _)| *event_id) else { return Ok(None) };
    // There is one writer at a time, so no event is published meanwhile.
    let snapshot = (found.len() < request.limit).then(Snapshot::default);
    for (event_id, _) in found.iter().filter(|(_, arrival)| arrival.is_none()) {
        conn.prepare_cached(REMOVE)?.execute((namespace, event_id))?;
    }
    let mut arrivals: Vec<Arrival> = found.into_iter().filter_map(|(_, arrival)| arrival).collect();
    let lanes = plan(conn, request, &mut arrivals, now)?;
    let mut routed = Routed { lanes, last_id, snapshot, ..Routed::default() };
    for mut arrival in arrivals {
        conn.prepare_cached(REMOVE)?.execute((namespace, arrival.event_id))?;
        if arrival.rejected.is_none() && !claim_key(conn, namespace, &mut arrival)? {
            conn.prepare_cached(DROP)?.execute([arrival.event_id])?;
            routed.duplicates += 1;
        } else if arrival.rejected.is_some() {
            reject(conn, request, &arrival, now)?;
            routed.rejected.push(arrival);
        } else {
            routed.delivered.push(arrival);
        }
    }
    let mut entries = Vec::with_capacity(routed.delivered.len());
    for Arrival { event_id, created_at, prepared, .. } in &routed.delivered {
        let created_at = created_at.timestamp_micros();
        let entry = Entry { is_new: false, ..entry(*event_id, &prepared.event, prepared.expires_in, created_at) };
        if prepared.event.expires_at.is_none() && entry.expires_at.is_some() {
            conn.prepare_cached(SET_DEADLINE)?.execute((event_id, entry.expires_at))?;
        }
        entries.extend(prepared.deliveries.iter().map(|to| (entry, to)));
    }
    enqueue_all(conn, namespace, entries, now)?;
    let delivered = routed.delivered.iter().flat_map(|arrival| &arrival.prepared.deliveries);
    routed.ready_lanes = delivered.map(|to| to.ready_lane()).collect();
    Ok(Some(routed))
}

const READ: &str = "
SELECT a.event_id, e.created_at, a.max_retries, e.event_type, e.tags, e.group_id, e.key, e.priority, e.run_at, e.expires_at,
       CASE WHEN e.key IS NULL THEN 'null' ELSE e.payload END
FROM arrivals a LEFT JOIN events e ON e.id = a.event_id
WHERE a.namespace = ?1 ORDER BY a.event_id LIMIT ?2";

/// The first arrivals; `None` if the event was deleted. Payloads are read to compare them with those of events with the
/// same key.
fn read(conn: &Connection, namespace: &str, limit: usize) -> Result<Vec<(i64, Option<Arrival>)>> {
    let mut select = conn.prepare_cached(READ)?;
    let rows = select.query_map((namespace, limit as i64), |row| {
        let is_stored = row.get::<_, Option<i64>>(1)?.is_some();
        Ok((row.get(0)?, if is_stored { Some(arrival(row)?) } else { None }))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn arrival(row: &Row) -> rusqlite::Result<Arrival> {
    let mut event = NewEvent::new(row.get::<_, String>(3)?).tags_text(row.get::<_, String>(4)?);
    event.max_retries = row.get(2)?;
    event.group_id = row.get(5)?;
    event.key = row.get(6)?;
    event.priority = row.get(7)?;
    event.run_at = row::timestamp_or_null(row, 8)?;
    event.expires_at = row::timestamp_or_null(row, 9)?;
    event.payload = row::json(row, 10)?;
    let prepared = PreparedEvent { event, key_window: Default::default(), expires_in: None, deliveries: Vec::new() };
    Ok(Arrival { event_id: row.get(0)?, created_at: row::timestamp(row, 1)?, prepared, rejected: None })
}

/// Assigns deliveries to the arrivals. Returns the lanes that were created for them.
fn plan(conn: &Connection, request: &RouteRequest, arrivals: &mut [Arrival], now: i64) -> Result<Vec<(LaneKey, i64)>> {
    let missing = (request.plan)(arrivals, &|_| None)?;
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let ids = add_lanes(conn, &request.namespace, &missing, now)?;
    let created: HashMap<LaneKey, i64> = missing.into_iter().zip(ids).collect();
    (request.plan)(arrivals, &|lane| created.get(lane).copied())?;
    Ok(created.into_iter().collect())
}

/// Claims the key of an arrival. `false`: another event has it. An event with another type or payload is rejected instead.
fn claim_key(conn: &Connection, namespace: &str, arrival: &mut Arrival) -> Result<bool> {
    let event = &arrival.prepared.event;
    let Some(key) = &event.key else { return Ok(true) };
    let created_at = arrival.created_at.timestamp_micros();
    let Some(first) = known_key(conn, namespace, key, created_at)? else {
        put_key(conn, namespace, key, arrival.event_id, created_at, arrival.prepared.key_window)?;
        return Ok(true);
    };
    if first.event_id == arrival.event_id {
        return Ok(true);
    }
    let same = has_contents(conn, namespace, first.event_id, &event.event_type, event.payload.get())?;
    if !same {
        arrival.rejected = Some(Rejection::key_conflict(key, first.event_id));
    }
    Ok(!same)
}

const DROP: &str = "DELETE FROM events WHERE id = ?1";

const REMOVE: &str = "DELETE FROM arrivals WHERE namespace = ?1 AND event_id = ?2";

const SET_DEADLINE: &str = "UPDATE events SET expires_at = ?2 WHERE id = ?1";

const LOG_REJECTED: &str = "
INSERT INTO event_attempts (event_id, subscription_id, attempt, namespace, subscription, event_type, finished_at, action,
                            error_message, retry_count, max_retries)
VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, 'FAILED', ?7, 0, ?8)";

const REJECT: &str = "
INSERT INTO dead_letters (event_id, subscription_id, namespace, subscription, event_type, status, reason, error, attempts,
                          retry_count, max_retries, failed_at, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, 'FAILED', ?6, ?7, 0, 0, ?8, ?9, ?10)";

/// Stores a rejected arrival as a dead letter of `main`.
fn reject(conn: &Connection, request: &RouteRequest, arrival: &Arrival, now: i64) -> Result<()> {
    let Some(Rejection { reason, error }) = &arrival.rejected else { return Ok(()) };
    let (event, namespace) = (&arrival.prepared.event, &request.namespace);
    let (event_id, main_id, created_at) = (arrival.event_id, request.main_id, arrival.created_at.timestamp_micros());
    let logged = (event_id, main_id, namespace, MAIN, &event.event_type, now, error, event.max_retries);
    conn.prepare_cached(LOG_REJECTED)?.execute(logged)?;
    let letter =
        (event_id, main_id, namespace, MAIN, &event.event_type, reason, error, event.max_retries, now, created_at);
    conn.prepare_cached(REJECT)?.execute(letter)?;
    Ok(())
}

const LOOK: &str = "
SELECT (SELECT event_id FROM arrivals WHERE namespace = ?1 ORDER BY event_id LIMIT 1),
       (SELECT seq FROM sqlite_sequence WHERE name = 'events')";

const ARRIVED_AT: &str = "
SELECT e.created_at FROM arrivals a JOIN events e ON e.id = a.event_id WHERE a.namespace = ?1 AND a.event_id = ?2";

const NAMESPACES: &str = "SELECT DISTINCT namespace FROM arrivals ORDER BY namespace";

#[async_trait]
impl RouteStore for SqliteStore {
    /// Routers notice all commits of other processes, so publishers need not know whether they are idle.
    fn announces_routers(&self) -> bool {
        false
    }

    /// SQLite leaves no dead rows, so a position would not help.
    async fn poll_arrivals(&self, namespace: &str, _: &RoutePosition, _: bool) -> Result<ArrivalsPoll> {
        let namespace = namespace.to_owned();
        let look = move |conn: &Connection| {
            let ids = |row: &Row| Ok((row.get(0)?, row.get::<_, Option<i64>>(1)?.unwrap_or_default()));
            Ok(conn.prepare_cached(LOOK)?.query_row([namespace], ids)?)
        };
        let (first, newest) = self.read(look).await?;
        Ok(ArrivalsPoll { first, newest, ..ArrivalsPoll::default() })
    }

    /// There are no departures: the transactions of handlers update the groups themselves, because there is one writer
    /// at a time.
    async fn settle_departures(
        &self,
        _: &str,
        _: Option<&[(String, String)]>,
        _: Option<Timestamp>,
    ) -> Result<Vec<ReadyLane>> {
        Ok(Vec::new())
    }

    async fn arrived_at(&self, namespace: &str, event_id: i64) -> Result<Option<Timestamp>> {
        let namespace = namespace.to_owned();
        let find = move |conn: &Connection| {
            let mut select = conn.prepare_cached(ARRIVED_AT)?;
            Ok(select.query_row((namespace, event_id), |row| row::timestamp(row, 0)).optional()?)
        };
        self.read(find).await
    }

    async fn namespaces_with_arrivals(&self) -> Result<Vec<String>> {
        self.read(|conn| {
            let mut select = conn.prepare_cached(NAMESPACES)?;
            let namespaces = select.query_map([], |row| row.get(0))?;
            Ok(namespaces.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn route(&self, request: &RouteRequest, now: Option<Timestamp>) -> Result<Routing> {
        let request = request.clone();
        self.write(now, move |conn, now| route(conn, &request, now)).await
    }

    async fn announce_active_router(&self, _: &str, _: &str) -> Result<bool> {
        Ok(true)
    }

    async fn announce_idle_router(&self, _: &str, _: &str, _: Duration) -> Result<i64> {
        Ok(0)
    }

    /// Other routers notice the commit.
    async fn remove_router(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }
}
