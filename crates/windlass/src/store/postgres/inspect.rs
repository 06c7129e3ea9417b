//! Reading what is there. These statements may be large; they run on connections of their own, with
//! the planner's usual settings.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection};

use super::error::from_sqlx;
use super::row::{count, count_or_none, event, get, json};
use super::{PgStore, backlog, read_pages};
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::event::Event;
use crate::event::delivery::Status;
use crate::observe::backlog::LiveCount;
use crate::observe::inspect::{DeliveryView, EventView, LogEntry, StatRow, StuckDelivery, WorkerView};
use crate::queue::decide::status_after;

const EXISTS: &str = "
SELECT EXISTS (SELECT FROM windlass.events e WHERE e.namespace = $1 AND e.id = i.id)
FROM unnest($2::bigint[]) WITH ORDINALITY AS i(id, n) ORDER BY i.n";

pub(super) async fn exists(store: &PgStore, namespace: &str, ids: &[i64]) -> Result<Vec<bool>> {
    let mut connection = store.reads.get().await?;
    let query = sqlx::query_scalar(EXISTS).bind(namespace).bind(ids);
    let there = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    Ok(there)
}

const EVENTS: &str = "
SELECT id, namespace, event_type, title, description, tags, payload::text AS payload, group_id, key, priority,
       producer, scheduled_task_id::text AS scheduled_task_id, run_at, expires_at, metadata::text AS metadata, created_at
FROM windlass.events WHERE namespace = $1 AND id = ANY($2)";

pub(super) async fn events(connection: &mut PgConnection, namespace: &str, ids: &[i64]) -> Result<Vec<Event>> {
    let query = sqlx::query(EVENTS).bind(namespace).bind(ids);
    query.fetch_all(connection).await.map_err(from_sqlx)?.iter().map(event).collect()
}

const LIVE: &str = "
SELECT q.event_id, q.subscription, q.lease IS NOT NULL AS held, q.attempts, q.retry_count, q.max_retries,
       nullif(q.ready_at, 'infinity') AS ready_at, q.worker_id, q.picked_at, q.started_at, q.lease_expires_at, q.updated_at,
       (SELECT a.error_message FROM windlass.event_attempts a
        WHERE a.event_id = q.event_id AND a.subscription_id = q.subscription_id AND a.namespace = $1
          AND a.error_message IS NOT NULL
        ORDER BY a.id DESC LIMIT 1) AS error_message
FROM windlass.subscriptions s JOIN windlass.event_queue q ON q.subscription_id = s.subscription_id
WHERE s.namespace = $1 AND q.event_id = ANY($2)";

// The newest entry of each delivery that has left the queue.
const ENDED: &str = "
SELECT DISTINCT ON (a.event_id, a.subscription) a.event_id, a.subscription, a.attempt, a.action, a.retry_count,
       a.max_retries, a.finished_at,
       (SELECT e.error_message FROM windlass.event_attempts e
        WHERE e.event_id = a.event_id AND e.subscription_id = a.subscription_id AND e.namespace = $1
          AND e.error_message IS NOT NULL
        ORDER BY e.id DESC LIMIT 1) AS error_message
FROM windlass.event_attempts a
WHERE a.namespace = $1 AND a.event_id = ANY($2)
  AND NOT EXISTS (SELECT FROM windlass.event_queue q
                  WHERE q.subscription_id = a.subscription_id AND q.event_id = a.event_id AND q.namespace = $1)
ORDER BY a.event_id, a.subscription, a.id DESC";

// A delivery that ends meanwhile is shown once, and one that comes back is not missed. The tables are locked before the
// snapshot is taken: one from before a month was dropped would not see what was put aside of it.
pub(super) const SNAPSHOT: &str = "
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
LOCK TABLE windlass.events, windlass.event_attempts IN ACCESS SHARE MODE";

/// The same, for statements that go through all that is live.
const SNAPSHOT_OF_PAGES: &str = concat!(
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; ",
    read_pages!("SET LOCAL"),
    "; LOCK TABLE windlass.event_attempts IN ACCESS SHARE MODE"
);

pub(super) async fn get_all(store: &PgStore, namespace: &str, ids: &[i64]) -> Result<Vec<Option<EventView>>> {
    let mut connection = store.reads.get().await?;
    let mut snapshot = connection.begin_with(SNAPSHOT).await.map_err(from_sqlx)?;
    let views = views(&mut snapshot, namespace, ids).await?;
    snapshot.commit().await.map_err(from_sqlx)?;
    connection.done();
    Ok(views)
}

pub(super) async fn views(
    connection: &mut PgConnection,
    namespace: &str,
    ids: &[i64],
) -> Result<Vec<Option<EventView>>> {
    let events = events(connection, namespace, ids).await?;
    let mut deliveries = deliveries(connection, namespace, ids).await?;
    let mut views: HashMap<i64, EventView> = HashMap::new();
    for event in events {
        let deliveries = deliveries.remove(&event.id).unwrap_or_default();
        views.insert(event.id, EventView { event, deliveries });
    }
    Ok(ids.iter().map(|id| views.remove(id)).collect())
}

