//! What upkeep looks for.

use sqlx::Connection as _;

use super::PgStore;
use super::enqueue::{Row, column, enqueue};
use super::error::from_sqlx;
use super::row::{event, get, live};
use crate::clock::Timestamp;
use crate::delivery::Live;
use crate::error::Result;
use crate::event::Event;
use crate::store::{NewDelivery, Past};
use crate::topology::Subscription;

/// Ahead of its mark, a sweep looks at so many rows of a lane: what is held lies near the front, and
/// the rest is backlog.
const AHEAD_MAX: i64 = 10_000;

// Run-out leases behind the mark or near it; and, behind the mark, free rows that committed late.
pub(super) const RUN_OUT: &str = "
SELECT q.* FROM unnest($2::bigint[], $3::timestamptz[], $4::bigint[]) AS l(lane_id, mark_at, mark_id)
CROSS JOIN LATERAL (
    SELECT * FROM (
        SELECT b.event_id, b.lane_id, b.ready_at, b.lease, b.lease_expires_at, b.expires_at, b.attempts,
               b.attempts_limit, b.retry_count, b.max_retries, b.subscription, b.group_id, true AS behind
        FROM windlass.event_queue b
        WHERE b.lane_id = l.lane_id AND b.namespace = $1 AND (b.ready_at, b.event_id) <= (l.mark_at, l.mark_id)
        ORDER BY b.ready_at, b.event_id) AS behind
    UNION ALL
    SELECT * FROM (
        SELECT a.event_id, a.lane_id, a.ready_at, a.lease, a.lease_expires_at, a.expires_at, a.attempts,
               a.attempts_limit, a.retry_count, a.max_retries, a.subscription, a.group_id, false
        FROM windlass.event_queue a
        WHERE a.lane_id = l.lane_id AND a.namespace = $1 AND (a.ready_at, a.event_id) > (l.mark_at, l.mark_id)
          AND a.ready_at <= coalesce($5, now())
        ORDER BY a.ready_at, a.event_id LIMIT $7) AS ahead
) AS q
WHERE (q.lease IS NOT NULL AND q.lease_expires_at <= coalesce($5, now()))
   OR (q.behind AND q.lease IS NULL AND (q.expires_at IS NULL OR q.expires_at > coalesce($5, now())))
LIMIT $6";

pub(super) async fn run_out(
    store: &PgStore,
    namespace: &str,
    lanes: &[i64],
    limit: usize,
    now: Option<Timestamp>,
) -> Result<Vec<Live>> {
    let marks = store.marks.read(lanes);
    let mut connection = store.sweeps.get().await?;
    let query = sqlx::query(RUN_OUT)
        .bind(namespace)
        .bind(lanes)
        .bind(&marks.ready_at)
        .bind(&marks.event_id)
        .bind(now)
        .bind(limit as i64)
        .bind(AHEAD_MAX);
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    let mut found = Vec::new();
    for row in &rows {
        match live(row)? {
            Live { lease: None, lane_id, .. } => store.marks.rewind(lane_id, get(row, "ready_at")?),
            held => found.push(held),
        }
    }
    Ok(found)
}

pub(super) const EXPIRED: &str = "
SELECT q.event_id, q.lane_id, q.lease, q.attempts, q.attempts_limit, q.retry_count, q.max_retries, q.subscription,
       q.group_id
FROM windlass.lanes l CROSS JOIN LATERAL (
    SELECT * FROM windlass.event_queue q
    WHERE q.lane_id = l.lane_id AND q.expires_at IS NOT NULL AND q.expires_at <= coalesce($2, now())
      AND q.lease IS NULL AND q.namespace = $1
    ORDER BY q.expires_at, q.event_id LIMIT $3) AS q
WHERE l.namespace = $1
LIMIT $3";

pub(super) async fn expired(
    store: &PgStore,
    namespace: &str,
    limit: usize,
    now: Option<Timestamp>,
) -> Result<Vec<Live>> {
    let mut connection = store.sweeps.get().await?;
    let query = sqlx::query(EXPIRED).bind(namespace).bind(now).bind(limit as i64);
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    rows.iter().map(live).collect()
}

