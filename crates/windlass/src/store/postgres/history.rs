//! Exporting history to files and importing it from them.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, Executor, PgConnection};

use super::PgStore;
use super::enqueue::{column, signed};
use super::error::from_sqlx;
use super::inspect::{SNAPSHOT, events};
use super::retry::retry_deadlocks;
use super::row::{count, count_or_none, event, get, json};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::Event;
use crate::maintenance::archive::{PastAttempt, PastEvent};
use crate::maintenance::history::{HistoryFilter, ImportTarget, StoredEvent, placeholder_lane_id};
use crate::maintenance::retention::EndedDelivery;
use crate::store::{HistoryStore, Imported};

macro_rules! attempt_columns {
    () => {
        "a.event_id, a.subscription, a.attempt, a.action, a.worker_id, a.picked_at, a.started_at, a.finished_at,
       a.status_code, a.execution_time_ms, a.error_message, a.detail::text AS detail, a.next_retry_at, a.retry_count,
       a.max_retries"
    };
}

fn attempt(row: &PgRow) -> Result<PastAttempt> {
    Ok(PastAttempt {
        subscription: get(row, "subscription")?,
        attempt: count(row, "attempt")?,
        action: get::<String>(row, "action")?.parse()?,
        worker_id: get(row, "worker_id")?,
        picked_at: get(row, "picked_at")?,
        started_at: get(row, "started_at")?,
        finished_at: get(row, "finished_at")?,
        status_code: get(row, "status_code")?,
        execution_time_ms: get::<Option<i64>>(row, "execution_time_ms")?.map(i64::unsigned_abs),
        error_message: get(row, "error_message")?,
        detail: get::<Option<String>>(row, "detail")?.map(json).transpose()?,
        next_retry_at: get(row, "next_retry_at")?,
        retry_count: count(row, "retry_count")?,
        max_retries: count_or_none(row, "max_retries")?,
    })
}

/// The same condition as in `retain.rs`, except for dead letters, which are deleted together with it.
const OVER: &str = concat!(
    "
WITH over AS MATERIALIZED (
    SELECT i.event_id, i.subscription
    FROM unnest($2::bigint[], $3::text[], $4::timestamptz[], $5::boolean[]) AS i(event_id, subscription, at, dead)
    WHERE NOT EXISTS (SELECT FROM windlass.subscriptions s CROSS JOIN LATERAL (
                          SELECT FROM windlass.event_queue q
                          WHERE q.subscription_id = s.subscription_id AND q.event_id BETWEEN i.event_id AND i.event_id
                          ORDER BY q.event_id LIMIT 1) AS q
                      WHERE s.namespace = $1 AND s.subscription = i.subscription)
      AND (i.dead OR NOT EXISTS (
                      SELECT FROM windlass.dead_letters d
                      WHERE d.event_id BETWEEN i.event_id AND i.event_id AND d.namespace = $1
                        AND d.subscription = i.subscription ORDER BY d.event_id OFFSET 0))
      AND NOT EXISTS (SELECT FROM windlass.event_attempts a
                      WHERE a.event_id BETWEEN i.event_id AND i.event_id AND a.namespace = $1
                        AND a.subscription = i.subscription AND a.finished_at > i.at ORDER BY a.event_id OFFSET 0)
)
SELECT over.event_id AS over_id, a.* FROM over LEFT JOIN LATERAL (
    SELECT a.id AS entry, ",
    attempt_columns!(),
    "
    FROM windlass.event_attempts a
    WHERE a.event_id BETWEEN over.event_id AND over.event_id AND a.namespace = $1
      AND a.subscription = over.subscription ORDER BY a.event_id OFFSET 0) AS a ON true"
);

const PAGE: &str = "
SELECT e.id, e.namespace, e.event_type, e.title, e.description, e.tags, e.payload::text AS payload, e.group_id, e.key,
       e.priority, e.producer, e.scheduled_task_id::text AS scheduled_task_id, e.run_at, e.expires_at,
       e.metadata::text AS metadata, e.created_at
FROM windlass.events e
WHERE e.namespace = $1 AND e.id > $2
  AND ($3::timestamptz IS NULL OR e.created_at >= $3) AND ($4::timestamptz IS NULL OR e.created_at < $4)
  AND (cardinality($5::text[]) = 0 OR EXISTS (
        SELECT FROM unnest($5::text[]) AS p
        WHERE e.event_type = p OR (right(p, 1) = '*' AND starts_with(e.event_type, left(p, -1)))))
  AND NOT EXISTS (SELECT FROM windlass.subscriptions s JOIN windlass.event_queue q USING (subscription_id)
                  WHERE s.namespace = $1 AND q.event_id = e.id)
  AND NOT EXISTS (SELECT FROM windlass.dead_letters d WHERE d.event_id = e.id AND d.namespace = $1)
