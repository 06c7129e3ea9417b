//! Groups: at most one delivery in progress at a time, or one run of deliveries under one lease.
//!
//! At most one delivery of a group has a finite `ready_at`: the one in progress, or the first by due time and event id.
//! The others wait at infinity. Deliveries of a run are leased while they wait, so that claims need no knowledge of
//! groups.

use rusqlite::{Connection, OptionalExtension, Row};

use super::row::INFINITY;
use crate::error::Result;
use crate::queue::wake::ReadyLane;

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
    due_at: i64,
    leased: bool,
    /// The delivery waits for its retry and blocks its group.
    is_retry: bool,
}

/// A row of `event_groups`.
#[derive(Debug, Clone, Copy)]
struct State {
    depth: i64,
    /// The earliest due time of new deliveries.
    last_at: i64,
    delayed_until: Option<i64>,
    run_lease: Option<i64>,
    run_left: i64,
}

impl Group<'_> {
    fn key(&self) -> (&str, &str, &str) {
        (self.group_id, self.subscription, self.namespace)
    }
}

const STATE: &str = "
SELECT depth, last_at, delayed_until, run_lease, run_left FROM event_groups
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3";

fn state(conn: &Connection, group: Group) -> Result<Option<State>> {
    let found = conn.prepare_cached(STATE)?.query_row(group.key(), |row| {
        Ok(State {
            depth: row.get(0)?,
            last_at: row.get(1)?,
            delayed_until: row.get(2)?,
            run_lease: row.get(3)?,
            run_left: row.get(4)?,
        })
    });
    Ok(found.optional()?)
}

const ENTER: &str = "
INSERT INTO event_groups (group_id, subscription, namespace, depth, last_at) VALUES (?1, ?2, ?3, 1, ?4)
ON CONFLICT DO UPDATE SET depth = depth + 1, last_at = max(last_at, excluded.last_at)";

const MARK_DELAYED: &str = "
UPDATE event_groups SET delayed_until = ?4 WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3";

/// How a new delivery is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// The delivery waits for its group.
    pub waits: bool,
    pub due_at: i64,
    /// The delivery is due before the first one, which is delayed: call [`advance`] after it is stored.
    pub overtakes: bool,
}

/// Adds a new delivery to the depth of its group. `is_past`: the event was published before other deliveries of the
/// group were added, and keeps its due time.
pub(super) fn enter(conn: &Connection, group: Group, run_at: i64, is_past: bool, now: i64) -> Result<Entry> {
    let (group_id, subscription, namespace) = group.key();
    conn.prepare_cached(ENTER)?.execute((group_id, subscription, namespace, now))?;
    let Some(state) = state(conn, group)? else { return Ok(Entry { waits: false, due_at: run_at, overtakes: false }) };
    let due_at = if is_past { run_at } else { run_at.max(state.last_at) };
    let waits = state.depth > 1;
    if !waits && due_at > now {
        mark_delayed(conn, group, due_at)?;
    }
    Ok(Entry { waits, due_at, overtakes: waits && state.delayed_until.is_some_and(|until| until > due_at) })
}

fn mark_delayed(conn: &Connection, group: Group, until: i64) -> Result<()> {
    let (group_id, subscription, namespace) = group.key();
    conn.prepare_cached(MARK_DELAYED)?.execute((group_id, subscription, namespace, until))?;
    Ok(())
}

/// A change of a delivery of the group.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupChange {
    pub event_id: i64,
    /// When the delivery was due before the change.
    pub due_at: i64,
    /// The delivery left the queue.
    pub ended: bool,
    /// The lease under which it was in progress.
    pub lease: Option<i64>,
    /// If `false`, the later deliveries of its run are released.
    pub succeeded: bool,
}

const LEAVE: &str = "
UPDATE event_groups SET depth = ?4, run_left = ?5 WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3";

const END: &str = "DELETE FROM event_groups WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3";

/// Applies the change of a delivery to its group and makes the next delivery ready. Returns its lane.
pub(super) fn apply(conn: &Connection, group: Group, change: GroupChange, now: i64) -> Result<Option<ReadyLane>> {
    let Some(state) = state(conn, group)? else { return Ok(None) };
    let mut run_left = state.run_left;
    if change.lease.is_some() && change.lease == state.run_lease && run_left > 0 {
        if !change.succeeded && run_left > 1 {
            run_left -= release_later(conn, group, change, now)?;
        }
        run_left -= 1;
    }
    let depth = state.depth - i64::from(change.ended);
    if depth <= 0 {
        conn.prepare_cached(END)?.execute(group.key())?;
        return Ok(None);
    }
    if (depth, run_left) != (state.depth, state.run_left) {
        let (group_id, subscription, namespace) = group.key();
        conn.prepare_cached(LEAVE)?.execute((group_id, subscription, namespace, depth, run_left))?;
    }
    if run_left == 0 {
        return advance(conn, group, now);
    }
    if !change.ended {
        // A worker reported a later delivery of its run before an earlier one, which is still in progress.
        for member in ready(conn, group)?.into_iter().filter(|member| !member.leased) {
            set_ready(conn, member, INFINITY)?;
        }
    }
    Ok(None)
}

