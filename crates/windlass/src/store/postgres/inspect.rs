//! Reading events, their deliveries and their history. These statements may be large; they run on connections with the
//! planner's usual settings.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection};

use super::PgStore;
use super::error::from_sqlx;
use super::row::{count, count_or_none, event, get, json};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::Event;
use crate::event::delivery::Status;
use crate::observe::inspect::{DeliveryView, EventView, ListFilter, LogEntry, Page};
use crate::queue::decide::final_status;
use crate::store::InspectStore;
use crate::topology::MAIN;

const EXISTS: &str = "
SELECT EXISTS (SELECT FROM windlass.events e WHERE e.namespace = $1 AND e.id = i.id)
FROM unnest($2::bigint[]) WITH ORDINALITY AS i(id, n) ORDER BY i.n";

const EVENTS: &str = "
SELECT id, namespace, event_type, title, description, tags, payload::text AS payload, group_id, key, priority,
       producer, scheduled_task_id::text AS scheduled_task_id, run_at, expires_at, metadata::text AS metadata, created_at
FROM windlass.events WHERE namespace = $1 AND id = ANY($2)";

const LIVE: &str = "
SELECT q.event_id, q.subscription, q.lease IS NOT NULL AS held, q.attempts, q.retry_count, q.max_retries,
       nullif(q.ready_at, 'infinity') AS ready_at, q.worker_id, q.picked_at, q.started_at, q.lease_expires_at, q.updated_at,
       (SELECT a.error_message FROM windlass.event_attempts a
        WHERE a.event_id = q.event_id AND a.subscription_id = q.subscription_id AND a.namespace = $1
          AND a.error_message IS NOT NULL
        ORDER BY a.id DESC LIMIT 1) AS error_message
FROM windlass.subscriptions s JOIN windlass.event_queue q ON q.subscription_id = s.subscription_id
WHERE s.namespace = $1 AND q.event_id = ANY($2)";

// The newest attempt of each delivery that has left the queue.
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

// In one snapshot, a delivery that ends meanwhile is shown once, and one that is redriven is not missed. The tables are
// locked before the snapshot is taken: an older snapshot would not see the rows that dropping a month has moved.
pub(super) const SNAPSHOT: &str = "
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
LOCK TABLE windlass.events, windlass.event_attempts IN ACCESS SHARE MODE";

const LOG: &str = "
SELECT l.event_id, l.subscription, l.attempt, l.worker_id, l.action, l.status_code, l.error_message,
       l.execution_time_ms, l.created_at, a.detail::text AS detail
FROM windlass.event_log l
LEFT JOIN windlass.event_attempts a
       ON l.step = 2 AND a.namespace = $1 AND a.event_id = $2 AND a.id = l.entry
WHERE l.namespace = $1 AND l.event_id = $2 ORDER BY l.created_at, l.entry, l.step";

/// The statements that count and list the events in some state, newest first. They bind namespace, subscription,
/// status, types and tags; the list also limit and offset.
struct Source {
    total: &'static str,
    ids: &'static str,
}

macro_rules! source {
    ($id:literal, $($from:expr),+) => {
        Source {
            total: concat!("SELECT count(*) AS total FROM ", $($from),+),
            ids: concat!("SELECT ", $id, " AS id FROM ", $($from),+, " ORDER BY 1 DESC LIMIT $6 OFFSET $7"),
        }
    };
}

/// Gives unused parameters a type.
macro_rules! unused {
    () => {
        " AND $2::text IS NOT NULL AND ($3::text IS NULL OR true) AND $4::text[] IS NOT NULL AND $5::text[] IS NOT NULL"
    };
}

/// For events: type and tags are in the row.
macro_rules! of_kind {
    () => {
        " AND ($3::text IS NULL OR true)
  AND (cardinality($4::text[]) = 0 OR EXISTS (
        SELECT FROM unnest($4::text[]) AS p
        WHERE e.event_type = p OR (right(p, 1) = '*' AND starts_with(e.event_type, left(p, -1)))))
  AND (cardinality($5::text[]) = 0 OR regexp_split_to_array(btrim(e.tags, E' \\t\\n\\f\\r'), '\\s*,\\s*') && $5::text[])"
    };
}

/// For pending and processing deliveries: type and tags are in the lane.
macro_rules! lanes {
    () => {
        "(
        SELECT l.lane_id FROM windlass.lanes l
        WHERE l.namespace = $1 AND l.subscription = $2
          AND (cardinality($4::text[]) = 0 OR EXISTS (
                SELECT FROM unnest($4::text[]) AS p
                WHERE l.event_type = p OR (right(p, 1) = '*' AND starts_with(l.event_type, left(p, -1)))))
          AND (cardinality($5::text[]) = 0 OR string_to_array(l.tags, ',') && $5::text[]))"
    };
}

/// For finished deliveries: the type is in the row, the tags are in the event.
macro_rules! of_finished {
    () => {
        " AND (cardinality($4::text[]) = 0 OR EXISTS (
        SELECT FROM unnest($4::text[]) AS p
        WHERE d.event_type = p OR (right(p, 1) = '*' AND starts_with(d.event_type, left(p, -1)))))
  AND (cardinality($5::text[]) = 0 OR EXISTS (
        SELECT FROM windlass.events e
        WHERE e.namespace = $1 AND e.id = d.event_id
          AND regexp_split_to_array(btrim(e.tags, E' \\t\\n\\f\\r'), '\\s*,\\s*') && $5::text[]))"
    };
}