/// How the events stand with each subscription, in the order of their names.
pub(super) async fn deliveries(
    connection: &mut PgConnection,
    namespace: &str,
    ids: &[i64],
) -> Result<HashMap<i64, Vec<DeliveryView>>> {
    let live = sqlx::query(LIVE).bind(namespace).bind(ids).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    let ended = sqlx::query(ENDED).bind(namespace).bind(ids).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    let mut deliveries: HashMap<i64, Vec<DeliveryView>> = HashMap::new();
    for row in &live {
        deliveries.entry(get(row, "event_id")?).or_default().push(live_view(row)?);
    }
    for row in &ended {
        deliveries.entry(get(row, "event_id")?).or_default().push(ended_view(row)?);
    }
    deliveries.values_mut().for_each(|of_event| of_event.sort_by(|a, b| a.subscription.cmp(&b.subscription)));
    Ok(deliveries)
}

fn live_view(row: &PgRow) -> Result<DeliveryView> {
    let held: bool = get(row, "held")?;
    let (ready_at, retry_count) = (get::<Option<Timestamp>>(row, "ready_at")?, count(row, "retry_count")?);
    let while_held = |column| if held { get(row, column) } else { Ok(None) };
    Ok(DeliveryView {
        subscription: get(row, "subscription")?,
        status: if held { Status::Processing } else { Status::Pending },
        attempts: count(row, "attempts")?,
        retry_count,
        max_retries: count_or_none(row, "max_retries")?,
        ready_at: ready_at.filter(|_| !held),
        next_retry_at: ready_at.filter(|_| !held && retry_count > 0),
        worker_id: if held { get(row, "worker_id")? } else { None },
        picked_at: while_held("picked_at")?,
        started_at: while_held("started_at")?,
        lease_expires_at: while_held("lease_expires_at")?,
        error_message: get(row, "error_message")?,
        updated_at: get(row, "updated_at")?,
    })
}

fn ended_view(row: &PgRow) -> Result<DeliveryView> {
    Ok(DeliveryView {
        subscription: get(row, "subscription")?,
        status: status_after(get::<String>(row, "action")?.parse()?),
        attempts: count(row, "attempt")?,
        retry_count: count(row, "retry_count")?,
        max_retries: count_or_none(row, "max_retries")?,
        ready_at: None,
        next_retry_at: None,
        worker_id: None,
        picked_at: None,
        started_at: None,
        lease_expires_at: None,
        error_message: get(row, "error_message")?,
        updated_at: get(row, "finished_at")?,
    })
}

const LOG: &str = "
SELECT l.event_id, l.subscription, l.attempt, l.worker_id, l.action, l.status_code, l.error_message,
       l.execution_time_ms, l.created_at, a.detail::text AS detail
FROM windlass.event_log l
LEFT JOIN windlass.event_attempts a
       ON l.step = 2 AND a.namespace = $1 AND a.event_id = $2 AND a.id = l.entry
WHERE l.namespace = $1 AND l.event_id = $2 ORDER BY l.created_at, l.entry, l.step";

pub(super) async fn log(store: &PgStore, namespace: &str, event_id: i64) -> Result<Vec<LogEntry>> {
    let mut connection = store.reads.get().await?;
    let query = sqlx::query(LOG).bind(namespace).bind(event_id);
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    let entry = |row: &PgRow| {
        Ok(LogEntry {
            id: 0,
            event_id: get(row, "event_id")?,
            subscription: get(row, "subscription")?,
            attempt: count(row, "attempt")?,
            worker_id: get(row, "worker_id")?,
            action: get::<String>(row, "action")?.parse()?,
            status_code: get(row, "status_code")?,
            error_message: get(row, "error_message")?,
            execution_time_ms: get::<Option<i64>>(row, "execution_time_ms")?.map(i64::unsigned_abs),
            detail: get::<Option<String>>(row, "detail")?.map(json).transpose()?,
            created_at: get(row, "created_at")?,
        })
    };
    rows.iter().map(entry).collect()
}

// Read from the table of leases, which has an index by claim time.
pub(super) const STUCK: &str = "
SELECT q.event_id, q.event_type, q.subscription, q.worker_id, q.attempts, q.picked_at, q.started_at, q.updated_at,
       q.lease_expires_at
FROM windlass.subscriptions s CROSS JOIN LATERAL (
    SELECT l.lease, l.first_id, l.last_id FROM windlass.leases l
    WHERE l.subscription_id = s.subscription_id AND l.claimed_at < coalesce($4, now()) - $2 * interval '1 microsecond'
    ORDER BY l.claimed_at) AS l
