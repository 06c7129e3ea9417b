//! Groups: at most one delivery in progress at a time, or one run of deliveries under one lease.
//!
//! The row in `event_groups` is the lock on a group. At most one delivery of a group has a finite `ready_at`: the one
//! in progress, or the first by due time and event id. The others wait at infinity. Deliveries of a run are leased
//! while they wait, so that claims need no knowledge of groups.
//!
//! A handler's transaction does not lock the group. It leaves a row in `departures`. The next transaction that changes
//! the group applies it, or [`settle_departures`] does.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

use super::PgStore;
use super::enqueue::column;
use super::error::from_sqlx;
use super::row::get;
use crate::clock::{Timestamp, after};
use crate::error::Result;
use crate::queue::wake::ReadyLane;
use crate::store::NewDelivery;

/// Subscription and group id.
pub(super) type Group = (String, String);

/// Groups in the order in which every transaction locks them.
pub(super) type Groups<T> = BTreeMap<Group, T>;

/// The fields of a new delivery that its group needs.
pub(super) struct NewMember<'a> {
    pub delivery: &'a NewDelivery,
    /// `None`: it belongs to no group.
    pub group_id: Option<&'a str>,
    /// Deliveries of one transaction with the same due time are handled in this order.
    pub order: i64,
    /// The earliest start.
    pub run_at: Option<Timestamp>,
    pub delay: Option<Duration>,
    /// The event was published before other deliveries of the group were added. The delivery is due at `run_at`, even
    /// if that is before them.
    pub is_past: bool,
}

impl NewMember<'_> {
    fn group(&self) -> Option<Group> {
        Some((self.delivery.subscription.clone(), self.group_id?.to_owned()))
    }
}

/// A group that deliveries are being added to.
#[derive(Debug, Clone, Copy)]
struct Entered {
    was_empty: bool,
    now: Timestamp,
    /// The earliest due time of new deliveries.
    last_at: Timestamp,
    delayed_until: Option<Timestamp>,
}

// With $5, groups with arrivals are left out: the router adds to them in order.
pub(super) const ENTER: &str = "
INSERT INTO windlass.event_groups AS g (namespace, subscription, group_id, depth, last_at)
SELECT $1, i.subscription, i.group_id, i.members, coalesce($6, now())
FROM unnest($2::text[], $3::text[], $4::bigint[]) AS i(subscription, group_id, members)
WHERE NOT $5 OR (SELECT a.event_id FROM windlass.arrivals a
                 WHERE a.group_id = i.group_id AND (a.namespace = $1) IS TRUE ORDER BY a.group_id LIMIT 1) IS NULL
ON CONFLICT (group_id, subscription, namespace) DO UPDATE
SET depth = g.depth + excluded.depth, last_at = greatest(g.last_at, excluded.last_at)
RETURNING g.subscription, g.group_id, g.depth, g.last_at, g.delayed_until, coalesce($6, now()) AS now";

/// The groups of new deliveries, which stay locked until the end of the transaction.
pub(super) struct EnteredGroups {
    groups: HashMap<Group, Entered>,
    /// Groups that were left out because they have arrivals.
    pub left_out: Vec<Group>,
}

/// Locks the groups of these deliveries and adds to their depth. `behind_arrivals`: leaves out groups with arrivals.
pub(super) async fn enter<'a>(
    connection: &mut PgConnection,
    namespace: &str,
    members: impl Iterator<Item = NewMember<'a>>,
    behind_arrivals: bool,
    now: Option<Timestamp>,
) -> Result<EnteredGroups> {
    let mut counts: Groups<i64> = Groups::new();
    members.filter_map(|member| member.group()).for_each(|group| *counts.entry(group).or_default() += 1);
    let mut groups = HashMap::with_capacity(counts.len());
    if counts.is_empty() {
        return Ok(EnteredGroups { groups, left_out: Vec::new() });
    }
    let (subscriptions, group_ids) = names(counts.keys());
    let members: Vec<i64> = counts.values().copied().collect();
    let enter = sqlx::query(ENTER)
        .bind(namespace)
        .bind(subscriptions)
        .bind(group_ids)
        .bind(members)
        .bind(behind_arrivals)
        .bind(now);
    for row in enter.fetch_all(connection).await.map_err(from_sqlx)? {
        let group: Group = (get(&row, "subscription")?, get(&row, "group_id")?);
        let entered = Entered {
            was_empty: Some(&get::<i64>(&row, "depth")?) == counts.get(&group),
            now: get(&row, "now")?,
            last_at: get(&row, "last_at")?,
            delayed_until: get(&row, "delayed_until")?,
        };
        groups.insert(group, entered);
    }
    let left_out = counts.into_keys().filter(|group| !groups.contains_key(group)).collect();
    Ok(EnteredGroups { groups, left_out })
}

