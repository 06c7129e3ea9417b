//! Reading events, their deliveries and their history.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, Rows, params_from_iter};

use super::SqliteStore;
use super::row::{self, INFINITY};
use crate::clock::{Timestamp, from_micros};
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::inspect::{DeliveryView, EventView, ListFilter, LogEntry, Page};
use crate::queue::decide::final_status;
use crate::queue::outcome::Action;
use crate::store::InspectStore;
use crate::topology::lanes::split_tags;
use crate::topology::{MAIN, wants};

#[async_trait]
impl InspectStore for SqliteStore {
    async fn exists(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<bool>> {
        let (namespace, ids) = (namespace.to_owned(), event_ids.to_vec());
        self.read(move |conn| ids.iter().map(|event_id| exists(conn, &namespace, *event_id)).collect()).await
    }

    async fn get(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<Option<EventView>>> {
        let (namespace, ids) = (namespace.to_owned(), event_ids.to_vec());
        self.read(move |conn| ids.iter().map(|event_id| view(conn, &namespace, *event_id)).collect()).await
    }

    async fn log(&self, namespace: &str, event_id: i64) -> Result<Vec<LogEntry>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| log(conn, &namespace, event_id)).await
    }

    async fn list(&self, namespace: &str, filter: &ListFilter) -> Result<Page<EventView>> {
        let (namespace, filter) = (namespace.to_owned(), filter.clone());
        self.read(move |conn| list(conn, &namespace, &filter)).await
    }
}

const EXISTS: &str = "SELECT 1 FROM events WHERE id = ?1 AND namespace = ?2";

fn exists(conn: &Connection, namespace: &str, event_id: i64) -> Result<bool> {
    Ok(conn.prepare_cached(EXISTS)?.query_row((event_id, namespace), |_| Ok(())).optional()?.is_some())
}

fn view(conn: &Connection, namespace: &str, event_id: i64) -> Result<Option<EventView>> {
    let Some(event) = row::event(conn, namespace, event_id)? else { return Ok(None) };
    let deliveries = deliveries(conn, namespace, event_id)?.into_values().collect();
    Ok(Some(EventView { event, deliveries }))
}

type Views = BTreeMap<String, DeliveryView>;

/// The deliveries of the event, by subscription.
pub(super) fn deliveries(conn: &Connection, namespace: &str, event_id: i64) -> Result<Views> {
    let mut deliveries = BTreeMap::new();
    add_ended(conn, namespace, event_id, &mut deliveries)?;
    add_live(conn, namespace, event_id, &mut deliveries)?;
    Ok(deliveries)
}

const ENDED: &str = "
SELECT subscription, action, attempt, retry_count, max_retries, error_message, finished_at
FROM event_attempts INDEXED BY event_attempts_by_event
WHERE event_id = ?1 AND namespace = ?2 ORDER BY rowid";

/// Adds the newest attempt of each subscription, with its newest error.
fn add_ended(conn: &Connection, namespace: &str, event_id: i64, views: &mut Views) -> Result<()> {
    let mut select = conn.prepare_cached(ENDED)?;
    let mut rows = select.query((event_id, namespace))?;
    while let Some(row) = rows.next()? {
        let mut view = ended(row)?;
        let before = views.remove(&view.subscription);
        view.error_message = view.error_message.or(before.and_then(|before| before.error_message));
        views.insert(view.subscription.clone(), view);
    }
    Ok(())
}

fn ended(row: &Row) -> rusqlite::Result<DeliveryView> {
    Ok(DeliveryView {
        subscription: row.get(0)?,
        status: final_status(row::parse_text(row, 1)?),
        attempts: row.get(2)?,
        retry_count: row.get(3)?,
        max_retries: row.get(4)?,
        ready_at: None,
        next_retry_at: None,
        worker_id: None,
        picked_at: None,
        started_at: None,
        lease_expires_at: None,
        error_message: row.get(5)?,
        updated_at: row::timestamp(row, 6)?,
    })
}

