//! One event: where it stands, and what happened to it.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row};

use super::row::{self, INFINITY};
use crate::clock::{Timestamp, from_micros};
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::inspect::{DeliveryView, EventView, LogEntry};
use crate::queue::decide::status_after;
use crate::queue::outcome::Action;

const EXISTS: &str = "SELECT 1 FROM events WHERE id = ?1 AND namespace = ?2";

pub(super) fn exists(conn: &Connection, namespace: &str, event_id: i64) -> Result<bool> {
    Ok(conn.prepare_cached(EXISTS)?.query_row((event_id, namespace), |_| Ok(())).optional()?.is_some())
}

pub(super) fn view(conn: &Connection, namespace: &str, event_id: i64) -> Result<Option<EventView>> {
    let Some(event) = row::event(conn, namespace, event_id)? else { return Ok(None) };
    let deliveries = deliveries(conn, namespace, event_id)?.into_values().collect();
    Ok(Some(EventView { event, deliveries }))
}

type Views = BTreeMap<String, DeliveryView>;

/// How the event stands with each subscription, by its name.
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

/// Each subscription as its newest attempt left it, with its newest error.
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
        status: status_after(row::word(row, 1)?),
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
        updated_at: row::instant(row, 6)?,
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
        picked_at: row::instant_if_any(row, 7)?,
        started_at: row::instant_if_any(row, 8)?,
        lease_expires_at: row::instant_if_any(row, 9)?,
        error_message: None,
        updated_at: row::instant(row, 10)?,
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

/// All that happened, in order. Attempts of one delivery are stored in their order, which the sort
/// keeps where instants are equal.
pub(super) fn log(conn: &Connection, namespace: &str, event_id: i64) -> Result<Vec<LogEntry>> {
    let mut log = Vec::new();
    let mut select = conn.prepare_cached(ATTEMPTS)?;
    let mut rows = select.query((event_id, namespace))?;
    while let Some(row) = rows.next()? {
        begun(event_id, row, &mut log)?;
        log.push(LogEntry {
            status_code: row.get(7)?,
            error_message: row.get(8)?,
            execution_time_ms: row.get::<_, Option<i64>>(9)?.map(i64::unsigned_abs),
            detail: row::json_if_any(row, 10)?,
            ..entry(event_id, row, row::word(row, 6)?, row::instant(row, 5)?)?
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

/// How an attempt began, from the first columns of both selects.
fn begun(event_id: i64, row: &Row, log: &mut Vec<LogEntry>) -> rusqlite::Result<()> {
    for (index, action) in [(3, Action::Picked), (4, Action::Started)] {
        if let Some(at) = row::instant_if_any(row, index)? {
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