const PAST_EVENTS: &str = "
SELECT id, namespace, event_type, title, description, tags, payload::text AS payload, group_id, key, priority,
       producer, scheduled_task_id::text AS scheduled_task_id, run_at, expires_at, metadata::text AS metadata, created_at
FROM windlass.events WHERE namespace = $1 AND id >= $2 AND created_at BETWEEN $3 AND $4 ORDER BY id LIMIT $5";

pub(super) async fn past_events(
    store: &PgStore,
    namespace: &str,
    of: &Subscription,
    from: i64,
    limit: usize,
) -> Result<Past> {
    let mut connection = store.reads.get().await?;
    let query = sqlx::query(PAST_EVENTS).bind(namespace).bind(from).bind(of.starts_at);
    let query = query.bind(of.created_at).bind(limit as i64);
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    let events = rows.iter().map(event).collect::<Result<Vec<Event>>>()?;
    let next = if events.len() < limit { None } else { events.last().map(|event| event.id + 1) };
    Ok(Past { events, next })
}

const HAS_DELIVERY: &str = "
SELECT i.id FROM unnest($3::bigint[]) AS i(id)
WHERE EXISTS (SELECT FROM windlass.event_queue q
              WHERE q.event_id = i.id AND q.namespace = $1 AND q.subscription = $2)
   OR EXISTS (SELECT FROM windlass.event_attempts a
              WHERE a.event_id = i.id AND a.namespace = $1 AND a.subscription = $2)";

// What is being taken out of the history is not delivered any more; and what is about to be delivered is not taken out.
const STORED: &str = "
SELECT i.id FROM unnest($2::bigint[], $3::timestamptz[]) AS i(id, created_at)
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.events e WHERE e.id = i.id AND e.created_at = i.created_at AND e.namespace = $1
    LIMIT 1 FOR KEY SHARE) AS e";

const BACKFILLED: &str = "
UPDATE windlass.subscriptions SET backfill_from = $4
WHERE namespace = $1 AND subscription = $2 AND backfill_from = $3";

pub(super) async fn backfill(
    store: &PgStore,
    namespace: &str,
    subscription: &str,
    deliveries: &[(Event, NewDelivery)],
    from: i64,
    next: Option<i64>,
    now: Option<Timestamp>,
) -> Result<bool> {
    let mut connection = store.writes.get().await?;
    let mut tx = connection.begin().await.map_err(from_sqlx)?;
    // The lock on the subscription's row keeps two processes from adding the same page at once.
    let note = sqlx::query(BACKFILLED).bind(namespace).bind(subscription).bind(from).bind(next);
    if note.execute(&mut *tx).await.map_err(from_sqlx)?.rows_affected() == 0 {
        tx.rollback().await.map_err(from_sqlx)?;
        connection.done();
        return Ok(false);
    }
    let ids = column(deliveries, |(event, _)| event.id);
    let stored = sqlx::query_scalar(STORED).bind(namespace).bind(&ids);
    let stored = stored.bind(column(deliveries, |(event, _)| event.created_at));
    let stored: Vec<i64> = stored.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
    let there = sqlx::query_scalar(HAS_DELIVERY).bind(namespace).bind(subscription).bind(ids);
    let there: Vec<i64> = there.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
    let missing = deliveries.iter().filter(|(event, _)| stored.contains(&event.id) && !there.contains(&event.id));
    let rows: Vec<Row<'_>> = missing.map(|(event, delivery)| row(event, delivery)).collect();
    enqueue(&mut tx, namespace, &rows, now).await?;
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    store.freed_anywhere(namespace);
    Ok(true)
}

fn row<'a>(event: &'a Event, delivery: &'a NewDelivery) -> Row<'a> {
    Row {
        event_id: event.id,
        created_at: event.created_at,
        delivery,
        group_id: event.group_id.as_deref(),
        expires_at: event.expires_at,
        due_at: Some(event.run_at.map_or(event.created_at, |run_at| run_at.max(event.created_at))),
        attempts: 0,
    }
}
