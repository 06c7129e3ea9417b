//! Adding deliveries to the queue: for new events, redrives, backfills and arrivals.

use rusqlite::{Connection, params};

use super::group::{self, Group};
use super::row::INFINITY;
use crate::error::Result;
use crate::store::NewDelivery;

/// The fields of a delivery that come from its event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry<'a> {
    pub event_id: i64,
    pub event_type: &'a str,
    pub priority: i16,
    pub group_id: Option<&'a str>,
    pub expires_at: Option<i64>,
    /// The earliest claim time, apart from its group.
    pub due_at: i64,
    /// Attempts before a redrive.
    pub attempts: u32,
    /// When the event was published.
    pub created_at: i64,
    /// The event is being published now, not redriven or backfilled.
    pub is_new: bool,
    /// The event was published before the other events of its group, and is due at `due_at` even if that is before them.
    pub is_past: bool,
}

/// Adds the deliveries of one batch. One statement adds deliveries of consecutive events that differ in nothing else.
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
