//! Routing: turns arrivals into deliveries after the transactions that published them have committed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::claim::runs;
use super::enqueue::{Row, column, insert, signed};
use super::error::from_sqlx;
use super::lanes::insert_lanes;
use super::publish::{KeyClaim, claim};
use super::retry::retry_deadlocks;
use super::row::{count_or_none, get};
use super::{PgStore, group};
use crate::clock::{Timestamp, after, micros};
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::queue::wake::ReadyLane;
use crate::store::{
    Arrival, ArrivalsPoll, Plan, PreparedEvent, PublishOutcome, Rejection, RoutePosition, RouteRequest, RouteStore,
    Routed, Routing, Snapshot,
};
use crate::topology::lanes::LaneKey;

// Not synced: if a crash undoes a batch, its arrivals come back.
const BEGIN: &str = "BEGIN; SET LOCAL synchronous_commit = off";

const START: &str = "
SELECT CASE WHEN NOT pg_try_advisory_xact_lock(windlass._router_lock($1)) THEN 'busy'
            WHEN NOT windlass._hold_topology($1, $2) THEN 'outdated' ELSE 'ready' END";

async fn route(store: &PgStore, request: &RouteRequest, now: Option<Timestamp>) -> Result<Routing> {
    let mut connection = store.routes.get().await?;
    let mut tx = connection.begin_with(BEGIN).await.map_err(from_sqlx)?;
    let start = sqlx::query_scalar(START).bind(&request.namespace).bind(request.version);
    let state: String = start.fetch_one(&mut *tx).await.map_err(from_sqlx)?;
    let routing = match state.as_str() {
        "busy" => Routing::Busy,
        "outdated" => Routing::Outdated,
        _ => match route_batch(&mut tx, request, now).await? {
            Some(routed) => Routing::Routed(routed),
            None => Routing::Nothing,
        },
    };
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    if let Routing::Routed(routed) = &routing {
        store.notify(&request.namespace, routed.ready_lanes.clone());
    }
    Ok(routing)
}

/// Routes the first arrivals. The transaction must hold the topology lock. `None`: there are none.
pub(super) async fn route_batch(
    connection: &mut PgConnection,
    request: &RouteRequest,
    now: Option<Timestamp>,
) -> Result<Option<Routed>> {
    let namespace = request.namespace.as_str();
    let mut batch = read(connection, namespace, &request.position, request.limit).await?;
    let Some(last_id) = batch.arrivals.last().map(|arrival| arrival.event_id).or(batch.without_event.last().copied())
    else {
        return Ok(None);
    };
    let lanes = plan(connection, namespace, &request.plan, &mut batch.arrivals, now).await?;
    let duplicates = claim_keys(connection, namespace, &mut batch.arrivals).await?;
    let (mut done, snapshot) = (column(&batch.arrivals, |arrival| arrival.event_id), batch.snapshot.take());
    done.append(&mut batch.without_event);
    let (mut delivered, mut rejected) = (Vec::new(), Vec::new());
    for arrival in batch.arrivals.into_iter().filter(|arrival| !duplicates.contains(&arrival.event_id)) {
        if arrival.rejected.is_some() { rejected.push(arrival) } else { delivered.push(arrival) }
    }
    let mut ready_lanes = deliver(connection, namespace, &delivered, now).await?;
    ready_lanes.extend(delivered.iter().flat_map(|arrival| &arrival.prepared.deliveries).map(|to| to.ready_lane()));
    set_deadlines(connection, namespace, &delivered).await?;
    reject(connection, request, &rejected, now).await?;
    remove(connection, namespace, &done).await?;
    Ok(Some(Routed { delivered, duplicates: duplicates.len(), rejected, lanes, ready_lanes, last_id, snapshot }))
}

// Reads from the start if one of the open transactions has ended. The snapshot is that of the statement, so events
// published after such a commit are never read without the committed ones.
pub(super) const ARRIVALS: &str = "
SELECT a.event_id, a.created_at, a.max_retries, (SELECT pg_current_snapshot()::text) AS snapshot FROM windlass.arrivals a
WHERE a.namespace = $1 AND a.event_id > (
    SELECT CASE WHEN bool_or(pg_visible_in_snapshot(o.id::text::xid8, pg_current_snapshot())) THEN 0 ELSE $2 END
    FROM unnest($3::bigint[]) AS o(id))
ORDER BY a.event_id LIMIT $4";