ORDER BY e.id LIMIT $6";

const ATTEMPTS: &str = concat!(
    "SELECT a.id AS entry, ",
    attempt_columns!(),
    " FROM windlass.event_attempts a WHERE a.namespace = $1 AND a.event_id = ANY($2)"
);

const NEWEST: &str = "SELECT coalesce(max(id), 0) FROM windlass.events WHERE namespace = $1";

// An event id belongs to at most one namespace.
const STORED: &str = "
SELECT e.id, e.namespace, e.event_type, e.created_at FROM windlass.namespaces n
CROSS JOIN LATERAL (
    SELECT * FROM windlass.events e WHERE e.namespace = n.namespace AND e.id = ANY($1) OFFSET 0) AS e";

// No unique key spans the partitions, so imports, which bring their own ids, exclude each other with a lock.
const HOLD_IMPORTS: &str = "SELECT pg_advisory_xact_lock($1)";

/// An arbitrary key that no other program should use for an advisory lock.
const IMPORT_LOCK: i64 = 0x0077_696e_696d_706f;

#[async_trait]
impl HistoryStore for PgStore {
    async fn history_of(&self, namespace: &str, due: &[EndedDelivery]) -> Result<Vec<PastEvent>> {
        let mut connection = self.writes.get().await?;
        let query = sqlx::query(OVER)
            .bind(namespace)
            .bind(column(due, |due| due.event_id))
            .bind(column(due, |due| due.subscription.as_str()))
            .bind(column(due, |due| due.at))
            .bind(column(due, |due| due.status.is_some()));
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        let mut attempts: HashMap<i64, Vec<(i64, PastAttempt)>> = HashMap::new();
        for row in &rows {
            let of_event = attempts.entry(get(row, "over_id")?).or_default();
            if let Some(entry) = get::<Option<i64>>(row, "entry")? {
                of_event.push((entry, attempt(row)?));
            }
        }
        let ids: Vec<i64> = attempts.keys().copied().collect();
        let events = events(&mut connection, namespace, &ids).await?;
        connection.done();
        Ok(join(events, attempts))
    }

    async fn history_page(
        &self,
        namespace: &str,
        filter: &HistoryFilter,
        after: i64,
        limit: usize,
    ) -> Result<Vec<PastEvent>> {
        let mut connection = self.reads.get().await?;
        // In one snapshot, an event that ends meanwhile is either complete or not included.
        let mut snapshot = connection.begin_with(SNAPSHOT).await.map_err(from_sqlx)?;
        let query = sqlx::query(PAGE).bind(namespace).bind(after).bind(filter.from).bind(filter.until);
        let query = query.bind(&filter.types).bind(limit as i64);
        let rows = query.fetch_all(&mut *snapshot).await.map_err(from_sqlx)?;
        let events = rows.iter().map(event).collect::<Result<Vec<Event>>>()?;
        let query = sqlx::query(ATTEMPTS).bind(namespace).bind(column(&events, |event| event.id));
        let rows = query.fetch_all(&mut *snapshot).await.map_err(from_sqlx)?;
        snapshot.commit().await.map_err(from_sqlx)?;
        connection.done();
        let mut attempts: HashMap<i64, Vec<(i64, PastAttempt)>> = HashMap::new();
        for row in &rows {
            attempts.entry(get(row, "event_id")?).or_default().push((get(row, "entry")?, attempt(row)?));
        }
        Ok(join(events, attempts))
    }

