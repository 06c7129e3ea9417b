//! Lists of events.

use std::collections::HashMap;

use rusqlite::types::Value;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Rows, params_from_iter};

use super::{inspect, row};
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::inspect::EventView;
use crate::observe::inspect::{ListFilter, Page};
use crate::topology::lanes::split_tags;
use crate::topology::{MAIN, wants};

/// Where the events in some state are found: how many, and their ids, the newest first. The parameters
/// are namespace, subscription, status, limit and offset, as far as they are needed.
struct Source {
    total: &'static str,
    ids: &'static str,
}

const ALL: Source = Source {
    total: "SELECT count(*) FROM events WHERE namespace = ?1",
    ids: "SELECT id FROM events INDEXED BY events_by_namespace WHERE namespace = ?1
          ORDER BY id DESC LIMIT ?4 OFFSET ?5",
};

/// Of a subscription other than `main`, which is told of everything. A dead letter has an attempt.
const TOLD: Source = Source {
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
const FREE: Source = Source {
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

const HELD: Source = Source {
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

const DEAD: Source = Source {
    total: "SELECT count(*) FROM dead_letters INDEXED BY dead_letters_by_event
            WHERE namespace = ?1 AND subscription = ?2 AND status = ?3",
    ids: "SELECT event_id FROM dead_letters INDEXED BY dead_letters_by_event
          WHERE namespace = ?1 AND subscription = ?2 AND status = ?3
          ORDER BY event_id DESC LIMIT ?4 OFFSET ?5",
};

/// No delivery ends twice in one of these states.
const ENDED: Source = Source {
    total: "SELECT count(*) FROM event_attempts WHERE namespace = ?1 AND subscription = ?2 AND action = ?3",
    ids: "SELECT event_id FROM event_attempts WHERE namespace = ?1 AND subscription = ?2 AND action = ?3
          ORDER BY event_id DESC LIMIT ?4 OFFSET ?5",
};

pub(super) fn list(conn: &Connection, namespace: &str, filter: &ListFilter) -> Result<Page<EventView>> {
    let subscription = filter.subscription.as_deref().unwrap_or(MAIN);
    let source = match filter.status {
        None if subscription == MAIN => ALL,
        None => TOLD,
        Some(Status::Pending) => FREE,
        Some(Status::Processing) => HELD,
        Some(Status::Failed | Status::Expired) => DEAD,
        Some(Status::Completed | Status::CompletedWithErrors | Status::Cancelled) => ENDED,
    };
    let status = filter.status.map_or("", Status::as_str);
    let scope = [namespace, subscription, status].map(|text| Value::Text(text.to_owned()));
    let plain = filter.types.is_empty() && filter.tags.is_empty();
    let (ids, total) =
        if plain { page(conn, &source, &scope, filter)? } else { matching(conn, &source, &scope, filter)? };
    let mut items = Vec::with_capacity(ids.len());
    for event_id in ids {
        items.extend(inspect::view(conn, namespace, event_id)?);
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

/// Goes through all of them: types and tags are in no index.
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

/// Whether events are wanted, by type and then by their tags as they were sent: of many events, few are of a new kind.
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

/// More types than this are not remembered.
const KINDS_MAX: usize = 10_000;

fn within(scope: &[Value], limit: i64, offset: i64) -> Vec<Value> {
    scope.iter().cloned().chain([Value::Integer(limit), Value::Integer(offset)]).collect()
}

/// Binds as many of the values as the statement has parameters.
fn query<'a>(statement: &'a mut CachedStatement<'_>, mut values: Vec<Value>) -> Result<Rows<'a>> {
    values.truncate(statement.parameter_count());
    Ok(statement.query(params_from_iter(values))?)
}