const LIVE: &str = "
SELECT q.subscription, q.lease IS NOT NULL, q.attempts, q.retry_count, q.max_retries, q.ready_at, q.worker_id, q.picked_at,
       q.started_at, q.lease_expires_at, q.updated_at
FROM subscriptions s CROSS JOIN event_queue q ON q.subscription_id = s.subscription_id AND q.event_id = ?1
WHERE s.namespace = ?2";

fn add_live(conn: &Connection, namespace: &str, event_id: i64, views: &mut Views) -> Result<()> {
    let mut select = conn.prepare_cached(LIVE)?;
    let mut rows = select.query((event_id, namespace))?;
    while let Some(row) = rows.next()? {
        let mut view = live(row)?;
        view.error_message = views.remove(&view.subscription).and_then(|before| before.error_message);
        views.insert(view.subscription.clone(), view);
    }
    Ok(())
}

fn live(row: &Row) -> rusqlite::Result<DeliveryView> {
    let (held, retry_count): (bool, u32) = (row.get(1)?, row.get(3)?);
    let ready_at = Some(row.get(5)?).filter(|ready_at| !held && *ready_at != INFINITY).map(from_micros);
    Ok(DeliveryView {
        subscription: row.get(0)?,
        status: if held { Status::Processing } else { Status::Pending },
        attempts: row.get(2)?,
        retry_count,
        max_retries: row.get(4)?,
        ready_at,
        next_retry_at: ready_at.filter(|_| retry_count > 0),
        worker_id: row.get(6)?,
        picked_at: row::timestamp_or_null(row, 7)?,
        started_at: row::timestamp_or_null(row, 8)?,
        lease_expires_at: row::timestamp_or_null(row, 9)?,
        error_message: None,
        updated_at: row::timestamp(row, 10)?,
    })
}

const ATTEMPTS: &str = "
SELECT subscription, attempt, worker_id, picked_at, started_at, finished_at, action, status_code, error_message,
       execution_time_ms, detail
FROM event_attempts INDEXED BY event_attempts_by_event
WHERE event_id = ?1 AND namespace = ?2 ORDER BY rowid";

const RUNNING: &str = "
SELECT q.subscription, q.attempts, q.worker_id, q.picked_at, q.started_at
FROM subscriptions s CROSS JOIN event_queue q ON q.subscription_id = s.subscription_id AND q.event_id = ?1
WHERE s.namespace = ?2 AND q.lease IS NOT NULL";

/// All log entries in order. Attempts of one delivery are stored in order, and the sort is stable for equal times.
fn log(conn: &Connection, namespace: &str, event_id: i64) -> Result<Vec<LogEntry>> {
    let mut log = Vec::new();
    let mut select = conn.prepare_cached(ATTEMPTS)?;
    let mut rows = select.query((event_id, namespace))?;
    while let Some(row) = rows.next()? {
        begun(event_id, row, &mut log)?;
        log.push(LogEntry {
            status_code: row.get(7)?,
            error_message: row.get(8)?,
            execution_time_ms: row.get::<_, Option<i64>>(9)?.map(i64::unsigned_abs),
            detail: row::json_or_null(row, 10)?,
            ..entry(event_id, row, row::parse_text(row, 6)?, row::timestamp(row, 5)?)?
        });
    }
    let mut select = conn.prepare_cached(RUNNING)?;
    let mut rows = select.query((event_id, namespace))?;
    while let Some(row) = rows.next()? {
        begun(event_id, row, &mut log)?;
    }
    log.sort_by_key(|entry| entry.created_at);
    Ok(log)
}

/// Adds the entries for claim and start, from the first columns of both statements.
fn begun(event_id: i64, row: &Row, log: &mut Vec<LogEntry>) -> rusqlite::Result<()> {
    for (index, action) in [(3, Action::Picked), (4, Action::Started)] {
        if let Some(at) = row::timestamp_or_null(row, index)? {
            log.push(entry(event_id, row, action, at)?);
        }
    }
    Ok(())
}

