//! Groups: one at a time, in order. The row in `event_groups` is the lock on a group.

use std::collections::{BTreeMap, HashMap};

use sqlx::PgConnection;

use super::error::from_sqlx;
use super::row::get;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::store::NewDelivery;
use crate::wake::ReadyLane;

/// Subscription and group id.
pub(super) type Group = (String, String);

/// Groups in the one order in which everyone locks them.
pub(super) type Groups<T> = BTreeMap<Group, T>;

/// How many members each group gets.
pub(super) fn members<'a>(deliveries: impl Iterator<Item = (Option<&'a str>, &'a NewDelivery)>) -> Groups<i64> {
    let mut members = Groups::new();
    for (group_id, delivery) in deliveries {
        if let Some(group_id) = group_id {
            *members.entry((delivery.subscription.clone(), group_id.to_owned())).or_default() += 1;
        }
    }
    members
}

// With $5, a group that has arrivals is not entered: its order is the router's.
const ENTER: &str = "
INSERT INTO windlass.event_groups AS g (namespace, subscription, group_id, depth)
SELECT $1, i.subscription, i.group_id, i.members
FROM unnest($2::text[], $3::text[], $4::bigint[]) AS i(subscription, group_id, members)
WHERE NOT ($5 AND EXISTS (SELECT FROM windlass.arrivals a WHERE a.namespace = $1 AND a.group_id = i.group_id))
ON CONFLICT (group_id, subscription, namespace) DO UPDATE SET depth = g.depth + excluded.depth
RETURNING g.subscription, g.group_id, g.depth";

/// Locks the groups and counts so many members in; which groups were not empty before. `behind_arrivals`: groups that have
/// arrivals are left out.
pub(super) async fn enter(
    connection: &mut PgConnection,
    namespace: &str,
    members: &Groups<i64>,
    behind_arrivals: bool,
) -> Result<HashMap<Group, bool>> {
    let (subscriptions, groups) = names(members.keys());
    let counts: Vec<i64> = members.values().copied().collect();
    let enter = sqlx::query(ENTER).bind(namespace).bind(subscriptions).bind(groups).bind(counts).bind(behind_arrivals);
    let rows = enter.fetch_all(connection).await.map_err(from_sqlx)?;
    let mut busy = HashMap::with_capacity(rows.len());
    for row in rows {
        let group: Group = (get(&row, "subscription")?, get(&row, "group_id")?);
        let before = get::<i64>(&row, "depth")? - members.get(&group).copied().unwrap_or(0);
        busy.insert(group, before > 0);
    }
    Ok(busy)
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

// Of the namespace in words that no index serves: see `retain::DELETE_ATTEMPTS`. Else the groups of everybody could be gone
// through for each batch.
pub(super) const LEAVE: &str = "
WITH found AS MATERIALIZED (
    SELECT g.tid, i.members FROM unnest($2::text[], $3::text[], $4::bigint[]) AS i(subscription, group_id, members)
    CROSS JOIN LATERAL (
        SELECT g.ctid AS tid FROM windlass.event_groups g
        WHERE g.group_id = i.group_id AND g.subscription = i.subscription AND g.namespace = $1 LIMIT 1) AS g
)
UPDATE windlass.event_groups g SET depth = g.depth - i.members
FROM found i WHERE g.ctid = i.tid AND (g.namespace = $1) IS TRUE";

pub(super) const REMOVE_EMPTY: &str = "
DELETE FROM windlass.event_groups g WHERE (g.namespace = $1) IS TRUE AND g.ctid = ANY(ARRAY(
    SELECT g.tid FROM unnest($2::text[], $3::text[]) AS i(subscription, group_id)
    CROSS JOIN LATERAL (
        SELECT g.ctid AS tid FROM windlass.event_groups g
        WHERE g.group_id = i.group_id AND g.subscription = i.subscription AND g.namespace = $1 AND g.depth <= 0
        LIMIT 1) AS g))";

/// Counts members out of groups that are locked.
pub(super) async fn leave(connection: &mut PgConnection, namespace: &str, members: &Groups<i64>) -> Result<()> {
    let (subscriptions, groups) = names(members.keys());
    let counts: Vec<i64> = members.values().copied().collect();
    let leave = sqlx::query(LEAVE).bind(namespace).bind(&subscriptions).bind(&groups).bind(counts);
    leave.execute(&mut *connection).await.map_err(from_sqlx)?;
    let remove = sqlx::query(REMOVE_EMPTY).bind(namespace).bind(subscriptions).bind(groups);
    remove.execute(connection).await.map_err(from_sqlx).map(drop)
}

// Whoever is ready or held comes first in the index, then whoever waits, by id: each part reads a few
// rows however long the group is. With `pass`, who waits for a retry does not hold up the others. NOT EXISTS
// would become a join, and that may read the members of all groups.
pub(super) const ADVANCE: &str = "
WITH next AS MATERIALIZED (
    SELECT g.subscription, g.group_id, n.tid, n.due_at
    FROM unnest($2::text[], $3::text[], $4::boolean[]) AS g(subscription, group_id, pass)
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT q.ctid AS tid, q.due_at FROM windlass.event_queue q
            WHERE g.pass AND q.group_id = g.group_id AND q.subscription = g.subscription AND q.namespace = $1
              AND q.ready_at = 'infinity' AND q.due_at <= coalesce($5, now())
            ORDER BY q.event_id LIMIT 1) AS due
        UNION ALL
        SELECT * FROM (
            SELECT q.ctid AS tid, q.due_at FROM windlass.event_queue q
            WHERE g.pass AND q.group_id = g.group_id AND q.subscription = g.subscription AND q.namespace = $1
            ORDER BY q.due_at, q.event_id LIMIT 1) AS soonest
        UNION ALL
        SELECT * FROM (
            SELECT q.ctid AS tid, q.due_at FROM windlass.event_queue q
            WHERE NOT g.pass AND q.group_id = g.group_id AND q.subscription = g.subscription AND q.namespace = $1
            ORDER BY q.ready_at, q.event_id LIMIT 1) AS head
        LIMIT 1) AS n
    WHERE (
        SELECT true FROM windlass.event_queue a
        WHERE a.group_id = g.group_id AND a.subscription = g.subscription AND a.namespace = $1
          AND a.ready_at < 'infinity' AND (a.lease IS NOT NULL OR a.ready_at <= coalesce($5, now()))
        LIMIT 1) IS NULL
), target AS MATERIALIZED (
    SELECT n.tid, n.due_at AS ready_at FROM next n
    UNION ALL
    SELECT q.tid, 'infinity' FROM next n
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.group_id = n.group_id AND q.subscription = n.subscription AND q.namespace = $1
          AND q.ready_at < 'infinity' AND q.ctid <> n.tid
        OFFSET 0) AS q
)
UPDATE windlass.event_queue q SET ready_at = t.ready_at, out_of_order = true
FROM target t WHERE q.ctid = t.tid AND q.namespace = $1 AND q.ready_at <> t.ready_at
RETURNING q.subscription_id, q.lane_id, q.ready_at < 'infinity' AS freed";

