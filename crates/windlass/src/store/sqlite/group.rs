//! Groups: at most one delivery of a group is claimable; the others wait at infinity.

use rusqlite::{Connection, OptionalExtension, Row};

use super::row::INFINITY;
use crate::error::Result;
use crate::wake::ReadyLane;

/// The deliveries of one group to one subscription.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group<'a> {
    pub namespace: &'a str,
    pub subscription: &'a str,
    pub group_id: &'a str,
}

/// A delivery of the group.
#[derive(Debug, Clone, Copy)]
struct Member {
    event_id: i64,
    lane: ReadyLane,
}

impl Group<'_> {
    fn key(&self) -> (&str, &str, &str) {
        (self.group_id, self.subscription, self.namespace)
    }
}

const DEPTH: &str = "
SELECT depth FROM event_groups WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3";

fn depth(conn: &Connection, group: Group) -> Result<i64> {
    let found = conn.prepare_cached(DEPTH)?.query_row(group.key(), |row| row.get(0)).optional()?;
    Ok(found.unwrap_or(0))
}

const JOIN: &str = "
INSERT INTO event_groups (group_id, subscription, namespace, depth) VALUES (?1, ?2, ?3, 1)
ON CONFLICT DO UPDATE SET depth = depth + 1";

/// Counts a new delivery; `true` if it is the only one, and so need not wait.
pub(super) fn join(conn: &Connection, group: Group) -> Result<bool> {
    conn.prepare_cached(JOIN)?.execute(group.key())?;
    Ok(depth(conn, group)? == 1)
}

const LEAVE: &str = "
UPDATE event_groups SET depth = depth - 1 WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3";
const END: &str = "DELETE FROM event_groups WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3";

/// Counts a delivery that has left the queue, and makes the next one ready; its lane.
pub(super) fn leave(conn: &Connection, group: Group, pass: bool, now: i64) -> Result<Option<ReadyLane>> {
    if depth(conn, group)? > 1 {
        conn.prepare_cached(LEAVE)?.execute(group.key())?;
        return advance(conn, group, pass, now);
    }
    conn.prepare_cached(END)?.execute(group.key())?;
    Ok(None)
}

/// Makes the next delivery claimable, unless one is, or is held. In strict order that is whoever is
/// ahead already, or else the first; with `pass` the first that is due or, where none is, the one that
/// will be so earliest. Returns its lane.
pub(super) fn advance(conn: &Connection, group: Group, pass: bool, now: i64) -> Result<Option<ReadyLane>> {
    let Some(ahead) = ahead(conn, group, now)? else { return Ok(None) };
    if !pass && !ahead.is_empty() {
        return Ok(None);
    }
    for member in ahead {
        set_ready(conn, member, INFINITY)?;
    }
    let next = if pass { first_due(conn, group, now)? } else { first(conn, group)? };
    let Some((member, due_at)) = next else { return Ok(None) };
    set_ready(conn, member, due_at)?;
    Ok(Some(member.lane))
}

const AHEAD: &str = "
SELECT event_id, subscription_id, lane_id, lease IS NOT NULL OR ready_at <= ?4
FROM event_queue INDEXED BY event_queue_group
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3 AND ready_at < 9223372036854775807";

/// The delivery, one at most, whose time the group waits for; `None` if it has one to work on.
fn ahead(conn: &Connection, group: Group, now: i64) -> Result<Option<Vec<Member>>> {
    let (group_id, subscription, namespace) = group.key();
    let mut select = conn.prepare_cached(AHEAD)?;
    let mut rows = select.query((group_id, subscription, namespace, now))?;
    let mut ahead = Vec::new();
    while let Some(row) = rows.next()? {
        if row.get(3)? {
            return Ok(None);
        }
        ahead.push(member(row)?);
    }
    Ok(Some(ahead))
}

const FIRST: &str = "
SELECT event_id, subscription_id, lane_id, due_at FROM event_queue INDEXED BY event_queue_group
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3 AND ready_at = 9223372036854775807
ORDER BY event_id LIMIT 1";

fn first(conn: &Connection, group: Group) -> Result<Option<(Member, i64)>> {
    Ok(conn.prepare_cached(FIRST)?.query_row(group.key(), member_and_due_at).optional()?)
}

const FIRST_DUE: &str = "
SELECT event_id, subscription_id, lane_id, due_at FROM event_queue INDEXED BY event_queue_group
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3 AND ready_at = 9223372036854775807 AND due_at <= ?4
ORDER BY event_id LIMIT 1";
const EARLIEST: &str = "
SELECT event_id, subscription_id, lane_id, due_at FROM event_queue INDEXED BY event_queue_group
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3 AND ready_at = 9223372036854775807
ORDER BY due_at, event_id LIMIT 1";

fn first_due(conn: &Connection, group: Group, now: i64) -> Result<Option<(Member, i64)>> {
    let (group_id, subscription, namespace) = group.key();
    let mut select = conn.prepare_cached(FIRST_DUE)?;
    let due = select.query_row((group_id, subscription, namespace, now), member_and_due_at).optional()?;
    if due.is_some() {
        return Ok(due);
    }
    Ok(conn.prepare_cached(EARLIEST)?.query_row(group.key(), member_and_due_at).optional()?)
}

fn member_and_due_at(row: &Row) -> rusqlite::Result<(Member, i64)> {
    Ok((member(row)?, row.get(3)?))
}

/// From the columns `event_id, subscription_id, lane_id`.
fn member(row: &Row) -> rusqlite::Result<Member> {
    let lane = ReadyLane { subscription_id: row.get(1)?, lane_id: row.get(2)?, rewind: true };
    Ok(Member { event_id: row.get(0)?, lane })
}

const SET_READY: &str = "
UPDATE event_queue SET ready_at = ?3, out_of_order = 1 WHERE subscription_id = ?1 AND event_id = ?2";

fn set_ready(conn: &Connection, member: Member, ready_at: i64) -> Result<()> {
    conn.prepare_cached(SET_READY)?.execute((member.lane.subscription_id, member.event_id, ready_at))?;
    Ok(())
}