CROSS JOIN LATERAL (
    SELECT * FROM windlass.event_queue q
    WHERE q.subscription_id = s.subscription_id AND q.event_id BETWEEN l.first_id AND l.last_id AND q.lease = l.lease
    ORDER BY q.event_id OFFSET 0) AS q
WHERE s.namespace = $1
ORDER BY q.picked_at, q.event_id LIMIT $3";

pub(super) async fn stuck(
    store: &PgStore,
    namespace: &str,
    older_than: Duration,
    limit: usize,
    now: Option<Timestamp>,
) -> Result<Vec<StuckDelivery>> {
    let mut connection = store.reads.get().await?;
    let mut tx = connection.begin_with(SNAPSHOT_OF_PAGES).await.map_err(from_sqlx)?;
    let query = sqlx::query(STUCK).bind(namespace).bind(micros(older_than)).bind(limit as i64).bind(now);
    let rows = query.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    let delivery = |row: &PgRow| {
        Ok(StuckDelivery {
            event_id: get(row, "event_id")?,
            event_type: get(row, "event_type")?,
            subscription: get(row, "subscription")?,
            worker_id: get(row, "worker_id")?,
            attempts: count(row, "attempts")?,
            picked_at: get(row, "picked_at")?,
            started_at: get(row, "started_at")?,
            updated_at: get(row, "updated_at")?,
            lease_expires_at: get(row, "lease_expires_at")?,
        })
    };
    rows.iter().map(delivery).collect()
}

pub(super) const WORKERS: &str = "
SELECT worker_id, sum(held)::bigint AS held, min(picked_at) AS oldest_picked_at, max(seen_at) AS last_seen_at
FROM (
    SELECT q.worker_id, 1 AS held, q.picked_at, q.updated_at AS seen_at
    FROM windlass.subscriptions s JOIN windlass.leases l ON l.subscription_id = s.subscription_id
    CROSS JOIN LATERAL (
        SELECT q.worker_id, q.picked_at, q.updated_at FROM windlass.event_queue q
        WHERE q.subscription_id = l.subscription_id AND q.event_id BETWEEN l.first_id AND l.last_id AND q.lease = l.lease
        ORDER BY q.event_id OFFSET 0) AS q
    WHERE s.namespace = $1
    UNION ALL
    SELECT a.worker_id, 0, NULL, a.finished_at FROM windlass.event_attempts a
    WHERE a.namespace = $1 AND a.finished_at >= $2 AND a.worker_id IS NOT NULL
      AND a.action NOT IN ('ABANDONED', 'RESET')
) AS w
GROUP BY worker_id ORDER BY worker_id";

pub(super) async fn workers(store: &PgStore, namespace: &str, since: Timestamp) -> Result<Vec<WorkerView>> {
    let mut connection = store.reads.get().await?;
    let mut tx = connection.begin_with(SNAPSHOT_OF_PAGES).await.map_err(from_sqlx)?;
    let rows = sqlx::query(WORKERS).bind(namespace).bind(since).fetch_all(&mut *tx).await.map_err(from_sqlx)?;
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    let worker = |row: &PgRow| {
        Ok(WorkerView {
            worker_id: get(row, "worker_id")?,
            held: get::<i64>(row, "held")?.unsigned_abs(),
            oldest_picked_at: get(row, "oldest_picked_at")?,
            last_seen_at: get(row, "last_seen_at")?,
            stale: false,
        })
    };
    rows.iter().map(worker).collect()
}

const ENDED_SINCE: &str = "
SELECT d.subscription, d.event_type, d.status, count(*) AS count, min(d.failed_at) AS oldest_at
FROM windlass.dead_letters d WHERE d.namespace = $1 GROUP BY 1, 2, 3
UNION ALL
SELECT a.subscription, a.event_type, a.action, count(*), min(a.finished_at)
FROM windlass.event_attempts a
WHERE a.namespace = $1 AND a.finished_at >= $2 AND a.action IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'CANCELLED')
GROUP BY 1, 2, 3";

pub(super) async fn stats(
    store: &PgStore,
    namespace: &str,
    since: Timestamp,
    now: Option<Timestamp>,
) -> Result<(Vec<LiveCount>, Vec<StatRow>)> {
    let mut connection = store.reads.get().await?;
    let mut tx = connection.begin_with(SNAPSHOT_OF_PAGES).await.map_err(from_sqlx)?;
    let live = backlog::live(&mut tx, namespace, now).await?;
    let rows = sqlx::query(ENDED_SINCE).bind(namespace).bind(since).fetch_all(&mut *tx).await.map_err(from_sqlx)?;
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    let stat = |row: &PgRow| {
        Ok(StatRow {
            subscription: get(row, "subscription")?,
            event_type: get(row, "event_type")?,
            status: get::<String>(row, "status")?.parse()?,
            count: get::<i64>(row, "count")?.unsigned_abs(),
            oldest_at: get(row, "oldest_at")?,
        })
    };
    Ok((live, rows.iter().map(stat).collect::<Result<_>>()?))
}
