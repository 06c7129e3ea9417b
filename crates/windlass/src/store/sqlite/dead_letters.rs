//! Dead letters: listing, redriving and purging them.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use super::attempts::{self, EndedAttempt};
use super::enqueue::{Entry, enqueue};
use super::error::from_json;
use super::lanes::existing_lane;
use super::{SqliteStore, results, row};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::Event;
use crate::observe::inspect::{DeadLetter, DeadLetterFilter, DeadLetterGroup, Page};
use crate::queue::handler_results::Clear;
use crate::queue::outcome::Action;
use crate::store::{DeadLetterStore, NewDelivery};

/// Patterns are compared by length, not with LIKE or GLOB: types may contain `%`, `_`, `?` and `[`.
macro_rules! matching {
    ($columns:literal, $meant:literal, $reason:literal, $rest:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM dead_letters ",
            $meant,
            " AND (?3 IS NULL OR subscription = ?3) AND (?4 IS NULL OR status = ?4) AND ",
            $reason,
            " AND (?6 IS NULL OR failed_at < ?6)
              AND (?7 IS NULL OR EXISTS (
                  SELECT 1 FROM json_each(?7) p WHERE event_type = p.value OR (substr(p.value, -1) = '*'
                      AND substr(p.value, 1, length(p.value) - 1) = substr(event_type, 1, length(p.value) - 1)))) ",
            $rest
        )
    };
    ($columns:literal, $meant:literal, $rest:literal) => {
        matching!($columns, $meant, "(?5 IS NULL OR reason = ?5)", $rest)
    };
}

macro_rules! source {
    ($meant:literal) => {
        Source {
            total: matching!("count(*)", $meant, ""),
            newest: matching!(
                "event_id, subscription_id",
                $meant,
                "ORDER BY failed_at DESC, event_id DESC LIMIT ?8 OFFSET ?9"
            ),
            oldest: matching!("event_id, subscription_id", $meant, "ORDER BY failed_at, event_id LIMIT ?8 OFFSET ?9"),
        }
    };
}

const GROUPS: &str = "
SELECT reason, event_type, count(*), max(failed_at)
FROM (
    SELECT reason, event_type, failed_at FROM dead_letters
    WHERE namespace = ?1 ORDER BY failed_at DESC, event_id DESC LIMIT ?2)
GROUP BY 1, 2 ORDER BY 3 DESC, 4 DESC, 1, 2 LIMIT ?3";

#[async_trait]
impl DeadLetterStore for SqliteStore {
    async fn dead_letters(&self, namespace: &str, filter: &DeadLetterFilter) -> Result<Page<DeadLetter>> {
        let (namespace, filter) = (namespace.to_owned(), filter.clone());
        self.read(move |conn| list(conn, &namespace, &filter)).await
    }

