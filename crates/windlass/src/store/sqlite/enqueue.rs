//! New rows of the queue: for what is published, and for what was published before.

use rusqlite::{Connection, params};

use super::group::{self, Group};
use super::lanes::existing_lane;
use super::row::{self, INFINITY};
use crate::error::Result;
use crate::event::Event;
use crate::store::{NewDelivery, PastEvents};
use crate::topology::Subscription;

/// What a delivery has from its event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry<'a> {
    pub event_id: i64,
    pub event_type: &'a str,
    pub priority: i16,
    pub group_id: Option<&'a str>,
    pub expires_at: Option<i64>,
    /// When it may be taken, but for its group.
    pub due_at: i64,
    /// Acquisitions in an earlier life.
    pub attempts: u32,
    /// When the event was published.
    pub created_at: i64,
    /// The event is being published now, not redriven or backfilled.
    pub is_new: bool,
    /// The event was published before the other events of its group, and is due at `due_at` even if that is before them.
    pub is_past: bool,
}

/// Adds the deliveries of one batch. Deliveries of consecutive events that differ in nothing else are added by one statement.
pub(super) fn enqueue_all(
    conn: &Connection,
    namespace: &str,
    mut entries: Vec<(Entry<'_>, &NewDelivery)>,
    now: i64,
) -> Result<()> {
    // In the order of the primary key. A stable sort keeps the order of each group, which has one subscription.
    entries.sort_by_key(|(_, delivery)| delivery.subscription_id);
    for run in entries.chunk_by(|a, b| follows(*a, *b)) {
        let (entry, delivery) = run[0];
        enqueue_run(conn, namespace, &entry, run.len() as i64, delivery, now)?;
    }
    Ok(())
}

fn follows((entry, delivery): (Entry<'_>, &NewDelivery), (next, after): (Entry<'_>, &NewDelivery)) -> bool {
    let same_entry = Entry { event_id: entry.event_id + 1, ..entry } == next;
    let single = |delivery: &NewDelivery| (delivery.lane_id, delivery.max_retries, delivery.attempts_limit);
    same_entry && entry.group_id.is_none() && single(delivery) == single(after)
}

pub(super) fn enqueue(
    conn: &Connection,
    namespace: &str,
    entry: &Entry<'_>,
    delivery: &NewDelivery,
    now: i64,
) -> Result<()> {
    enqueue_run(conn, namespace, entry, 1, delivery, now)
}

const ENQUEUE: &str = "
INSERT INTO event_queue (subscription_id, event_id, lane_id, namespace, subscription, event_type, priority, out_of_order,
                         ready_at, due_at, attempts, attempts_limit, max_retries, group_id, expires_at, updated_at,
                         created_at)
SELECT ?1, id, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18
FROM events WHERE id BETWEEN ?2 AND ?3";

fn enqueue_run(
    conn: &Connection,
    namespace: &str,
    entry: &Entry<'_>,
    count: i64,
    delivery: &NewDelivery,
    now: i64,
) -> Result<()> {
    let subscription = delivery.subscription.as_str();
    let group = entry.group_id.map(|group_id| Group { namespace, subscription, group_id });
    let in_group = match group {
        Some(group) => Some((group, group::enter(conn, group, entry.due_at, entry.is_past, now)?)),
        None => None,
    };
    let ready_at = match in_group {
        Some((_, member)) if member.waits => INFINITY,
        Some((_, member)) => member.due_at.max(now),
        None => entry.due_at.max(now),
    };
    let in_order = entry.is_new && entry.priority == 0 && ready_at <= now;
    conn.prepare_cached(ENQUEUE)?.execute(params![
        delivery.subscription_id,
        entry.event_id,
        entry.event_id + count - 1,
        delivery.lane_id,
        namespace,
        subscription,
        entry.event_type,
        entry.priority,
        !in_order,
        ready_at,
        in_group.map(|(_, member)| member.due_at),
        entry.attempts,
        entry.attempts.saturating_add(delivery.attempts_limit),
        delivery.max_retries,
        entry.group_id,
        entry.expires_at,
        now,
        entry.created_at,
    ])?;
    match in_group {
        Some((group, member)) if member.overtakes => group::advance(conn, group, now).map(drop),
        _ => Ok(()),
    }
}

const PAST: &str = "
SELECT id FROM events INDEXED BY events_by_namespace
WHERE namespace = ?1 AND id >= ?2 AND created_at BETWEEN ?3 AND ?4 ORDER BY id LIMIT ?5";

pub(super) fn past_events(
    conn: &Connection,
    namespace: &str,
    of: &Subscription,
    from: i64,
    limit: usize,
) -> Result<PastEvents> {
    let mut select = conn.prepare_cached(PAST)?;
    let (since, until) = (of.starts_at.timestamp_micros(), of.created_at.timestamp_micros());
    let ids = select.query_map((namespace, from, since, until, limit as i64), |row| row.get(0))?;
    let ids = ids.collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut events = Vec::with_capacity(ids.len());
    for event_id in &ids {
        events.extend(row::event(conn, namespace, *event_id)?);
    }
    let next = ids.last().filter(|_| ids.len() >= limit).map(|last| last + 1);
    Ok(PastEvents { events, next })
}

const NOTE_PLACE: &str = "
UPDATE subscriptions SET backfill_from = ?4
WHERE namespace = ?1 AND subscription = ?2 AND backfill_from = ?3 AND (?5 IS NULL OR subscription_id = ?5)";

pub(super) fn backfill(
    conn: &Connection,
    namespace: &str,
    subscription: &str,
    deliveries: &[(Event, NewDelivery)],
    from: i64,
    next: Option<i64>,
    now: i64,
) -> Result<bool> {
    let subscription_id = deliveries.first().map(|(_, delivery)| delivery.subscription_id);
    if conn.prepare_cached(NOTE_PLACE)?.execute((namespace, subscription, from, next, subscription_id))? == 0 {
        return Ok(false);
    }
    for (event, delivery) in deliveries {
        if has_no_delivery(conn, event, delivery)? {
            let created_at = event.created_at.timestamp_micros();
            let entry = Entry {
                event_id: event.id,
                event_type: &event.event_type,
                priority: event.priority,
                group_id: event.group_id.as_deref(),
                expires_at: row::micros(event.expires_at),
                due_at: row::micros(event.run_at).map_or(created_at, |run_at| run_at.max(created_at)),
                attempts: 0,
                created_at,
                is_new: false,
                is_past: true,
            };
            let delivery = NewDelivery { lane_id: existing_lane(conn, event, delivery, now)?, ..delivery.clone() };
            enqueue(conn, namespace, &entry, &delivery, now)?;
        }
    }
    Ok(true)
}

const HAS_NO_DELIVERY: &str = "
SELECT EXISTS (SELECT 1 FROM events WHERE id = ?1)
   AND NOT EXISTS (SELECT 1 FROM arrivals WHERE namespace = ?4 AND event_id = ?1)
   AND NOT EXISTS (SELECT 1 FROM event_queue WHERE subscription_id = ?3 AND event_id = ?1)
   AND NOT EXISTS (SELECT 1 FROM event_attempts WHERE event_id = ?1 AND subscription = ?2)
   AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE event_id = ?1 AND subscription = ?2)";

/// The event still exists, the router need not deliver it, and the subscription has not, and had not, a delivery of it.
fn has_no_delivery(conn: &Connection, event: &Event, delivery: &NewDelivery) -> Result<bool> {
    let mut select = conn.prepare_cached(HAS_NO_DELIVERY)?;
    let values = (event.id, &delivery.subscription, delivery.subscription_id, &event.namespace);
    Ok(select.query_row(values, |row| row.get(0))?)
}