// Reads ranges of ids and excludes the partitions of other months: see `claim::EVENTS`.
pub(super) const HEADS: &str = "
SELECT e.* FROM unnest($2::bigint[], $3::bigint[]) AS r(first, last)
CROSS JOIN LATERAL (
    SELECT e.id, e.event_type, e.tags, e.group_id, e.key, e.priority, e.run_at, e.expires_at
    FROM windlass.events e
    WHERE e.id BETWEEN r.first AND r.last AND e.created_at BETWEEN $4 AND $5 AND e.namespace = $1 OFFSET 0) AS e";

#[derive(Default)]
struct Batch {
    arrivals: Vec<Arrival>,
    /// Arrivals whose event was deleted.
    without_event: Vec<i64>,
    /// See [`Routed::snapshot`].
    snapshot: Option<Snapshot>,
}

/// The first arrivals by id, up to the first whose key repeats in the batch.
async fn read(connection: &mut PgConnection, namespace: &str, position: &RoutePosition, limit: usize) -> Result<Batch> {
    let query = sqlx::query(ARRIVALS).bind(namespace).bind(position.after).bind(&position.open).bind(limit as i64);
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let (event_id, created_at): (i64, Timestamp) = (get(row, "event_id")?, get(row, "created_at")?);
        found.push((event_id, created_at, count_or_none(row, "max_retries")?));
    }
    if found.is_empty() {
        return Ok(Batch::default());
    }
    let created_at = || found.iter().map(|(_, created_at, _)| *created_at);
    let (first, last): (Vec<i64>, Vec<i64>) = runs(column(&found, |(event_id, ..)| *event_id)).into_iter().unzip();
    let heads =
        sqlx::query(HEADS).bind(namespace).bind(first).bind(last).bind(created_at().min()).bind(created_at().max());
    let mut heads_by_id: HashMap<i64, PgRow> = HashMap::with_capacity(found.len());
    for head in heads.fetch_all(connection).await.map_err(from_sqlx)? {
        heads_by_id.insert(get(&head, "id")?, head);
    }
    let (mut batch, mut keys) = (Batch::default(), HashSet::new());
    if let (Some(row), true) = (rows.first(), rows.len() < limit) {
        batch.snapshot = Some(snapshot(row)?);
    }
    for (event_id, created_at, max_retries) in found {
        let Some(head) = heads_by_id.remove(&event_id) else {
            batch.without_event.push(event_id);
            continue;
        };
        let event = NewEvent { max_retries, ..new_event(&head)? };
        // The batch claims its keys with one statement, so each key may occur once.
        if event.key.as_ref().is_some_and(|key| !keys.insert(key.clone())) {
            batch.snapshot = None;
            break;
        }
        let prepared =
            PreparedEvent { event, key_window: Default::default(), expires_in: None, deliveries: Vec::new() };
        batch.arrivals.push(Arrival { event_id, created_at, prepared, rejected: None });
    }
    Ok(batch)
}

fn snapshot(row: &PgRow) -> Result<Snapshot> {
    let text: String = get(row, "snapshot")?;
    Snapshot::parse(&text).ok_or_else(|| Error::Database { detail: format!("not a snapshot: {text}") })
}

fn new_event(head: &PgRow) -> Result<NewEvent> {
    let mut event = NewEvent::new(get::<String>(head, "event_type")?).tags_text(get::<String>(head, "tags")?);
    event.group_id = get(head, "group_id")?;
    event.key = get(head, "key")?;
    event.priority = get(head, "priority")?;
    event.run_at = get(head, "run_at")?;
    event.expires_at = get(head, "expires_at")?;
    Ok(event)
}

/// Assigns deliveries to the arrivals. Returns the lanes that were created for them.
async fn plan(
    connection: &mut PgConnection,
    namespace: &str,
    plan: &Plan,
    arrivals: &mut [Arrival],
    now: Option<Timestamp>,
) -> Result<Vec<(LaneKey, i64)>> {
    let missing = plan(arrivals, &|_| None)?;
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    // Processes cache lanes, so their creation must survive a crash.
    connection.execute("SET LOCAL synchronous_commit TO DEFAULT").await.map_err(from_sqlx)?;
    let ids = insert_lanes(connection, namespace, &missing, now).await?;
    let created: HashMap<LaneKey, i64> = missing.into_iter().zip(ids).collect();
    plan(arrivals, &|lane| created.get(lane).copied())?;
    Ok(created.into_iter().collect())
}

const CONFLICTS: &str = "
SELECT i.n FROM unnest($2::bigint[], $3::timestamptz[], $4::bigint[], $5::timestamptz[]) WITH ORDINALITY
  AS i(event_id, created_at, first_id, first_created_at, n)
CROSS JOIN LATERAL (
    SELECT e.event_type, e.payload::text AS payload FROM windlass.events e
    WHERE e.namespace = $1 AND e.id = i.event_id AND e.created_at = i.created_at LIMIT 1) AS e