    async fn dead_letter_groups(&self, namespace: &str, rows: usize, limit: usize) -> Result<Vec<DeadLetterGroup>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| {
            let mut select = conn.prepare_cached(GROUPS)?;
            let groups = select.query_map((&namespace, rows as i64, limit as i64), |row| {
                Ok(DeadLetterGroup {
                    reason: row.get(0)?,
                    event_type: row.get(1)?,
                    count: row::count(row, 2)?,
                    newest_at: row::timestamp(row, 3)?,
                })
            })?;
            Ok(groups.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn redrive(
        &self,
        namespace: &str,
        letters: Arc<[(DeadLetter, NewDelivery)]>,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let namespace = namespace.to_owned();
        self.write(now, move |conn, now| redrive(conn, &namespace, &letters, now)).await
    }

    async fn purge(&self, namespace: &str, filter: &DeadLetterFilter, limit: usize) -> Result<usize> {
        let (namespace, filter) = (namespace.to_owned(), filter.clone());
        self.write(None, move |conn, _| purge(conn, &namespace, &filter, limit)).await
    }
}

/// The statements that count dead letters and list their keys in either order.
struct Source {
    total: &'static str,
    newest: &'static str,
    oldest: &'static str,
}

const ALL: Source = source!("WHERE namespace = ?1 AND ?2 IS NULL");

/// No index has the reason; the other columns are in one.
const COUNT_WITHOUT_REASON: &str =
    matching!("count(*)", "INDEXED BY dead_letters_by_event WHERE namespace = ?1 AND ?2 IS NULL", "?5 IS NULL", "");

/// The plus keeps SQLite from reading the whole namespace.
const NAMED: Source = source!("WHERE event_id IN (SELECT value FROM json_each(?2)) AND +namespace = ?1");

fn source(filter: &DeadLetterFilter) -> Source {
    if filter.event_ids.is_empty() { ALL } else { NAMED }
}

/// The parameters of `total`, and the first of the others.
fn values(namespace: &str, filter: &DeadLetterFilter) -> Result<Vec<Value>> {
    let text = |text: Option<&str>| text.map_or(Value::Null, |text| Value::Text(text.to_owned()));
    let list = |empty: bool, json: serde_json::Result<String>| match json {
        _ if empty => Ok(Value::Null),
        json => json.map(Value::Text).map_err(from_json),
    };
    Ok(vec![
        text(Some(namespace)),
        list(filter.event_ids.is_empty(), serde_json::to_string(&filter.event_ids))?,
        text(filter.subscription.as_deref()),
        text(filter.status.map(|status| status.as_str())),
        text(filter.reason.as_deref()),
        row::micros(filter.failed_before).into(),
        list(filter.types.is_empty(), serde_json::to_string(&filter.types))?,
    ])
}

fn matching(
    conn: &Connection,
    namespace: &str,
    filter: &DeadLetterFilter,
    limit: usize,
    offset: usize,
) -> Result<Vec<(i64, i64)>> {
    let mut values = values(namespace, filter)?;
    values.extend([Value::Integer(limit as i64), Value::Integer(offset as i64)]);
    let source = source(filter);
    let mut select = conn.prepare_cached(if filter.oldest_first { source.oldest } else { source.newest })?;
    let found = select.query_map(params_from_iter(values), |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

fn list(conn: &Connection, namespace: &str, filter: &DeadLetterFilter) -> Result<Page<DeadLetter>> {
    let values = params_from_iter(values(namespace, filter)?);
    let by_index = filter.event_ids.is_empty() && filter.reason.is_none();
    let total = if by_index { COUNT_WITHOUT_REASON } else { source(filter).total };
    let total = conn.prepare_cached(total)?.query_row(values, |row| row::count(row, 0))?;
    let mut items = Vec::new();
    for (event_id, subscription_id) in matching(conn, namespace, filter, filter.limit, filter.offset)? {
        items.extend(letter(conn, namespace, event_id, subscription_id, filter.without_payloads)?);
    }
    Ok(Page { items, total })
}

const LETTER: &str = "
SELECT subscription, status, reason, error, attempts, retry_count, max_retries, failed_at
FROM dead_letters WHERE event_id = ?1 AND subscription_id = ?2";

fn letter(
    conn: &Connection,
    namespace: &str,
    event_id: i64,
    subscription_id: i64,
    without_payload: bool,
) -> Result<Option<DeadLetter>> {
    let event = if without_payload { row::event_without_payload } else { row::event };
    let Some(event) = event(conn, namespace, event_id)? else { return Ok(None) };
    let mut select = conn.prepare_cached(LETTER)?;
    let found = select.query_row((event_id, subscription_id), |row| {
        Ok(DeadLetter {
            event,
            subscription: row.get(0)?,
            status: row::parse_text(row, 1)?,
            reason: row.get(2)?,
            error: row.get(3)?,
            attempts: row.get(4)?,
            retry_count: row.get(5)?,
            max_retries: row.get(6)?,
            failed_at: row::timestamp(row, 7)?,
        })
    });
    Ok(found.optional()?)
}

fn redrive(conn: &Connection, namespace: &str, letters: &[(DeadLetter, NewDelivery)], now: i64) -> Result<usize> {
    let mut redriven = 0;
    for (letter, delivery) in letters {
        redriven += usize::from(redrive_one(conn, namespace, letter, delivery, now)?);
    }
    Ok(redriven)
}

const TAKE: &str = "
DELETE FROM dead_letters WHERE event_id = ?1 AND namespace = ?2 AND subscription = ?3
RETURNING attempts, created_at";

fn redrive_one(
    conn: &Connection,
    namespace: &str,
    letter: &DeadLetter,
    delivery: &NewDelivery,
    now: i64,
) -> Result<bool> {
    let event = &letter.event;
    let mut take = conn.prepare_cached(TAKE)?;
    let found = take.query_row((event.id, namespace, &letter.subscription), |row| Ok((row.get(0)?, row.get(1)?)));
    let Some((attempts, created_at)) = found.optional()? else { return Ok(false) };
    let entry = Entry {
        event_id: event.id,
        event_type: &event.event_type,
        priority: event.priority,
        group_id: event.group_id.as_deref(),
        // Drop a deadline that has passed: it would expire the delivery again.
        expires_at: row::micros(event.expires_at).filter(|expires_at| *expires_at > now),
        due_at: now,
        attempts,
        created_at,
        is_new: false,
        is_past: false,
    };
    let delivery = NewDelivery { lane_id: existing_lane(conn, event, delivery, now)?, ..delivery.clone() };
    enqueue(conn, namespace, &entry, &delivery, now)?;
    let mut insert = conn.prepare_cached(attempts::INSERT)?;
    attempts::insert(&mut insert, namespace, &redriven(event, &delivery, attempts, now))?;
    Ok(true)
}

fn redriven<'a>(event: &'a Event, delivery: &'a NewDelivery, attempts: u32, now: i64) -> EndedAttempt<'a> {
    EndedAttempt {
        event_id: event.id,
        subscription_id: delivery.subscription_id,
        subscription: &delivery.subscription,
        event_type: &event.event_type,
        attempt: attempts,
        lease: None,
        worker_id: None,
        picked_at: None,
        started_at: None,
        finished_at: now,
        action: Action::Redriven,
        status_code: None,
        execution_time_ms: None,
        error: None,
        detail: None,
        next_retry_at: None,
        retry_count: 0,
        max_retries: delivery.max_retries,
    }
}

/// The event stays; retention must check it again.
const LEAVE: &str = "
INSERT INTO retention_leftovers (event_id, subscription, namespace, since, look_at)
SELECT event_id, subscription, namespace, failed_at, failed_at FROM dead_letters
WHERE event_id = ?1 AND subscription_id = ?2
ON CONFLICT DO UPDATE SET since = excluded.since, rules = 0, look_at = excluded.look_at";

const DELETE: &str = "DELETE FROM dead_letters WHERE event_id = ?1 AND subscription_id = ?2";

fn purge(conn: &Connection, namespace: &str, filter: &DeadLetterFilter, limit: usize) -> Result<usize> {
    let found = matching(conn, namespace, filter, limit, 0)?;
    let (mut leave, mut delete) = (conn.prepare_cached(LEAVE)?, conn.prepare_cached(DELETE)?);
    for (event_id, subscription_id) in &found {
        leave.execute((event_id, subscription_id))?;
        delete.execute((event_id, subscription_id))?;
        results::clear(conn, *event_id, *subscription_id, Clear::All)?;
    }
    Ok(found.len())
}