/// How a new delivery is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Entry {
    /// The delivery waits for its group.
    pub waits: bool,
    /// When it is due in its group; `None` without a group.
    pub due_at: Option<Timestamp>,
}

/// How new deliveries are stored, and the groups to update after that.
#[derive(Default)]
pub(super) struct Entries {
    /// One for each delivery, in order.
    pub entries: Vec<Entry>,
    /// Groups whose first delivery is delayed while a new one is due earlier.
    overtaken: Groups<()>,
    /// Groups whose first delivery is new and delayed until this time.
    delayed: Groups<Timestamp>,
}

impl Entries {
    pub fn new<'a>(entered: &EnteredGroups, members: impl Iterator<Item = NewMember<'a>>) -> Entries {
        let mut planned = Entries::default();
        // Of each group, the first new delivery: when it is due, its order, and its index.
        let mut first: HashMap<Group, (Timestamp, i64, usize)> = HashMap::new();
        for (at, member) in members.enumerate() {
            let found = member.group().and_then(|group| Some((*entered.groups.get(&group)?, group)));
            let Some((entered, group)) = found else {
                planned.entries.push(Entry::default());
                continue;
            };
            let run_at = member.run_at.or(member.delay.map(|delay| after(entered.now, delay)));
            let earliest = if member.is_past { run_at } else { None }.unwrap_or(entered.last_at);
            let due_at = run_at.map_or(earliest, |run_at| run_at.max(earliest));
            planned.entries.push(Entry { waits: true, due_at: Some(due_at) });
            let new = (due_at, member.order, at);
            first.entry(group).and_modify(|first| *first = new.min(*first)).or_insert(new);
        }
        for (group, (due_at, _, at)) in first {
            let Some(entered) = entered.groups.get(&group) else { continue };
            if entered.was_empty {
                planned.entries[at].waits = false;
                if due_at > entered.now {
                    planned.delayed.insert(group, due_at);
                }
            } else if entered.delayed_until.is_some_and(|until| until > due_at) {
                planned.overtaken.insert(group, ());
            }
        }
        planned
    }

    /// Call it after the deliveries are stored: new deliveries that are due before a delayed one overtake it. Returns
    /// the lanes in which deliveries became ready.
    pub async fn settle(
        &self,
        connection: &mut PgConnection,
        namespace: &str,
        now: Option<Timestamp>,
    ) -> Result<Vec<ReadyLane>> {
        if !self.delayed.is_empty() {
            mark_delayed(connection, namespace, &self.delayed).await?;
        }
        if self.overtaken.is_empty() {
            return Ok(Vec::new());
        }
        lock_ready(connection, namespace, &self.overtaken).await?;
        advance(connection, namespace, &self.overtaken, now).await
    }
}

const MARK_DELAYED: &str = "
UPDATE windlass.event_groups g SET delayed_until = i.delayed_until
FROM (
    SELECT g.tid, i.delayed_until
    FROM unnest($2::text[], $3::text[], $4::timestamptz[]) AS i(subscription, group_id, delayed_until)
    CROSS JOIN LATERAL (
        SELECT g.ctid AS tid FROM windlass.event_groups g
        WHERE g.group_id = i.group_id AND g.subscription = i.subscription AND g.namespace = $1 LIMIT 1) AS g
    OFFSET 0) AS i
WHERE g.ctid = i.tid AND (g.namespace = $1) IS TRUE";

async fn mark_delayed(connection: &mut PgConnection, namespace: &str, delayed: &Groups<Timestamp>) -> Result<()> {
    let (subscriptions, groups) = names(delayed.keys());
    let until: Vec<Timestamp> = delayed.values().copied().collect();
    let mark = sqlx::query(MARK_DELAYED).bind(namespace).bind(subscriptions).bind(groups).bind(until);
    mark.execute(connection).await.map_err(from_sqlx).map(drop)
}