// Releases deliveries as if they had not been claimed: their attempts had not begun.
const RELEASE_LATER: &str = "
UPDATE event_queue
SET lease = NULL, worker_id = NULL, picked_at = NULL, started_at = NULL, lease_expires_at = NULL, attempts = attempts - 1,
    updated_at = ?7
WHERE (subscription_id, event_id) IN (
    SELECT q.subscription_id, q.event_id FROM event_queue q INDEXED BY event_queue_group
    WHERE q.group_id = ?1 AND q.subscription = ?2 AND q.namespace = ?3 AND (q.ready_at = 9223372036854775807) = 1
      AND q.due_at <= (SELECT g.run_to FROM event_groups g
                       WHERE g.group_id = ?1 AND g.subscription = ?2 AND g.namespace = ?3)
      AND (q.due_at, q.event_id) > (?5, ?6) AND q.lease = ?4)";

/// Releases the deliveries after this one in its run. Returns how many.
fn release_later(conn: &Connection, group: Group, after: GroupChange, now: i64) -> Result<i64> {
    let (group_id, subscription, namespace) = group.key();
    let values = (group_id, subscription, namespace, after.lease, after.due_at, after.event_id, now);
    Ok(conn.prepare_cached(RELEASE_LATER)?.execute(values)? as i64)
}

const EXTEND_RUN: &str = "
UPDATE event_queue SET lease_expires_at = max(lease_expires_at, ?5)
WHERE (subscription_id, event_id) IN (
    SELECT q.subscription_id, q.event_id FROM event_queue q INDEXED BY event_queue_group
    WHERE q.group_id = ?1 AND q.subscription = ?2 AND q.namespace = ?3 AND (q.ready_at = 9223372036854775807) = 1
      AND q.due_at <= (SELECT g.run_to FROM event_groups g
                       WHERE g.group_id = ?1 AND g.subscription = ?2 AND g.namespace = ?3
                         AND g.run_lease = ?4 AND g.run_left > 0)
      AND q.lease = ?4)";

/// Extends the leases of all deliveries of a run.
pub(super) fn extend_run(conn: &Connection, group: Group, lease: Option<i64>, expires_at: i64) -> Result<()> {
    let (group_id, subscription, namespace) = group.key();
    conn.prepare_cached(EXTEND_RUN)?.execute((group_id, subscription, namespace, lease, expires_at))?;
    Ok(())
}

/// Makes the first delivery ready, by due time, unless one is in progress or waits for its retry. Returns its lane.
/// Another one that is ready but due later waits again. Deliveries that are due by the time of the group are ready now,
/// even if the clock was set back.
pub(super) fn advance(conn: &Connection, group: Group, now: i64) -> Result<Option<ReadyLane>> {
    let Some(state) = state(conn, group)?.filter(|state| state.run_left == 0) else { return Ok(None) };
    let ready = ready(conn, group)?;
    let waiting = conn.prepare_cached(FIRST_WAITING)?.query_row(group.key(), member).optional()?;
    if ready.iter().any(|member| member.leased) || waiting.is_some_and(|member| member.leased) {
        return Ok(None);
    }
    let order = |member: &Member| (!member.is_retry, member.due_at, member.event_id);
    let Some(head) = ready.iter().chain(&waiting).min_by_key(|member| order(member)).copied() else { return Ok(None) };
    for member in ready.iter().filter(|member| member.event_id != head.event_id) {
        set_ready(conn, *member, INFINITY)?;
    }
    if ready.iter().any(|member| member.event_id == head.event_id) {
        return Ok(None);
    }
    let ready_at = if head.due_at <= state.last_at { head.due_at.min(now) } else { head.due_at };
    set_ready(conn, head, ready_at)?;
    if ready_at > now {
        mark_delayed(conn, group, ready_at)?;
    }
    Ok(Some(head.lane))
}

const READY: &str = "
SELECT event_id, subscription_id, lane_id, due_at, lease IS NOT NULL, ready_at > due_at
FROM event_queue INDEXED BY event_queue_group
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3 AND (ready_at = 9223372036854775807) = 0";

const FIRST_WAITING: &str = "
SELECT event_id, subscription_id, lane_id, due_at, lease IS NOT NULL, false
FROM event_queue INDEXED BY event_queue_group
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3 AND (ready_at = 9223372036854775807) = 1
ORDER BY due_at, event_id LIMIT 1";

/// The deliveries that are ready, delayed or in progress: usually one.
fn ready(conn: &Connection, group: Group) -> Result<Vec<Member>> {
    let mut select = conn.prepare_cached(READY)?;
    let ready = select.query_map(group.key(), member)?;
    Ok(ready.collect::<rusqlite::Result<_>>()?)
}

fn member(row: &Row) -> rusqlite::Result<Member> {
    let lane = ReadyLane { subscription_id: row.get(1)?, lane_id: row.get(2)?, rewind: true };
    Ok(Member { event_id: row.get(0)?, lane, due_at: row.get(3)?, leased: row.get(4)?, is_retry: row.get(5)? })
}

const SET_READY: &str = "
UPDATE event_queue SET ready_at = ?3, out_of_order = 1 WHERE subscription_id = ?1 AND event_id = ?2";

fn set_ready(conn: &Connection, member: Member, ready_at: i64) -> Result<()> {
    conn.prepare_cached(SET_READY)?.execute((member.lane.subscription_id, member.event_id, ready_at))?;
    Ok(())
}