    async fn newest_event(&self, namespace: &str) -> Result<i64> {
        let mut connection = self.reads.get().await?;
        let newest = sqlx::query_scalar(NEWEST).bind(namespace).fetch_one(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(newest)
    }

    async fn import_history(&self, namespace: &str, events: &[PastEvent]) -> Result<Imported> {
        retry_deadlocks!(async {
            let mut connection = self.reads.get().await?;
            keep_ids_free(&mut connection, events).await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            sqlx::query(HOLD_IMPORTS).bind(IMPORT_LOCK).execute(&mut *tx).await.map_err(from_sqlx)?;
            let query = sqlx::query(STORED).bind(column(events, |past| past.event.id));
            let rows = query.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
            let mut stored = HashMap::new();
            for row in &rows {
                let found = StoredEvent {
                    namespace: get(row, "namespace")?,
                    event_type: get(row, "event_type")?,
                    created_at: get(row, "created_at")?,
                };
                stored.insert(get::<i64>(row, "id")?, found);
            }
            let (mut imported, mut new, mut welcome) = (Imported::default(), Vec::new(), Vec::new());
            for past in events {
                match ImportTarget::of(&past.event, stored.get(&past.event.id)) {
                    ImportTarget::New => {
                        new.push(&past.event);
                        welcome.push(past);
                    }
                    ImportTarget::Known => {
                        imported.known += 1;
                        welcome.push(past);
                    }
                    ImportTarget::IdInUse => imported.clashes.push(past.event.id),
                }
            }
            imported.events = put_events(&mut tx, namespace, &new).await?;
            imported.attempts = put_attempts(&mut tx, namespace, &welcome).await?;
            leave(&mut tx, namespace, &welcome).await?;
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            Ok(imported)
        })
    }
}

fn join(events: Vec<Event>, mut attempts: HashMap<i64, Vec<(i64, PastAttempt)>>) -> Vec<PastEvent> {
    let mut joined: Vec<PastEvent> = Vec::with_capacity(events.len());
    for event in events {
        let mut of_event = attempts.remove(&event.id).unwrap_or_default();
        of_event.sort_by_key(|(entry, _)| *entry);
        joined.push(PastEvent { event, attempts: of_event.into_iter().map(|(_, attempt)| attempt).collect() });
    }
    joined.sort_by_key(|past| past.event.id);
    joined
}

const LAST: &str = "SELECT last_value FROM windlass.events_id_seq";

// Publishers lock the sequence until they commit. ALTER SEQUENCE, even without a change, waits for all of them.
const HOLD_SEQUENCE: &str = "SET LOCAL lock_timeout = '10s'; ALTER SEQUENCE windlass.events_id_seq INCREMENT BY 1";

const MOVE_SEQUENCE: &str =
    "SELECT setval('windlass.events_id_seq', greatest($1, last_value)) FROM windlass.events_id_seq";

/// Makes sure that no future event gets one of these ids.
async fn keep_ids_free(connection: &mut PgConnection, events: &[PastEvent]) -> Result<()> {
    let last: i64 = sqlx::query_scalar(LAST).fetch_one(&mut *connection).await.map_err(from_sqlx)?;
    let largest = events.iter().map(|past| past.event.id).max().unwrap_or_default();
    if largest <= last {
        return Ok(());
    }
    let mut tx = connection.begin().await.map_err(from_sqlx)?;
    tx.execute(HOLD_SEQUENCE).await.map_err(from_sqlx)?;
    sqlx::query(MOVE_SEQUENCE).bind(largest).execute(&mut *tx).await.map_err(from_sqlx)?;
    tx.commit().await.map_err(from_sqlx)
}

const PUT_EVENTS: &str = "
INSERT INTO windlass.events (id, namespace, event_type, title, description, tags, payload, group_id, key, priority,
    producer, scheduled_task_id, run_at, expires_at, metadata, created_at)
SELECT i.id, $1, i.event_type, i.title, i.description, i.tags, i.payload::json, i.group_id, i.key, i.priority, i.producer,
       i.scheduled_task_id::uuid, i.run_at, i.expires_at, i.metadata::json, i.created_at
FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::smallint[], $11::text[], $12::text[], $13::timestamptz[], $14::timestamptz[], $15::text[],
            $16::timestamptz[])
  AS i(id, event_type, title, description, tags, payload, group_id, key, priority, producer, scheduled_task_id, run_at,
       expires_at, metadata, created_at)
ON CONFLICT DO NOTHING";

async fn put_events(connection: &mut PgConnection, namespace: &str, events: &[&Event]) -> Result<u64> {
    let put = sqlx::query(PUT_EVENTS)
        .bind(namespace)
        .bind(column(events, |event| event.id))
        .bind(column(events, |event| event.event_type.as_str()))
        .bind(column(events, |event| event.title.as_deref()))
        .bind(column(events, |event| event.description.as_deref()))
        .bind(column(events, |event| event.tags.as_str()))
        .bind(column(events, |event| event.payload.get()))
        .bind(column(events, |event| event.group_id.as_deref()))
        .bind(column(events, |event| event.key.as_deref()))
        .bind(column(events, |event| event.priority))
        .bind(column(events, |event| event.producer.as_deref()))
        .bind(column(events, |event| event.scheduled_task_id.as_deref()))
        .bind(column(events, |event| event.run_at))
        .bind(column(events, |event| event.expires_at))
        .bind(column(events, |event| event.metadata.as_deref().map(|metadata| metadata.get())))
        .bind(column(events, |event| event.created_at));
    Ok(put.execute(connection).await.map_err(from_sqlx)?.rows_affected())
}