WHERE NOT windlass._has_content($1, i.first_id, i.first_created_at, e.event_type, e.payload)";

const DROP: &str = "
DELETE FROM windlass.events e USING unnest($2::bigint[], $3::timestamptz[]) AS i(event_id, created_at)
WHERE e.namespace = $1 AND e.id = i.event_id AND e.created_at = i.created_at";

/// Claims the keys, and drops events whose key is known. Returns their ids. An event with another type or payload than
/// the first one is rejected instead.
async fn claim_keys(connection: &mut PgConnection, namespace: &str, arrivals: &mut [Arrival]) -> Result<HashSet<i64>> {
    let mut by_key: BTreeMap<String, usize> = BTreeMap::new();
    for (at, arrival) in arrivals.iter().enumerate() {
        by_key.extend(arrival.prepared.event.key.clone().map(|key| (key, at)));
    }
    if by_key.is_empty() {
        return Ok(HashSet::new());
    }
    let keys: Vec<KeyClaim<'_>> = by_key
        .iter()
        .map(|(key, at)| KeyClaim {
            key,
            window: arrivals[*at].prepared.key_window,
            event_id: arrivals[*at].event_id,
            created_at: Some(arrivals[*at].created_at),
        })
        .collect();
    let owners = claim(connection, namespace, &keys, None).await?;
    let known = by_key.into_iter().filter_map(|(key, at)| {
        let first = *owners.get(&key)?;
        (first.event_id != arrivals[at].event_id).then_some((key, at, first))
    });
    let known: Vec<(String, usize, PublishOutcome)> = known.collect();
    if known.is_empty() {
        return Ok(HashSet::new());
    }
    let conflicts = sqlx::query_scalar::<_, i64>(CONFLICTS)
        .bind(namespace)
        .bind(column(&known, |(_, at, _)| arrivals[*at].event_id))
        .bind(column(&known, |(_, at, _)| arrivals[*at].created_at))
        .bind(column(&known, |(.., first)| first.event_id))
        .bind(column(&known, |(.., first)| first.created_at));
    let conflicts: Vec<i64> = conflicts.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    let (mut dropped, mut created) = (Vec::new(), Vec::new());
    for (n, (key, at, first)) in (1..).zip(known) {
        if conflicts.contains(&n) {
            arrivals[at].rejected = Some(Rejection::key_conflict(&key, first.event_id));
        } else {
            dropped.push(arrivals[at].event_id);
            created.push(arrivals[at].created_at);
        }
    }
    let drop = sqlx::query(DROP).bind(namespace).bind(&dropped).bind(created);
    drop.execute(connection).await.map_err(from_sqlx)?;
    Ok(dropped.into_iter().collect())
}

/// The earliest start and the deadline.
fn times(arrival: &Arrival) -> (Timestamp, Option<Timestamp>) {
    let PreparedEvent { event, expires_in, .. } = &arrival.prepared;
    let due_at = event.run_at.map_or(arrival.created_at, |run_at| run_at.max(arrival.created_at));
    (due_at, event.expires_at.or(expires_in.map(|expires_in| after(due_at, expires_in))))
}

/// Adds the deliveries. Returns the lanes in which groups made one ready.
async fn deliver(
    connection: &mut PgConnection,
    namespace: &str,
    arrivals: &[Arrival],
    now: Option<Timestamp>,
) -> Result<Vec<ReadyLane>> {
    let rows = arrivals.iter().flat_map(|arrival| {
        let ((due_at, expires_at), event) = (times(arrival), &arrival.prepared.event);
        arrival.prepared.deliveries.iter().map(move |delivery| Row {
            event_id: arrival.event_id,
            created_at: arrival.created_at,
            delivery,
            event_type: &event.event_type,
            tags: &event.tags,
            priority: event.priority,
            group_id: event.group_id.as_deref(),
            expires_at,
            run_at: Some(due_at),
            attempts: 0,
            is_past: false,
        })
    });
    let rows: Vec<Row<'_>> = rows.collect();
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let lanes = column(&rows, |row| row.delivery.lane_id);
    insert(connection, namespace, &rows, lanes, now).await
}

const SET_DEADLINES: &str = "
UPDATE windlass.events e SET expires_at = i.expires_at
FROM unnest($2::bigint[], $3::timestamptz[], $4::timestamptz[]) AS i(event_id, created_at, expires_at)
WHERE e.namespace = $1 AND e.id = i.event_id AND e.created_at = i.created_at";