/// Answered by the index alone.
const LIST_ALL: Source = source!("e.id", "windlass.events e WHERE e.namespace = $1", unused!());

const LIST_MATCHING: Source =
    source!("e.id", "windlass.events e WHERE e.namespace = $1 AND $2::text IS NOT NULL", of_kind!());

/// For a subscription other than `main`, which gets every event. A dead letter has an attempt.
const LIST_DELIVERED: Source = source!(
    "e.id",
    "windlass.events e WHERE e.namespace = $1
  AND (EXISTS (SELECT FROM windlass.event_queue q
               WHERE q.subscription_id = (SELECT s.subscription_id FROM windlass.subscriptions s
                                          WHERE s.namespace = $1 AND s.subscription = $2) AND q.event_id = e.id)
       OR EXISTS (SELECT FROM windlass.event_attempts a
                  WHERE a.event_id = e.id AND a.namespace = $1 AND a.subscription = $2))",
    of_kind!()
);

/// Always by lanes: other namespaces may have any number of deliveries.
const LIST_LIVE: Source = source!(
    "event_id",
    "windlass.event_queue WHERE namespace = $1 AND subscription = $2 AND (lease IS NULL) = ($3 = 'PENDING')
      AND lane_id = ANY(ARRAY",
    lanes!(),
    ")"
);

const LIST_DEAD: Source = source!(
    "event_id",
    "windlass.dead_letters d WHERE d.namespace = $1 AND d.subscription = $2 AND d.status = $3",
    of_finished!()
);

/// No delivery ends twice in one of these states.
const LIST_ENDED: Source = source!(
    "event_id",
    "windlass.event_attempts d WHERE d.namespace = $1 AND d.subscription = $2 AND d.action = $3",
    of_finished!()
);

#[async_trait]
impl InspectStore for PgStore {
    async fn exists(&self, namespace: &str, ids: &[i64]) -> Result<Vec<bool>> {
        let mut connection = self.reads.get().await?;
        let query = sqlx::query_scalar(EXISTS).bind(namespace).bind(ids);
        let there = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(there)
    }

    async fn get(&self, namespace: &str, ids: &[i64]) -> Result<Vec<Option<EventView>>> {
        let mut connection = self.reads.get().await?;
        let mut snapshot = connection.begin_with(SNAPSHOT).await.map_err(from_sqlx)?;
        let views = views(&mut snapshot, namespace, ids).await?;
        snapshot.commit().await.map_err(from_sqlx)?;
        connection.done();
        Ok(views)
    }

    async fn log(&self, namespace: &str, event_id: i64) -> Result<Vec<LogEntry>> {
        let mut connection = self.reads.get().await?;
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

    async fn list(&self, namespace: &str, filter: &ListFilter) -> Result<Page<EventView>> {
        let subscription = filter.subscription.as_deref().unwrap_or(MAIN);
        let source = source(filter, subscription);
        let query = |sql| {
            let query = sqlx::query(sql).bind(namespace).bind(subscription).bind(filter.status.map(Status::as_str));
            query.bind(&filter.types).bind(&filter.tags)
        };
        let mut connection = self.reads.get().await?;
        let mut snapshot = connection.begin_with(SNAPSHOT).await.map_err(from_sqlx)?;
        let ids = query(source.ids).bind(filter.limit as i64).bind(filter.offset as i64);
        let ids = ids.fetch_all(&mut *snapshot).await.map_err(from_sqlx)?;
        let ids = ids.iter().map(|row| get(row, "id")).collect::<Result<Vec<i64>>>()?;
        let total = query(source.total).fetch_one(&mut *snapshot).await.map_err(from_sqlx)?;
        let items = views(&mut snapshot, namespace, &ids).await?.into_iter().flatten().collect();
        snapshot.commit().await.map_err(from_sqlx)?;
        connection.done();
        Ok(Page { items, total: get::<i64>(&total, "total")?.unsigned_abs() })
    }
}

pub(super) async fn events(connection: &mut PgConnection, namespace: &str, ids: &[i64]) -> Result<Vec<Event>> {
    let query = sqlx::query(EVENTS).bind(namespace).bind(ids);
    query.fetch_all(connection).await.map_err(from_sqlx)?.iter().map(event).collect()
}

async fn views(connection: &mut PgConnection, namespace: &str, ids: &[i64]) -> Result<Vec<Option<EventView>>> {
    let events = events(connection, namespace, ids).await?;
    let mut deliveries = deliveries(connection, namespace, ids).await?;
    let mut views: HashMap<i64, EventView> = HashMap::new();
    for event in events {
        let deliveries = deliveries.remove(&event.id).unwrap_or_default();
        views.insert(event.id, EventView { event, deliveries });
    }
    Ok(ids.iter().map(|id| views.remove(id)).collect())
}

/// The deliveries of the events, ordered by subscription.
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
        status: final_status(get::<String>(row, "action")?.parse()?),
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

fn source(filter: &ListFilter, subscription: &str) -> Source {
    let of_any_kind = filter.types.is_empty() && filter.tags.is_empty();
    match filter.status {
        None if subscription == MAIN && of_any_kind => LIST_ALL,
        None if subscription == MAIN => LIST_MATCHING,
        None => LIST_DELIVERED,
        Some(Status::Pending | Status::Processing) => LIST_LIVE,
        Some(Status::Failed | Status::Expired) => LIST_DEAD,
        Some(Status::Completed | Status::CompletedWithErrors | Status::Cancelled) => LIST_ENDED,
    }
}