const PUT_ATTEMPTS: &str = "
INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, worker_id, picked_at,
    started_at, finished_at, action, status_code, execution_time_ms, error_message, detail, next_retry_at, retry_count,
    max_retries)
SELECT i.event_id, i.subscription_id, i.event_type, i.attempt, $1, i.subscription, i.worker_id, i.picked_at, i.started_at, i.finished_at, i.action,
       i.status_code, i.execution_time_ms, i.error_message, i.detail::json, i.next_retry_at, i.retry_count, i.max_retries
FROM unnest($2::bigint[], $3::integer[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[],
            $8::timestamptz[], $9::text[], $10::integer[], $11::bigint[], $12::text[], $13::text[], $14::timestamptz[],
            $15::integer[], $16::integer[], $17::bigint[], $18::text[]) WITH ORDINALITY
  AS i(event_id, attempt, subscription, worker_id, picked_at, started_at, finished_at, action, status_code,
       execution_time_ms, error_message, detail, next_retry_at, retry_count, max_retries, subscription_id, event_type, n)
WHERE NOT EXISTS (
    SELECT FROM windlass.event_attempts a
    WHERE a.event_id = i.event_id AND a.namespace = $1 AND a.subscription = i.subscription AND a.attempt = i.attempt
      AND a.action = i.action AND a.finished_at = i.finished_at)
ORDER BY i.n";

async fn put_attempts(connection: &mut PgConnection, namespace: &str, events: &[&PastEvent]) -> Result<u64> {
    let rows: Vec<(&Event, &PastAttempt)> =
        events.iter().flat_map(|past| past.attempts.iter().map(|attempt| (&past.event, attempt))).collect();
    let put = sqlx::query(PUT_ATTEMPTS)
        .bind(namespace)
        .bind(column(&rows, |(event, _)| event.id))
        .bind(column(&rows, |(_, attempt)| signed(attempt.attempt)))
        .bind(column(&rows, |(_, attempt)| attempt.subscription.as_str()))
        .bind(column(&rows, |(_, attempt)| attempt.worker_id.as_deref()))
        .bind(column(&rows, |(_, attempt)| attempt.picked_at))
        .bind(column(&rows, |(_, attempt)| attempt.started_at))
        .bind(column(&rows, |(_, attempt)| attempt.finished_at))
        .bind(column(&rows, |(_, attempt)| attempt.action.as_str()))
        .bind(column(&rows, |(_, attempt)| attempt.status_code))
        .bind(column(&rows, |(_, attempt)| attempt.execution_time_ms.map(|ms| ms as i64)))
        .bind(column(&rows, |(_, attempt)| attempt.error_message.as_deref()))
        .bind(column(&rows, |(_, attempt)| attempt.detail.as_deref().map(|detail| detail.get())))
        .bind(column(&rows, |(_, attempt)| attempt.next_retry_at))
        .bind(column(&rows, |(_, attempt)| signed(attempt.retry_count)))
        .bind(column(&rows, |(_, attempt)| attempt.max_retries.map(signed)))
        .bind(column(&rows, |(_, attempt)| placeholder_lane_id(&attempt.subscription)))
        .bind(column(&rows, |(event, _)| event.event_type.as_str()));
    Ok(put.execute(connection).await.map_err(from_sqlx)?.rows_affected())
}

const LEAVE: &str = "
INSERT INTO windlass.retention_leftovers (event_id, subscription, namespace, since, look_at)
SELECT i.event_id, i.subscription, $1, i.since, i.since
FROM unnest($2::bigint[], $3::text[], $4::timestamptz[]) AS i(event_id, subscription, since)
ON CONFLICT (event_id, subscription, namespace) DO NOTHING";

/// Records imported deliveries as leftovers: retention's walks have already passed them.
async fn leave(connection: &mut PgConnection, namespace: &str, events: &[&PastEvent]) -> Result<()> {
    let ends: Vec<(i64, String, Timestamp)> = events.iter().flat_map(|past| past.delivery_ends()).collect();
    let leave = sqlx::query(LEAVE)
        .bind(namespace)
        .bind(column(&ends, |(event_id, ..)| *event_id))
        .bind(column(&ends, |(_, subscription, _)| subscription.as_str()))
        .bind(column(&ends, |(.., at)| *at));
    leave.execute(connection).await.map_err(from_sqlx).map(drop)
}