// Under `pass`, whoever is ready may be claimed at this very moment: locking them waits for that claim.
pub(super) const LOCK_READY: &str = "
SELECT 1 FROM unnest($2::text[], $3::text[], $4::boolean[]) AS g(subscription, group_id, pass)
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.event_queue q
    WHERE g.pass AND q.group_id = g.group_id AND q.subscription = g.subscription AND q.namespace = $1
      AND q.ready_at < 'infinity'
    FOR UPDATE) AS locked";

/// Lets each group that has nobody at work go on; `pass`: past those who wait for a retry.
pub(super) async fn advance(
    connection: &mut PgConnection,
    namespace: &str,
    pass: &Groups<bool>,
    now: Option<Timestamp>,
) -> Result<Vec<ReadyLane>> {
    let (subscriptions, groups) = names(pass.keys());
    let passes: Vec<bool> = pass.values().copied().collect();
    if passes.contains(&true) {
        let ready = sqlx::query(LOCK_READY).bind(namespace).bind(&subscriptions).bind(&groups).bind(&passes);
        ready.execute(&mut *connection).await.map_err(from_sqlx)?;
    }
    let advance = sqlx::query(ADVANCE).bind(namespace).bind(subscriptions).bind(groups).bind(passes).bind(now);
    let mut freed = Vec::new();
    for row in advance.fetch_all(connection).await.map_err(from_sqlx)? {
        if get(&row, "freed")? {
            freed.push(ReadyLane {
                subscription_id: get(&row, "subscription_id")?,
                lane_id: get(&row, "lane_id")?,
                rewind: true,
            });
        }
    }
    Ok(freed)
}

fn names<'a>(groups: impl Iterator<Item = &'a Group>) -> (Vec<&'a str>, Vec<&'a str>) {
    groups.map(|(subscription, group)| (subscription.as_str(), group.as_str())).unzip()
}