/// Stores the deadlines that result from the policy.
async fn set_deadlines(connection: &mut PgConnection, namespace: &str, arrivals: &[Arrival]) -> Result<()> {
    let with_policy = |arrival: &&Arrival| arrival.prepared.event.expires_at.is_none() && times(arrival).1.is_some();
    let with_policy: Vec<&Arrival> = arrivals.iter().filter(with_policy).collect();
    if with_policy.is_empty() {
        return Ok(());
    }
    let set = sqlx::query(SET_DEADLINES)
        .bind(namespace)
        .bind(column(&with_policy, |arrival| arrival.event_id))
        .bind(column(&with_policy, |arrival| arrival.created_at))
        .bind(column(&with_policy, |arrival| times(arrival).1));
    set.execute(connection).await.map_err(from_sqlx).map(drop)
}

const REJECT: &str = "
WITH rejected AS MATERIALIZED (
    SELECT * FROM unnest($4::bigint[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::integer[])
      AS i(event_id, event_type, reason, error, created_at, max_retries)
), logged AS (
    INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription,
        finished_at, action, error_message, retry_count, max_retries)
    SELECT event_id, $3, event_type, 0, $1, 'main', coalesce($2, now()), 'FAILED', error, 0, max_retries FROM rejected
)
INSERT INTO windlass.dead_letters (event_id, subscription_id, event_type, namespace, subscription, status, reason, error,
    attempts, retry_count, max_retries, failed_at, created_at)
SELECT event_id, $3, event_type, $1, 'main', 'FAILED', reason, error, 0, 0, max_retries, coalesce($2, now()), created_at
FROM rejected";

/// Stores rejected arrivals as dead letters of `main`.
async fn reject(
    connection: &mut PgConnection,
    request: &RouteRequest,
    rejected: &[Arrival],
    now: Option<Timestamp>,
) -> Result<()> {
    if rejected.is_empty() {
        return Ok(());
    }
    let why = |arrival: &Arrival| arrival.rejected.clone();
    let reject = sqlx::query(REJECT)
        .bind(&request.namespace)
        .bind(now)
        .bind(request.main_id)
        .bind(column(rejected, |arrival| arrival.event_id))
        .bind(column(rejected, |arrival| arrival.prepared.event.event_type.as_str()))
        .bind(column(rejected, |arrival| why(arrival).map(|why| why.reason)))
        .bind(column(rejected, |arrival| why(arrival).map(|why| why.error)))
        .bind(column(rejected, |arrival| arrival.created_at))
        .bind(column(rejected, |arrival| arrival.prepared.event.max_retries.map(signed)));
    reject.execute(connection).await.map_err(from_sqlx).map(drop)
}

pub(super) const REMOVE: &str = "DELETE FROM windlass.arrivals a WHERE a.namespace = $1 AND a.event_id = ANY($2)";

async fn remove(connection: &mut PgConnection, namespace: &str, events: &[i64]) -> Result<()> {
    sqlx::query(REMOVE).bind(namespace).bind(events).execute(connection).await.map_err(from_sqlx).map(drop)
}

pub(super) const LOOK: &str = "
SELECT (SELECT a.event_id FROM windlass.arrivals a
        WHERE a.namespace = $1 AND a.event_id > (
            SELECT CASE WHEN bool_or(pg_visible_in_snapshot(o.id::text::xid8, pg_current_snapshot())) THEN 0 ELSE $2 END
            FROM unnest($3::bigint[]) AS o(id))
        ORDER BY a.event_id LIMIT 1) AS first,
       (SELECT s.last_value FROM windlass.events_id_seq s) AS newest,
       $4 AND EXISTS (SELECT FROM windlass.departures d WHERE d.namespace = $1) AS departed,
       pg_current_snapshot()::text AS snapshot";

const ARRIVED_AT: &str = "SELECT created_at FROM windlass.arrivals WHERE namespace = $1 AND event_id = $2";