// A claim may be leasing the delayed delivery at this moment, because it is due. Locking the row waits for that claim.
// Leased rows are not locked: the transaction of a handler may keep them locked for long.
pub(super) const LOCK_READY: &str = "
SELECT 1 FROM unnest($2::text[], $3::text[]) AS g(subscription, group_id)
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.event_queue q
    WHERE q.group_id = g.group_id AND q.subscription = g.subscription AND q.namespace = $1 AND isfinite(q.ready_at)
      AND q.lease IS NULL
    FOR UPDATE) AS locked";

async fn lock_ready(connection: &mut PgConnection, namespace: &str, groups: &Groups<()>) -> Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let (subscriptions, groups) = names(groups.keys());
    let lock = sqlx::query(LOCK_READY).bind(namespace).bind(subscriptions).bind(groups);
    lock.execute(connection).await.map_err(from_sqlx).map(drop)
}

pub(super) const LOCK: &str = "
SELECT 1 FROM unnest($2::text[], $3::text[]) AS i(subscription, group_id)
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.event_groups g
    WHERE g.group_id = i.group_id AND g.subscription = i.subscription AND g.namespace = $1
    FOR UPDATE) AS locked";

/// Locks the groups, in order.
pub(super) async fn lock<T>(connection: &mut PgConnection, namespace: &str, groups: &Groups<T>) -> Result<()> {
    let (subscriptions, groups) = names(groups.keys());
    let lock = sqlx::query(LOCK).bind(namespace).bind(subscriptions).bind(groups);
    lock.execute(connection).await.map_err(from_sqlx).map(drop)
}

/// A delivery of a group that does not succeed: the later ones of its run are released.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunStop<'a> {
    pub subscription: &'a str,
    pub group_id: &'a str,
    pub event_id: i64,
    pub subscription_id: i64,
    pub lease: i64,
    /// Only if its lease has expired.
    pub expired: bool,
}

// A heartbeat extends the leases of a run without locking its group, and an UPDATE skips rows that are changed
// concurrently. After locking them here, the next statement sees the current rows.
pub(super) const LOCK_RUN: &str = "
SELECT 1 FROM unnest($2::text[], $3::text[], $4::bigint[]) AS g(subscription, group_id, lease)
CROSS JOIN LATERAL (
    SELECT s.run_to FROM windlass.event_groups s
    WHERE s.group_id = g.group_id AND s.subscription = g.subscription AND s.namespace = $1 AND s.run_lease = g.lease
      AND s.run_left > 1 LIMIT 1) AS s
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.event_queue q
    WHERE q.group_id = g.group_id AND q.subscription = g.subscription AND q.namespace = $1 AND NOT isfinite(q.ready_at)
      AND q.due_at <= s.run_to AND q.lease = g.lease
    ORDER BY q.due_at, q.event_id FOR UPDATE) AS locked";

// Releases the rest of the runs as if it had not been claimed: its attempts had not begun.
pub(super) const RELEASE_RUN: &str = "
WITH later AS MATERIALIZED (
    SELECT m.tid, min(g.n) AS n
    FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[]) WITH ORDINALITY
      AS g(subscription, group_id, event_id, subscription_id, lease, expired, n)
    CROSS JOIN LATERAL (
        SELECT s.run_to FROM windlass.event_groups s
        WHERE s.group_id = g.group_id AND s.subscription = g.subscription AND s.namespace = $1 AND s.run_lease = g.lease
          AND s.run_left > 1 LIMIT 1) AS s
    CROSS JOIN LATERAL (
        SELECT f.due_at FROM windlass.event_queue f
        WHERE f.event_id BETWEEN g.event_id AND g.event_id AND f.subscription_id = g.subscription_id AND f.lease = g.lease
          AND (NOT g.expired OR f.lease_expires_at <= coalesce($8, now()))
        ORDER BY f.event_id LIMIT 1) AS f
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.group_id = g.group_id AND q.subscription = g.subscription AND q.namespace = $1 AND NOT isfinite(q.ready_at)
          AND q.due_at <= s.run_to AND (q.due_at, q.event_id) > (f.due_at, g.event_id) AND q.lease = g.lease
        OFFSET 0) AS m
    GROUP BY m.tid
), released AS (
    UPDATE windlass.event_queue q SET lease = NULL, attempts = q.attempts - 1, updated_at = coalesce($8, now())
    FROM later l WHERE q.ctid = l.tid AND (q.namespace = $1) IS TRUE AND q.lease IS NOT NULL
    RETURNING l.n
)
UPDATE windlass.event_groups g SET run_left = g.run_left - r.released
FROM (
    SELECT g.tid, r.released FROM (SELECT r.n, count(*) AS released FROM released r GROUP BY r.n) AS r
    CROSS JOIN LATERAL (
        SELECT g.ctid AS tid FROM windlass.event_groups g
        WHERE g.group_id = ($3::text[])[r.n] AND g.subscription = ($2::text[])[r.n] AND g.namespace = $1 LIMIT 1) AS g
    OFFSET 0) AS r