fn entry(event_id: i64, row: &Row, action: Action, created_at: Timestamp) -> rusqlite::Result<LogEntry> {
    Ok(LogEntry {
        id: 0,
        event_id,
        subscription: row.get(0)?,
        attempt: row.get(1)?,
        worker_id: row.get(2)?,
        action,
        status_code: None,
        error_message: None,
        execution_time_ms: None,
        detail: None,
        created_at,
    })
}

/// The statements that count and list the events in some state, newest first. The parameters are namespace,
/// subscription, status, limit and offset, as far as they are needed.
struct Source {
    total: &'static str,
    ids: &'static str,
}

const LIST_ALL: Source = Source {
    total: "SELECT count(*) FROM events WHERE namespace = ?1",
    ids: "SELECT id FROM events INDEXED BY events_by_namespace WHERE namespace = ?1
          ORDER BY id DESC LIMIT ?4 OFFSET ?5",
};

/// For a subscription other than `main`, which gets every event. A dead letter has an attempt.
const LIST_DELIVERED: Source = Source {
    total: "SELECT count(*) FROM events e WHERE namespace = ?1
            AND (EXISTS (SELECT 1 FROM event_queue WHERE event_id = e.id AND subscription_id =
                         (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?2))
              OR EXISTS (SELECT 1 FROM event_attempts WHERE event_id = e.id AND subscription = ?2))",
    ids: "SELECT id FROM events e INDEXED BY events_by_namespace WHERE namespace = ?1
          AND (EXISTS (SELECT 1 FROM event_queue WHERE event_id = e.id AND subscription_id =
                       (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?2))
            OR EXISTS (SELECT 1 FROM event_attempts WHERE event_id = e.id AND subscription = ?2))
          ORDER BY id DESC LIMIT ?4 OFFSET ?5",
};

/// Counted in the index of lanes, listed by primary key.
const LIST_PENDING: Source = Source {
    total:
        "SELECT count(*) FROM subscriptions s CROSS JOIN lanes l CROSS JOIN event_queue q INDEXED BY event_queue_lane
            WHERE s.namespace = ?1 AND s.subscription = ?2 AND l.subscription_id = s.subscription_id
              AND q.lane_id = l.lane_id AND q.lease IS NULL",
    ids: "SELECT q.event_id FROM event_queue q
          WHERE q.subscription_id =
                (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?2)
            AND q.lease IS NULL
          ORDER BY q.event_id DESC LIMIT ?4 OFFSET ?5",
};

const LIST_PROCESSING: Source = Source {
    total: "SELECT count(*) FROM event_queue q INDEXED BY event_queue_leased
            WHERE q.subscription_id =
                  (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?2)
              AND q.lease IS NOT NULL",
    ids: "SELECT q.event_id FROM event_queue q INDEXED BY event_queue_leased
          WHERE q.subscription_id =
                (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?2)
            AND q.lease IS NOT NULL
          ORDER BY q.event_id DESC LIMIT ?4 OFFSET ?5",
};

const LIST_DEAD: Source = Source {
    total: "SELECT count(*) FROM dead_letters INDEXED BY dead_letters_by_event
            WHERE namespace = ?1 AND subscription = ?2 AND status = ?3",
    ids: "SELECT event_id FROM dead_letters INDEXED BY dead_letters_by_event
          WHERE namespace = ?1 AND subscription = ?2 AND status = ?3
          ORDER BY event_id DESC LIMIT ?4 OFFSET ?5",
};

/// No delivery ends twice in one of these states.
const LIST_ENDED: Source = Source {
    total: "SELECT count(*) FROM event_attempts WHERE namespace = ?1 AND subscription = ?2 AND action = ?3",
    ids: "SELECT event_id FROM event_attempts WHERE namespace = ?1 AND subscription = ?2 AND action = ?3
          ORDER BY event_id DESC LIMIT ?4 OFFSET ?5",
};