// Jumps from one namespace to the next by index.
const NAMESPACES: &str = "
WITH RECURSIVE found AS (
    (SELECT a.namespace FROM windlass.arrivals a ORDER BY a.namespace LIMIT 1)
    UNION ALL
    SELECT (SELECT a.namespace FROM windlass.arrivals a WHERE a.namespace > f.namespace ORDER BY a.namespace LIMIT 1)
    FROM found f WHERE f.namespace IS NOT NULL
), departed AS (
    (SELECT d.namespace FROM windlass.departures d ORDER BY d.namespace LIMIT 1)
    UNION ALL
    SELECT (SELECT d.namespace FROM windlass.departures d WHERE d.namespace > f.namespace ORDER BY d.namespace LIMIT 1)
    FROM departed f WHERE f.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL UNION SELECT namespace FROM departed WHERE namespace IS NOT NULL";

// By the database's clock, which publishers also use. If two routers become active concurrently, both poll.
const ANNOUNCE_ACTIVE: &str = "
WITH unsynced AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE windlass.routers r SET active_until = clock_timestamp() + interval '2 seconds',
    listens_until = greatest(r.listens_until, clock_timestamp() + interval '1 minute')
FROM unsynced
WHERE r.namespace = $1 AND r.router = $2 AND NOT EXISTS (
    SELECT FROM windlass.routers o WHERE o.namespace = $1 AND o.router <> $2
      AND o.active_until BETWEEN clock_timestamp() AND clock_timestamp() + interval '10 seconds')";

const ANNOUNCE_IDLE: &str = "
WITH unsynced AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)
), gone AS (
    DELETE FROM windlass.routers r WHERE r.namespace = $1 AND r.router <> $2 AND r.listens_until < clock_timestamp()
)
INSERT INTO windlass.routers AS r (namespace, router, listens_until)
SELECT $1, $2, clock_timestamp() + $3 * interval '1 microsecond' FROM unsynced
ON CONFLICT (namespace, router) DO UPDATE SET listens_until = excluded.listens_until, active_until = '-infinity'";

const REMOVE_ROUTER: &str = "DELETE FROM windlass.routers WHERE namespace = $1 AND router = $2";

// Allocates a transaction id: a snapshot contains only ids that were allocated before.
const NEXT_TRANSACTION: &str = "SELECT pg_current_xact_id()::text::bigint";

const NOTIFY: &str = "SELECT pg_notify('windlass', '0 ' || $1 || ' +')::text";

#[async_trait]
impl RouteStore for PgStore {
    fn announces_routers(&self) -> bool {
        true
    }

    async fn poll_arrivals(&self, namespace: &str, position: &RoutePosition, departures: bool) -> Result<ArrivalsPoll> {
        let mut connection = self.routes.get().await?;
        let look = sqlx::query(LOOK).bind(namespace).bind(position.after).bind(&position.open).bind(departures);
        let row = look.fetch_one(&mut *connection).await.map_err(from_sqlx)?;
        let connects = self.routes.connects();
        connection.done();
        let (first, newest, departed) = (get(&row, "first")?, get(&row, "newest")?, get(&row, "departed")?);
        Ok(ArrivalsPoll { first, newest, departed, snapshot: snapshot(&row)?, connects })
    }

    async fn settle_departures(
        &self,
        namespace: &str,
        groups: Option<&[(String, String)]>,
        now: Option<Timestamp>,
    ) -> Result<Vec<ReadyLane>> {
        retry_deadlocks!(group::settle_departures(self, namespace, groups, now))
    }

    async fn arrived_at(&self, namespace: &str, event_id: i64) -> Result<Option<Timestamp>> {
        let mut connection = self.routes.get().await?;
        let query = sqlx::query_scalar(ARRIVED_AT).bind(namespace).bind(event_id);
        let arrived_at = query.fetch_optional(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(arrived_at)
    }

    async fn namespaces_with_arrivals(&self) -> Result<Vec<String>> {
        let mut connection = self.routes.get().await?;
        let namespaces = sqlx::query_scalar(NAMESPACES).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(namespaces)
    }

    async fn route(&self, request: &RouteRequest, now: Option<Timestamp>) -> Result<Routing> {
        retry_deadlocks!(route(self, request, now))
    }

    async fn announce_active_router(&self, namespace: &str, router: &str) -> Result<bool> {
        let mut connection = self.routes.get().await?;
        let announce = sqlx::query(ANNOUNCE_ACTIVE).bind(namespace).bind(router);
        let announced = announce.execute(&mut *connection).await.map_err(from_sqlx)?.rows_affected();
        connection.done();
        Ok(announced > 0)
    }

    async fn announce_idle_router(&self, namespace: &str, router: &str, listens: Duration) -> Result<i64> {
        let mut connection = self.routes.get().await?;
        let announce = sqlx::query(ANNOUNCE_IDLE).bind(namespace).bind(router).bind(micros(listens));
        announce.execute(&mut *connection).await.map_err(from_sqlx)?;
        let next = sqlx::query_scalar(NEXT_TRANSACTION).fetch_one(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(next)
    }

    async fn remove_router(&self, namespace: &str, router: &str) -> Result<()> {
        let mut connection = self.routes.get().await?;
        let remove = sqlx::query(REMOVE_ROUTER).bind(namespace).bind(router);
        remove.execute(&mut *connection).await.map_err(from_sqlx)?;
        sqlx::query(NOTIFY).bind(namespace).execute(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(())
    }
}