WHERE g.ctid = r.tid AND (g.namespace = $1) IS TRUE";

/// Releases the deliveries after these in their runs. The groups are locked.
pub(super) async fn release_runs(
    connection: &mut PgConnection,
    namespace: &str,
    stops: &[RunStop<'_>],
    now: Option<Timestamp>,
) -> Result<()> {
    if stops.is_empty() {
        return Ok(());
    }
    let lock = sqlx::query(LOCK_RUN)
        .bind(namespace)
        .bind(column(stops, |stop| stop.subscription))
        .bind(column(stops, |stop| stop.group_id))
        .bind(column(stops, |stop| stop.lease));
    if lock.execute(&mut *connection).await.map_err(from_sqlx)?.rows_affected() == 0 {
        return Ok(());
    }
    let release = sqlx::query(RELEASE_RUN)
        .bind(namespace)
        .bind(column(stops, |stop| stop.subscription))
        .bind(column(stops, |stop| stop.group_id))
        .bind(column(stops, |stop| stop.event_id))
        .bind(column(stops, |stop| stop.subscription_id))
        .bind(column(stops, |stop| stop.lease))
        .bind(column(stops, |stop| stop.expired))
        .bind(now);
    release.execute(connection).await.map_err(from_sqlx).map(drop)
}

/// The changes of one group by a transaction. All zero if only departures are settled.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GroupChange {
    /// How many left the queue.
    pub ended: i64,
    /// How many were requeued.
    pub requeued: i64,
    /// The lease of the deliveries that were in progress, and their number.
    pub lease: Option<i64>,
    pub of_lease: i32,
}

// Includes committed departures. The namespace is compared `IS TRUE` so that the planner cannot use an index for it:
// see `retain::DELETE_ATTEMPTS`.
pub(super) const LEAVE: &str = "
WITH departed AS (
    DELETE FROM windlass.departures d WHERE (d.namespace = $1) IS TRUE AND d.ctid = ANY(ARRAY(
        SELECT d.tid FROM unnest($2::text[], $3::text[]) AS i(subscription, group_id)
        CROSS JOIN LATERAL (
            SELECT d.ctid AS tid FROM windlass.departures d
            WHERE d.namespace = $1 AND d.group_id = i.group_id AND d.subscription = i.subscription OFFSET 0) AS d))
    RETURNING d.subscription, d.group_id, d.lease
), found AS MATERIALIZED (
    SELECT g.tid, i.n, i.ended + d.ended AS ended,
           CASE WHEN g.run_lease = i.lease THEN i.of_lease ELSE 0 END + d.of_run AS of_run
    FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::integer[]) WITH ORDINALITY
      AS i(subscription, group_id, ended, lease, of_lease, n)
    CROSS JOIN LATERAL (
        SELECT g.ctid AS tid, g.run_lease FROM windlass.event_groups g
        WHERE g.group_id = i.group_id AND g.subscription = i.subscription AND g.namespace = $1 LIMIT 1) AS g
    CROSS JOIN LATERAL (
        SELECT count(*) AS ended, count(*) FILTER (WHERE d.lease = g.run_lease) AS of_run FROM departed d
        WHERE d.subscription = i.subscription AND d.group_id = i.group_id) AS d
)
UPDATE windlass.event_groups g SET depth = g.depth - i.ended, run_left = greatest(g.run_left - i.of_run, 0)
FROM found i WHERE g.ctid = i.tid AND (g.namespace = $1) IS TRUE
RETURNING i.n, g.depth, g.run_left";

