//! Exporting history to files and importing it from them.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::value::RawValue;

use super::error::from_json;
use super::{SqliteStore, row};
use crate::error::Result;
use crate::event::Event;
use crate::maintenance::archive::{PastAttempt, PastEvent};
use crate::maintenance::history::{HistoryFilter, ImportTarget, StoredEvent, placeholder_lane_id};
use crate::maintenance::retention::EndedDelivery;
use crate::store::{HistoryStore, Imported};

const NEWEST: &str = "SELECT coalesce(max(id), 0) FROM events INDEXED BY events_by_namespace WHERE namespace = ?1";

/// Patterns are compared by length, not with LIKE or GLOB: types may contain `%`, `_`, `?` and `[`.
const PAGE: &str = "
SELECT e.id FROM events e INDEXED BY events_by_namespace
WHERE e.namespace = ?1 AND e.id > ?2 AND (?3 IS NULL OR e.created_at >= ?3) AND (?4 IS NULL OR e.created_at < ?4)
  AND (?5 IS NULL OR EXISTS (
      SELECT 1 FROM json_each(?5) p WHERE e.event_type = p.value OR (substr(p.value, -1) = '*'
          AND substr(p.value, 1, length(p.value) - 1) = substr(e.event_type, 1, length(p.value) - 1))))
  AND NOT EXISTS (SELECT 1 FROM subscriptions s
                  CROSS JOIN event_queue q ON q.subscription_id = s.subscription_id AND q.event_id = e.id
                  WHERE s.namespace = ?1)
  AND NOT EXISTS (SELECT 1 FROM dead_letters d WHERE d.event_id = e.id)
ORDER BY e.id LIMIT ?6";

#[async_trait]
impl HistoryStore for SqliteStore {
    async fn history_of(&self, namespace: &str, due: &[EndedDelivery]) -> Result<Vec<PastEvent>> {
        let (namespace, due) = (namespace.to_owned(), due.to_vec());
        self.read(move |conn| history_of(conn, &namespace, &due)).await
    }

    async fn history_page(
        &self,
        namespace: &str,
        filter: &HistoryFilter,
        after: i64,
        limit: usize,
    ) -> Result<Vec<PastEvent>> {
        let (namespace, filter) = (namespace.to_owned(), filter.clone());
        self.read(move |conn| {
            let types = serde_json::to_string(&filter.types).map_err(from_json)?;
            let types = (!filter.types.is_empty()).then_some(types);
            let mut select = conn.prepare_cached(PAGE)?;
            let (from, until) = (row::micros(filter.from), row::micros(filter.until));
            let ids = select.query_map((&namespace, after, from, until, types, limit as i64), |row| row.get(0))?;
            let mut page = Vec::new();
            for event_id in ids.collect::<rusqlite::Result<Vec<i64>>>()? {
                if let Some(event) = row::event(conn, &namespace, event_id)? {
                    page.push(PastEvent { event, attempts: attempts(conn, event_id, None)? });
                }
            }
            Ok(page)
        })
        .await
    }

    async fn newest_event(&self, namespace: &str) -> Result<i64> {
        let namespace = namespace.to_owned();
        self.read(move |conn| Ok(conn.prepare_cached(NEWEST)?.query_row([&namespace], |row| row.get(0))?)).await
    }

    async fn import_history(&self, namespace: &str, events: &[PastEvent]) -> Result<Imported> {
        let (namespace, events) = (namespace.to_owned(), events.to_vec());
        self.write(None, move |conn, _| import(conn, &namespace, &events)).await
    }
}

/// The same condition as in `retain.rs`, except for dead letters, which are deleted together with it.
const IS_OVER: &str = "
SELECT NOT EXISTS (SELECT 1 FROM event_queue WHERE event_id = ?1 AND subscription_id =
                   (SELECT subscription_id FROM subscriptions WHERE namespace = ?5 AND subscription = ?2))
   AND (?4 OR NOT EXISTS (SELECT 1 FROM dead_letters WHERE event_id = ?1 AND subscription = ?2))
   AND NOT EXISTS (SELECT 1 FROM event_attempts INDEXED BY event_attempts_by_event
                   WHERE event_id = ?1 AND subscription = ?2 AND finished_at > ?3)";

fn history_of(conn: &Connection, namespace: &str, due: &[EndedDelivery]) -> Result<Vec<PastEvent>> {
    let mut found: Vec<PastEvent> = Vec::new();
    for due in due {
        let over = (due.event_id, &due.subscription, due.at.timestamp_micros(), due.status.is_some(), namespace);
        if !conn.prepare_cached(IS_OVER)?.query_row(over, |row| row.get(0))? {
            continue;
        }
        let attempts = attempts(conn, due.event_id, Some(&due.subscription))?;
        // The due deliveries are in the order of their events.
        match found.last_mut().filter(|last| last.event.id == due.event_id) {
            Some(last) => last.attempts.extend(attempts),
            None => {
                let event = row::event(conn, namespace, due.event_id)?;
                found.extend(event.map(|event| PastEvent { event, attempts }));
            }
        }
    }
    Ok(found)
}

const ATTEMPTS: &str = "
SELECT subscription, attempt, action, worker_id, picked_at, started_at, finished_at, status_code, execution_time_ms,
       error_message, detail, next_retry_at, retry_count, max_retries
FROM event_attempts INDEXED BY event_attempts_by_event
WHERE event_id = ?1 AND (?2 IS NULL OR subscription = ?2) ORDER BY rowid";