fn list(conn: &Connection, namespace: &str, filter: &ListFilter) -> Result<Page<EventView>> {
    let subscription = filter.subscription.as_deref().unwrap_or(MAIN);
    let source = match filter.status {
        None if subscription == MAIN => LIST_ALL,
        None => LIST_DELIVERED,
        Some(Status::Pending) => LIST_PENDING,
        Some(Status::Processing) => LIST_PROCESSING,
        Some(Status::Failed | Status::Expired) => LIST_DEAD,
        Some(Status::Completed | Status::CompletedWithErrors | Status::Cancelled) => LIST_ENDED,
    };
    let status = filter.status.map_or("", Status::as_str);
    let scope = [namespace, subscription, status].map(|text| Value::Text(text.to_owned()));
    let plain = filter.types.is_empty() && filter.tags.is_empty();
    let (ids, total) =
        if plain { page(conn, &source, &scope, filter)? } else { matching(conn, &source, &scope, filter)? };
    let mut items = Vec::with_capacity(ids.len());
    for event_id in ids {
        items.extend(view(conn, namespace, event_id)?);
    }
    Ok(Page { items, total })
}

fn page(conn: &Connection, source: &Source, scope: &[Value], filter: &ListFilter) -> Result<(Vec<i64>, u64)> {
    let mut count = conn.prepare_cached(source.total)?;
    let total = match query(&mut count, scope.to_vec())?.next()? {
        Some(row) => row::count(row, 0)?,
        None => 0,
    };
    let mut select = conn.prepare_cached(source.ids)?;
    let rows = query(&mut select, within(scope, filter.limit as i64, filter.offset as i64))?;
    Ok((rows.mapped(|row| row.get(0)).collect::<rusqlite::Result<_>>()?, total))
}

const KIND: &str = "SELECT event_type, tags FROM events WHERE id = ?1";

/// Reads all rows, because no index has types and tags.
fn matching(conn: &Connection, source: &Source, scope: &[Value], filter: &ListFilter) -> Result<(Vec<i64>, u64)> {
    let mut kind = conn.prepare_cached(KIND)?;
    let mut select = conn.prepare_cached(source.ids)?;
    let mut rows = query(&mut select, within(scope, -1, 0))?;
    let (mut ids, mut total, mut known) = (Vec::new(), 0, Kinds::new());
    while let Some(row) = rows.next()? {
        let event_id: i64 = row.get(0)?;
        let wanted = kind.query_row([event_id], |row| {
            Ok(is_wanted(filter, &mut known, row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?))
        });
        if wanted.optional()? == Some(true) {
            if total >= filter.offset as u64 && ids.len() < filter.limit {
                ids.push(event_id);
            }
            total += 1;
        }
    }
    Ok((ids, total))
}

/// A cache of filter results by type and tags as stored: many events share few combinations.
type Kinds = HashMap<String, HashMap<String, bool>>;

fn is_wanted(filter: &ListFilter, known: &mut Kinds, event_type: &str, sent: &str) -> bool {
    if let Some(wanted) = known.get(event_type).and_then(|of_type| of_type.get(sent)) {
        return *wanted;
    }
    let tags: Vec<String> = split_tags(sent).iter().map(|tag| tag.trim().to_owned()).collect();
    let wanted = wants(&filter.types, &filter.tags, event_type, &tags);
    if known.len() < KINDS_MAX {
        known.entry(event_type.to_owned()).or_default().insert(sent.to_owned(), wanted);
    }
    wanted
}

/// The maximum number of cached types.
const KINDS_MAX: usize = 10_000;

fn within(scope: &[Value], limit: i64, offset: i64) -> Vec<Value> {
    scope.iter().cloned().chain([Value::Integer(limit), Value::Integer(offset)]).collect()
}

/// Binds only as many values as the statement has parameters.
fn query<'a>(statement: &'a mut CachedStatement<'_>, mut values: Vec<Value>) -> Result<Rows<'a>> {
    values.truncate(statement.parameter_count());
    Ok(statement.query(params_from_iter(values))?)
}