pub(super) const REMOVE_EMPTY: &str = "
DELETE FROM windlass.event_groups g WHERE (g.namespace = $1) IS TRUE AND g.ctid = ANY(ARRAY(
    SELECT g.tid FROM unnest($2::text[], $3::text[]) AS i(subscription, group_id)
    CROSS JOIN LATERAL (
        SELECT g.ctid AS tid FROM windlass.event_groups g
        WHERE g.group_id = i.group_id AND g.subscription = i.subscription AND g.namespace = $1 AND g.depth <= 0
        LIMIT 1) AS g))";

// A worker reported a later delivery of its run before an earlier one, which is still in progress.
pub(super) const PARK: &str = "
UPDATE windlass.event_queue q SET ready_at = 'infinity'
FROM (
    SELECT r.tid FROM unnest($2::text[], $3::text[]) AS g(subscription, group_id)
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.group_id = g.group_id AND q.subscription = g.subscription AND q.namespace = $1 AND isfinite(q.ready_at)
          AND q.lease IS NULL
        OFFSET 0) AS r) AS r
WHERE q.ctid = r.tid AND (q.namespace = $1) IS TRUE";

/// Applies changes of deliveries to their groups, which are locked, and makes the next deliveries ready.
pub(super) async fn apply(
    connection: &mut PgConnection,
    namespace: &str,
    changes: &Groups<GroupChange>,
    now: Option<Timestamp>,
) -> Result<Vec<ReadyLane>> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let by_number: Vec<(&Group, &GroupChange)> = changes.iter().collect();
    let (subscriptions, groups) = names(changes.keys());
    let leave = sqlx::query(LEAVE)
        .bind(namespace)
        .bind(subscriptions)
        .bind(groups)
        .bind(column(&by_number, |(_, change)| change.ended))
        .bind(column(&by_number, |(_, change)| change.lease))
        .bind(column(&by_number, |(_, change)| change.of_lease));
    let (mut empty, mut waiting, mut parked) = (Groups::new(), Groups::new(), Groups::new());
    for row in leave.fetch_all(&mut *connection).await.map_err(from_sqlx)? {
        let (group, change) = by_number[get::<i64>(&row, "n")? as usize - 1];
        let (depth, run_left): (i64, i32) = (get(&row, "depth")?, get(&row, "run_left")?);
        let next = match (depth, run_left) {
            (..=0, _) => &mut empty,
            (_, 0) => &mut waiting,
            _ if change.requeued > 0 => &mut parked,
            _ => continue,
        };
        next.insert(group.clone(), ());
    }
    for (sql, groups) in [(REMOVE_EMPTY, &empty), (PARK, &parked)] {
        if !groups.is_empty() {
            let (subscriptions, groups) = names(groups.keys());
            let query = sqlx::query(sql).bind(namespace).bind(subscriptions).bind(groups);
            query.execute(&mut *connection).await.map_err(from_sqlx)?;
        }
    }
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    // If no delivery of a group was in progress, it may have a ready one that a claim is leasing.
    let idle: Groups<()> =
        changes.iter().filter(|(_, change)| change.lease.is_none()).map(|(g, _)| (g.clone(), ())).collect();
    lock_ready(connection, namespace, &idle).await?;
    advance(connection, namespace, &waiting, now).await
}

// The number of departures to read in one batch.
const DEPARTED: &str = "SELECT subscription, group_id FROM windlass.departures WHERE namespace = $1 LIMIT 1000";

// Not synced: departures that come back after a crash are settled again.
const BEGIN: &str = "BEGIN; SET LOCAL synchronous_commit = off";

/// Advances these groups, or all groups with departures. Returns the lanes in which deliveries became ready.
pub(super) async fn settle_departures(
    store: &PgStore,
    namespace: &str,
    groups: Option<&[Group]>,
    now: Option<Timestamp>,
) -> Result<Vec<ReadyLane>> {
    let mut connection = store.routes.get().await?;
    let groups: Groups<GroupChange> = match groups {
        Some(groups) => groups.iter().map(|group| (group.clone(), GroupChange::default())).collect(),
        None => {
            let found: Vec<Group> =
                sqlx::query_as(DEPARTED).bind(namespace).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
            found.into_iter().map(|group| (group, GroupChange::default())).collect()
        }
    };
    let mut ready_lanes = Vec::new();
    if !groups.is_empty() {
        let mut tx = connection.begin_with(BEGIN).await.map_err(from_sqlx)?;
        lock(&mut tx, namespace, &groups).await?;
        ready_lanes = apply(&mut tx, namespace, &groups, now).await?;
        tx.commit().await.map_err(from_sqlx)?;
    }
    connection.done();
    store.notify(namespace, ready_lanes.clone());
    Ok(ready_lanes)
}