fn attempts(conn: &Connection, event_id: i64, subscription: Option<&str>) -> Result<Vec<PastAttempt>> {
    let mut select = conn.prepare_cached(ATTEMPTS)?;
    let attempts = select.query_map((event_id, subscription), attempt)?;
    Ok(attempts.collect::<rusqlite::Result<_>>()?)
}

fn attempt(row: &Row) -> rusqlite::Result<PastAttempt> {
    Ok(PastAttempt {
        subscription: row.get(0)?,
        attempt: row.get(1)?,
        action: row::parse_text(row, 2)?,
        worker_id: row.get(3)?,
        picked_at: row::timestamp_or_null(row, 4)?,
        started_at: row::timestamp_or_null(row, 5)?,
        finished_at: row::timestamp(row, 6)?,
        status_code: row.get(7)?,
        execution_time_ms: row.get::<_, Option<i64>>(8)?.map(i64::unsigned_abs),
        error_message: row.get(9)?,
        detail: row::json_or_null(row, 10)?,
        next_retry_at: row::timestamp_or_null(row, 11)?,
        retry_count: row.get(12)?,
        max_retries: row.get(13)?,
    })
}

const STORED: &str = "SELECT namespace, event_type, created_at FROM events WHERE id = ?1";

fn import(conn: &Connection, namespace: &str, events: &[PastEvent]) -> Result<Imported> {
    let mut imported = Imported::default();
    for past in events {
        let stored = conn.prepare_cached(STORED)?.query_row([past.event.id], |row| {
            Ok(StoredEvent { namespace: row.get(0)?, event_type: row.get(1)?, created_at: row::timestamp(row, 2)? })
        });
        match ImportTarget::of(&past.event, stored.optional()?.as_ref()) {
            ImportTarget::New => {
                put_event(conn, namespace, &past.event)?;
                imported.events += 1;
            }
            ImportTarget::Known => imported.known += 1,
            ImportTarget::IdInUse => {
                imported.clashes.push(past.event.id);
                continue;
            }
        }
        imported.attempts += put_attempts(conn, namespace, past)?;
        for (event_id, subscription, at) in past.delivery_ends() {
            conn.prepare_cached(LEAVE)?.execute((event_id, subscription, namespace, at.timestamp_micros()))?;
        }
    }
    Ok(imported)
}

/// Records imported deliveries as leftovers: retention's walks have already passed them.
const LEAVE: &str = "
INSERT INTO retention_leftovers (event_id, subscription, namespace, since, look_at) VALUES (?1, ?2, ?3, ?4, ?4)
ON CONFLICT DO NOTHING";

const PUT_EVENT: &str = "
INSERT INTO events (id, namespace, event_type, title, description, tags, payload, group_id, key, priority, producer,
                    scheduled_task_id, run_at, expires_at, metadata, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";

fn put_event(conn: &Connection, namespace: &str, event: &Event) -> Result<()> {
    conn.prepare_cached(PUT_EVENT)?.execute(params![
        event.id,
        namespace,
        event.event_type,
        event.title,
        event.description,
        event.tags,
        event.payload.get(),
        event.group_id,
        event.key,
        event.priority,
        event.producer,
        event.scheduled_task_id,
        row::micros(event.run_at),
        row::micros(event.expires_at),
        event.metadata.as_deref().map(RawValue::get),
        event.created_at.timestamp_micros(),
    ])?;
    Ok(())
}

const IS_THERE: &str = "
SELECT EXISTS (SELECT 1 FROM event_attempts INDEXED BY event_attempts_by_event
               WHERE event_id = ?1 AND subscription = ?2 AND attempt = ?3 AND action = ?4 AND finished_at = ?5)";

/// Rows are in the order of time, so imported rows go before all others.
const FIRST: &str = "SELECT min(coalesce(min(rowid), 0), 0) FROM event_attempts";

const PUT_ATTEMPT: &str = "
INSERT INTO event_attempts (rowid, event_id, subscription_id, attempt, namespace, subscription, event_type, worker_id,
                            picked_at, started_at, finished_at, action, status_code, execution_time_ms, error_message,
                            detail, next_retry_at, retry_count, max_retries)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";

fn put_attempts(conn: &Connection, namespace: &str, past: &PastEvent) -> Result<u64> {
    let event_id = past.event.id;
    let first: i64 = conn.prepare_cached(FIRST)?.query_row([], |row| row.get(0))?;
    let mut rowid = first.saturating_sub(past.attempts.len() as i64);
    let mut put = 0;
    for attempt in &past.attempts {
        let (action, finished_at) = (attempt.action.as_str(), attempt.finished_at.timestamp_micros());
        let key = (event_id, &attempt.subscription, attempt.attempt, action, finished_at);
        if conn.prepare_cached(IS_THERE)?.query_row(key, |row| row.get(0))? {
            continue;
        }
        conn.prepare_cached(PUT_ATTEMPT)?.execute(params![
            rowid,
            event_id,
            placeholder_lane_id(&attempt.subscription),
            attempt.attempt,
            namespace,
            attempt.subscription,
            past.event.event_type,
            attempt.worker_id,
            row::micros(attempt.picked_at),
            row::micros(attempt.started_at),
            finished_at,
            action,
            attempt.status_code,
            attempt.execution_time_ms.map(|ms| ms as i64),
            attempt.error_message,
            attempt.detail.as_deref().map(RawValue::get),
            row::micros(attempt.next_retry_at),
            attempt.retry_count,
            attempt.max_retries,
        ])?;
        (rowid, put) = (rowid + 1, put + 1);
    }
    Ok(put)
}