// Makes the first delivery of each group ready, by due time, unless one is in progress or waits for its retry. Another
// one that is ready but due later waits again. The index returns ready deliveries before the others, in this order, so
// each part reads a few rows however long the group is. Deliveries that are due by the time of the group are ready now,
// even if the clock was set back.
pub(super) const ADVANCE: &str = "
WITH head AS MATERIALIZED (
    SELECT g.subscription, g.group_id, c.tid, c.waits,
           CASE WHEN c.due_at <= s.last_at THEN least(c.due_at, coalesce($4, now())) ELSE c.due_at END AS ready_at
    FROM unnest($2::text[], $3::text[]) AS g(subscription, group_id)
    CROSS JOIN LATERAL (
        SELECT s.last_at, s.run_left FROM windlass.event_groups s
        WHERE s.group_id = g.group_id AND s.subscription = g.subscription AND s.namespace = $1 LIMIT 1) AS s
    CROSS JOIN LATERAL (
        SELECT m.* FROM (
            SELECT * FROM (
                SELECT q.ctid AS tid, q.due_at, q.event_id, q.lease, false AS waits, q.ready_at > q.due_at AS is_retry
                FROM windlass.event_queue q
                WHERE q.group_id = g.group_id AND q.subscription = g.subscription AND q.namespace = $1
                  AND isfinite(q.ready_at) OFFSET 0) AS ready
            UNION ALL
            SELECT * FROM (
                SELECT q.ctid, q.due_at, q.event_id, q.lease, true, false FROM windlass.event_queue q
                WHERE q.group_id = g.group_id AND q.subscription = g.subscription AND q.namespace = $1
                  AND NOT isfinite(q.ready_at)
                ORDER BY q.due_at, q.event_id LIMIT 1) AS waiting) AS m
        ORDER BY m.lease IS NULL, NOT m.is_retry, m.due_at, m.event_id LIMIT 1) AS c
    WHERE s.run_left = 0 AND c.lease IS NULL
), target AS MATERIALIZED (
    SELECT h.tid, h.ready_at FROM head h WHERE h.waits
    UNION ALL
    SELECT q.tid, 'infinity' FROM head h
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.group_id = h.group_id AND q.subscription = h.subscription AND q.namespace = $1
          AND isfinite(q.ready_at) AND q.ctid <> h.tid
        OFFSET 0) AS q
)
UPDATE windlass.event_queue q SET ready_at = t.ready_at, out_of_order = true
FROM target t WHERE q.ctid = t.tid AND (q.namespace = $1) IS TRUE AND q.lease IS NULL
RETURNING q.subscription_id, q.lane_id, q.subscription, q.group_id, q.ready_at,
          isfinite(q.ready_at) AS is_ready, q.ready_at > coalesce($4, now()) AS delayed";

/// Makes the first delivery of each group ready, unless one is in progress. The groups are locked.
async fn advance(
    connection: &mut PgConnection,
    namespace: &str,
    groups: &Groups<()>,
    now: Option<Timestamp>,
) -> Result<Vec<ReadyLane>> {
    let (subscriptions, group_ids) = names(groups.keys());
    let advance = sqlx::query(ADVANCE).bind(namespace).bind(subscriptions).bind(group_ids).bind(now);
    let (mut ready_lanes, mut delayed) = (Vec::new(), Groups::new());
    for row in advance.fetch_all(&mut *connection).await.map_err(from_sqlx)? {
        if !get::<bool>(&row, "is_ready")? {
            continue;
        }
        ready_lanes.push(ReadyLane {
            subscription_id: get(&row, "subscription_id")?,
            lane_id: get(&row, "lane_id")?,
            rewind: true,
        });
        if get(&row, "delayed")? {
            delayed.insert((get(&row, "subscription")?, get(&row, "group_id")?), get(&row, "ready_at")?);
        }
    }
    if !delayed.is_empty() {
        mark_delayed(connection, namespace, &delayed).await?;
    }
    Ok(ready_lanes)
}

fn names<'a>(groups: impl Iterator<Item = &'a Group>) -> (Vec<&'a str>, Vec<&'a str>) {
    groups.map(|(subscription, group)| (subscription.as_str(), group.as_str())).unzip()
}
