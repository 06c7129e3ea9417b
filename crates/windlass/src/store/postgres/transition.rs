//! Applying what was decided: one statement for each kind of change, in one transaction.

use std::collections::{HashMap, HashSet};

use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection};

use super::PgStore;
use super::again::{self, despite_deadlocks, fill, missed};
use super::enqueue::column;
use super::error::from_sqlx;
use super::group::{self, Freed, Groups};
use super::results;
use super::row::{attempt, get};
use crate::clock::{Timestamp, micros};
use crate::decide::{Transition, When};
use crate::error::Result;
use crate::outcome::Attempt;
use crate::store::{Applied, Change, Guard};

pub(super) async fn transition(
    store: &PgStore,
    namespace: &str,
    changes: &[Change],
    now: Option<Timestamp>,
) -> Result<Applied> {
    let mut applied = despite_deadlocks!(once(store, namespace, changes, false, now))?;
    // Passed over, or lost.
    let missed = missed(changes, &applied.attempts);
    if !missed.is_empty() {
        let second = despite_deadlocks!(once(store, namespace, &missed, true, now))?;
        fill(&mut applied.attempts, second.attempts);
        applied.freed.extend(second.freed);
    }
    Ok(applied)
}

async fn once(
    store: &PgStore,
    namespace: &str,
    changes: &[Change],
    locking: bool,
    now: Option<Timestamp>,
) -> Result<Applied> {
    let mut connection = store.writes.get().await?;
    let (attempts, freed) = if is_one_statement(changes) && !locking {
        let rows = Kinds::of(changes).apply(&mut connection, namespace, now).await?;
        (in_order(changes, &rows)?, requeued(&rows)?)
    } else {
        let mut tx = connection.begin().await.map_err(from_sqlx)?;
        let applied = apply(&mut tx, namespace, changes, locking, now).await?;
        tx.commit().await.map_err(from_sqlx)?;
        applied
    };
    connection.done();
    let lanes = freed.iter().map(|(lane, _)| *lane).collect();
    store.freed(namespace, freed);
    Ok(Applied { attempts, freed: lanes })
}

/// Whether one statement, which needs no transaction around it, does all.
fn is_one_statement(changes: &[Change]) -> bool {
    let alone = |change: &Change| group_of(change).is_none() && !change.concerns_results();
    changes.iter().all(alone) && Kinds::of(changes).is_one_statement()
}

/// Applies changes in the caller's transaction; where something became ready.
pub(super) async fn apply(
    connection: &mut PgConnection,
    namespace: &str,
    changes: &[Change],
    locking: bool,
    now: Option<Timestamp>,
) -> Result<(Vec<Option<Attempt>>, Vec<Freed>)> {
    let groups: Groups<bool> =
        changes.iter().filter_map(|change| Some((group_of(change)?, change.pass_group))).collect();
    if !groups.is_empty() {
        group::lock(connection, namespace, &groups).await?;
    }
    if locking {
        again::lock(connection, namespace, changes.iter().map(|change| &change.live)).await?;
    }
    let rows = Kinds::of(changes).apply(connection, namespace, now).await?;
    forget(connection, namespace, &rows).await?;
    results::write(connection, namespace, &applied(changes, &rows)?, now).await?;
    let moved = move_groups_on(connection, namespace, &groups, changes, &rows, now).await?;
    let freed = requeued(&rows)?.into_iter().chain(moved).collect();
    Ok((in_order(changes, &rows)?, freed))
}

fn group_of(change: &Change) -> Option<group::Group> {
    change.live.group_id.as_ref().map(|group_id| (change.live.subscription.clone(), group_id.clone()))
}

/// The changes, sorted by the statement that applies them.
#[derive(Default)]
struct Kinds<'a> {
    ends: Vec<(&'a Change, bool)>,
    requeues: Vec<Requeue<'a>>,
    burials: Vec<Burial<'a>>,
}

struct Requeue<'a> {
    change: &'a Change,
    delay_us: Option<i64>,
    failed: bool,
    free: bool,
    pass_group: bool,
}

struct Burial<'a> {
    change: &'a Change,
    status: &'static str,
    reason: &'a str,
    failed: bool,
}

impl<'a> Kinds<'a> {
    fn of(changes: &'a [Change]) -> Kinds<'a> {
        let mut kinds = Kinds::default();
        for change in changes {
            match &change.transition {
                Transition::End { forget } => kinds.ends.push((change, *forget)),
                Transition::Requeue { when, failed, free, pass_group } => {
                    let delay_us = match when {
                        When::Unchanged => None,
                        When::After(delay) => Some(micros(*delay)),
                    };
                    let (failed, free, pass_group) = (*failed, *free, *pass_group);
                    kinds.requeues.push(Requeue { change, delay_us, failed, free, pass_group });
                }
                Transition::Bury { status, reason, failed } => {
                    kinds.burials.push(Burial { change, status: status.as_str(), reason, failed: *failed });
                }
            }
        }
        kinds
    }

    fn is_one_statement(&self) -> bool {
        let kinds = [!self.ends.is_empty(), !self.requeues.is_empty(), !self.burials.is_empty()];
        kinds.into_iter().filter(|used| *used).count() == 1 && !self.ends.iter().any(|(_, forget)| *forget)
    }

    async fn apply(
        &self,
        connection: &mut PgConnection,
        namespace: &str,
        now: Option<Timestamp>,
    ) -> Result<Vec<PgRow>> {
        let mut rows = Vec::new();
        if !self.ends.is_empty() {
            rows.extend(end(connection, namespace, &self.ends, now).await?);
        }
        if !self.requeues.is_empty() {
            rows.extend(requeue(connection, namespace, &self.requeues, now).await?);
        }
        if !self.burials.is_empty() {
            rows.extend(bury(connection, namespace, &self.burials, now).await?);
        }
        Ok(rows)
    }
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Binds $1 to $10: what every kind of change has.
fn with_changes<'q>(
    sql: &'static str,
    namespace: &'q str,
    now: Option<Timestamp>,
    changes: &[&'q Change],
) -> Query<'q> {
    let lease = |change: &&Change| match change.guard {
        Guard::Lease(lease) | Guard::RunOut(lease) => Some(lease.0),
        Guard::Free => None,
    };
    sqlx::query(sql)
        .bind(namespace)
        .bind(now)
        .bind(column(changes, |change| change.live.event_id))
        .bind(column(changes, |change| change.live.lane_id))
        .bind(changes.iter().map(lease).collect::<Vec<_>>())
        .bind(column(changes, |change| matches!(change.guard, Guard::RunOut(_))))
        .bind(column(changes, |change| change.action.as_str()))
        .bind(column(changes, |change| change.record.status_code))
        .bind(column(changes, |change| change.record.execution_time_ms.map(|ms| ms as i64)))
        .bind(column(changes, |change| change.record.error.as_deref()))
        .bind(column(changes, |change| change.record.detail.as_deref().map(|detail| detail.get())))
}

// Each row is looked up on its own (the LIMIT keeps the planner from turning the join around, which
// after an ANALYZE of an empty queue would read all of it), then changed by ctid.
pub(super) const END: &str = "
WITH found AS MATERIALIZED (
    SELECT q.tid, i.* FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::text[],
                                  $8::integer[], $9::bigint[], $10::text[], $11::text[], $12::boolean[])
      AS i(event_id, lane_id, lease, run_out, action, status_code, execution_time_ms, error, detail, forget)
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.event_id = i.event_id AND q.lane_id = i.lane_id AND q.namespace = $1
          AND q.lease IS NOT DISTINCT FROM i.lease LIMIT 1) AS q
), gone AS (
    DELETE FROM windlass.event_queue q USING found i
    WHERE q.ctid = i.tid AND q.namespace = $1 AND q.lease IS NOT DISTINCT FROM i.lease
      AND (NOT i.run_out OR q.lease_expires_at <= coalesce($2, now()))
    RETURNING q.event_id, q.lane_id, q.subscription, q.attempts AS attempt, q.lease,
        CASE WHEN q.lease IS NOT NULL THEN q.worker_id END AS worker_id,
        CASE WHEN q.lease IS NOT NULL THEN q.picked_at END AS picked_at,
        CASE WHEN q.lease IS NOT NULL THEN q.started_at END AS started_at,
        i.action, i.status_code, i.execution_time_ms, i.error AS error_message, i.detail, i.forget,
        q.retry_count, q.max_retries, q.created_at
), logged AS (
    INSERT INTO windlass.event_attempts (event_id, lane_id, attempt, namespace, subscription, lease, worker_id,
        picked_at, started_at, finished_at, action, status_code, execution_time_ms, error_message, detail,
        retry_count, max_retries)
    SELECT event_id, lane_id, attempt, $1, subscription, lease, worker_id, picked_at, started_at,
           coalesce($2, now()), action, status_code, execution_time_ms, error_message, detail::json,
           retry_count, max_retries
    FROM gone WHERE NOT forget
)
SELECT event_id, lane_id, subscription, attempt, worker_id, action, status_code, execution_time_ms, error_message,
       NULL::timestamptz AS next_retry_at, retry_count, max_retries, coalesce($2, now()) AS finished_at,
       forget, created_at, true AS gone
FROM gone";

async fn end(
    connection: &mut PgConnection,
    namespace: &str,
    ends: &[(&Change, bool)],
    now: Option<Timestamp>,
) -> Result<Vec<PgRow>> {
    let changes: Vec<&Change> = ends.iter().map(|(change, _)| *change).collect();
    let query = with_changes(END, namespace, now, &changes).bind(column(ends, |(_, forget)| *forget));
    query.fetch_all(connection).await.map_err(from_sqlx)
}

// worker_id, picked_at and started_at stay in the row: they say nothing while nobody holds it, and
// reading them here saves a second pass.
pub(super) const REQUEUE: &str = "
WITH found AS MATERIALIZED (
    SELECT q.tid, i.* FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::text[],
                                  $8::integer[], $9::bigint[], $10::text[], $11::text[], $12::bigint[],
                                  $13::boolean[], $14::boolean[], $15::boolean[])
      AS i(event_id, lane_id, lease, run_out, action, status_code, execution_time_ms, error, detail, delay_us,
           failed, free, pass_group)
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.event_id = i.event_id AND q.lane_id = i.lane_id AND q.namespace = $1
          AND q.lease IS NOT DISTINCT FROM i.lease LIMIT 1) AS q
), changed AS (
    UPDATE windlass.event_queue q
    SET lease = NULL,
        ready_at = CASE WHEN i.pass_group THEN 'infinity' WHEN i.delay_us IS NULL THEN q.ready_at
                        ELSE coalesce($2, now()) + i.delay_us * interval '1 microsecond' END,
        due_at = CASE WHEN q.group_id IS NULL THEN NULL WHEN i.delay_us IS NULL THEN q.due_at
                      ELSE coalesce($2, now()) + i.delay_us * interval '1 microsecond' END,
        retry_count = q.retry_count + i.failed::integer,
        attempts_limit = q.attempts_limit + i.free::integer,
        updated_at = coalesce($2, now())
    FROM found i
    WHERE q.ctid = i.tid AND q.namespace = $1 AND q.lease IS NOT DISTINCT FROM i.lease
      AND (NOT i.run_out OR q.lease_expires_at <= coalesce($2, now()))
    RETURNING q.event_id, q.lane_id, q.subscription, q.attempts AS attempt, i.lease,
        CASE WHEN i.lease IS NOT NULL THEN q.worker_id END AS worker_id,
        CASE WHEN i.lease IS NOT NULL THEN q.picked_at END AS picked_at,
        CASE WHEN i.lease IS NOT NULL THEN q.started_at END AS started_at,
        i.action, i.status_code, i.execution_time_ms, i.error AS error_message, i.detail,
        CASE WHEN q.ready_at = 'infinity' THEN q.due_at ELSE q.ready_at END AS next_retry_at,
        q.retry_count, q.max_retries, q.created_at
), logged AS (
    INSERT INTO windlass.event_attempts (event_id, lane_id, attempt, namespace, subscription, lease, worker_id,
        picked_at, started_at, finished_at, action, status_code, execution_time_ms, error_message, detail,
        next_retry_at, retry_count, max_retries)
    SELECT event_id, lane_id, attempt, $1, subscription, lease, worker_id, picked_at, started_at,
           coalesce($2, now()), action, status_code, execution_time_ms, error_message, detail::json,
           next_retry_at, retry_count, max_retries
    FROM changed
)
SELECT event_id, lane_id, subscription, attempt, worker_id, action, status_code, execution_time_ms, error_message,
       next_retry_at, retry_count, max_retries, coalesce($2, now()) AS finished_at,
       false AS forget, created_at, false AS gone
FROM changed";

async fn requeue(
    connection: &mut PgConnection,
    namespace: &str,
    requeues: &[Requeue<'_>],
    now: Option<Timestamp>,
) -> Result<Vec<PgRow>> {
    let changes: Vec<&Change> = requeues.iter().map(|requeue| requeue.change).collect();
    let query = with_changes(REQUEUE, namespace, now, &changes)
        .bind(column(requeues, |requeue| requeue.delay_us))
        .bind(column(requeues, |requeue| requeue.failed))
        .bind(column(requeues, |requeue| requeue.free))
        .bind(column(requeues, |requeue| requeue.pass_group));
    query.fetch_all(connection).await.map_err(from_sqlx)
}

pub(super) const BURY: &str = "
WITH found AS MATERIALIZED (
    SELECT q.tid, i.* FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::text[],
                                  $8::integer[], $9::bigint[], $10::text[], $11::text[], $12::text[], $13::text[],
                                  $14::boolean[])
      AS i(event_id, lane_id, lease, run_out, action, status_code, execution_time_ms, error, detail, status,
           reason, failed)
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.event_id = i.event_id AND q.lane_id = i.lane_id AND q.namespace = $1
          AND q.lease IS NOT DISTINCT FROM i.lease LIMIT 1) AS q
), gone AS (
    DELETE FROM windlass.event_queue q USING found i
    WHERE q.ctid = i.tid AND q.namespace = $1 AND q.lease IS NOT DISTINCT FROM i.lease
      AND (NOT i.run_out OR q.lease_expires_at <= coalesce($2, now()))
    RETURNING q.event_id, q.lane_id, q.subscription, q.attempts AS attempt, q.lease,
        CASE WHEN q.lease IS NOT NULL THEN q.worker_id END AS worker_id,
        CASE WHEN q.lease IS NOT NULL THEN q.picked_at END AS picked_at,
        CASE WHEN q.lease IS NOT NULL THEN q.started_at END AS started_at,
        i.action, i.status_code, i.execution_time_ms, i.error AS error_message, i.detail, i.status, i.reason,
        q.retry_count + i.failed::integer AS retry_count, q.max_retries, q.created_at
), logged AS (
    INSERT INTO windlass.event_attempts (event_id, lane_id, attempt, namespace, subscription, lease, worker_id,
        picked_at, started_at, finished_at, action, status_code, execution_time_ms, error_message, detail,
        retry_count, max_retries)
    SELECT event_id, lane_id, attempt, $1, subscription, lease, worker_id, picked_at, started_at,
           coalesce($2, now()), action, status_code, execution_time_ms, error_message, detail::json,
           retry_count, max_retries
    FROM gone
), buried AS (
    INSERT INTO windlass.dead_letters (event_id, lane_id, namespace, subscription, status, reason, error,
        attempts, retry_count, max_retries, failed_at, created_at)
    SELECT event_id, lane_id, $1, subscription, status, reason, error_message, attempt, retry_count, max_retries,
           coalesce($2, now()), created_at
    FROM gone
)
SELECT event_id, lane_id, subscription, attempt, worker_id, action, status_code, execution_time_ms, error_message,
       NULL::timestamptz AS next_retry_at, retry_count, max_retries, coalesce($2, now()) AS finished_at,
       false AS forget, created_at, true AS gone
FROM gone";

async fn bury(
    connection: &mut PgConnection,
    namespace: &str,
    burials: &[Burial<'_>],
    now: Option<Timestamp>,
) -> Result<Vec<PgRow>> {
    let changes: Vec<&Change> = burials.iter().map(|burial| burial.change).collect();
    let query = with_changes(BURY, namespace, now, &changes)
        .bind(column(burials, |burial| burial.status))
        .bind(column(burials, |burial| burial.reason))
        .bind(column(burials, |burial| burial.failed));
    query.fetch_all(connection).await.map_err(from_sqlx)
}

const FORGET: &str = "
WITH gone AS (
    DELETE FROM windlass.event_attempts a
    USING unnest($2::bigint[], $4::text[]) AS i(id, subscription)
    WHERE a.namespace = $1 AND a.event_id = i.id AND a.subscription = i.subscription
)
DELETE FROM windlass.events e
USING unnest($2::bigint[], $3::timestamptz[], $4::text[]) AS i(id, created_at, subscription)
WHERE e.namespace = $1 AND e.id = i.id AND e.created_at = i.created_at
  AND NOT EXISTS (SELECT FROM windlass.event_queue q WHERE q.event_id = i.id)
  AND NOT EXISTS (SELECT FROM windlass.dead_letters d WHERE d.event_id = i.id)
  AND NOT EXISTS (SELECT FROM windlass.event_attempts a
                  WHERE a.event_id = i.id AND a.namespace = $1 AND a.subscription <> i.subscription)";

// Who adds a delivery to a stored event holds that, and so does whoever forgets another delivery of it: the statement after
// this one sees what they did.
pub(super) const HOLD_EVENTS: &str = "
SELECT 1 FROM unnest($2::bigint[], $3::timestamptz[]) AS i(id, created_at)
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.events e WHERE e.id = i.id AND e.created_at = i.created_at AND e.namespace = $1
    LIMIT 1 FOR UPDATE) AS e";

/// Deletes the history of these deliveries and, unless another one is live, dead or kept, their events.
async fn forget(connection: &mut PgConnection, namespace: &str, rows: &[PgRow]) -> Result<()> {
    let mut forgotten: Vec<(i64, Timestamp, String)> = Vec::new();
    for row in rows {
        if get(row, "forget")? {
            forgotten.push((get(row, "event_id")?, get(row, "created_at")?, get(row, "subscription")?));
        }
    }
    if forgotten.is_empty() {
        return Ok(());
    }
    // Everybody locks in the order of ids.
    forgotten.sort();
    let (ids, created) = (column(&forgotten, |(id, ..)| *id), column(&forgotten, |(_, created, _)| *created));
    let hold = sqlx::query(HOLD_EVENTS).bind(namespace).bind(&ids).bind(&created);
    hold.execute(&mut *connection).await.map_err(from_sqlx)?;
    let query = sqlx::query(FORGET).bind(namespace).bind(ids).bind(created);
    let query = query.bind(column(&forgotten, |(.., subscription)| subscription.as_str()));
    query.execute(connection).await.map_err(from_sqlx).map(drop)
}

async fn move_groups_on(
    connection: &mut PgConnection,
    namespace: &str,
    groups: &Groups<bool>,
    changes: &[Change],
    rows: &[PgRow],
    now: Option<Timestamp>,
) -> Result<Vec<Freed>> {
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let by_key: HashMap<(i64, i64), &Change> =
        changes.iter().map(|change| ((change.live.event_id, change.live.lane_id), change)).collect();
    let (mut left, mut moving) = (Groups::<i64>::new(), Groups::<bool>::new());
    for row in rows {
        let Some(change) = by_key.get(&(get(row, "event_id")?, get(row, "lane_id")?)) else { continue };
        let Some(group) = group_of(change) else { continue };
        if get(row, "gone")? {
            *left.entry(group.clone()).or_default() += 1;
            moving.insert(group, change.pass_group);
        } else if matches!(change.transition, Transition::Requeue { pass_group: true, .. }) {
            moving.insert(group, true);
        }
    }
    if !left.is_empty() {
        group::leave(connection, namespace, &left).await?;
    }
    if moving.is_empty() { Ok(Vec::new()) } else { group::advance(connection, namespace, &moving, now).await }
}

/// The changes whose guard held.
fn applied<'a>(changes: &'a [Change], rows: &[PgRow]) -> Result<Vec<&'a Change>> {
    let mut keys: HashSet<(i64, i64)> = HashSet::with_capacity(rows.len());
    for row in rows {
        keys.insert((get(row, "event_id")?, get(row, "lane_id")?));
    }
    Ok(changes.iter().filter(|change| keys.contains(&(change.live.event_id, change.live.lane_id))).collect())
}

fn in_order(changes: &[Change], rows: &[PgRow]) -> Result<Vec<Option<Attempt>>> {
    let mut applied: HashMap<(i64, i64), Attempt> = HashMap::with_capacity(rows.len());
    for row in rows {
        applied.insert((get(row, "event_id")?, get(row, "lane_id")?), attempt(row)?);
    }
    Ok(changes.iter().map(|change| applied.remove(&(change.live.event_id, change.live.lane_id))).collect())
}

/// Lanes that got a delivery back, and when it is ready.
fn requeued(rows: &[PgRow]) -> Result<Vec<Freed>> {
    let mut freed = Vec::new();
    for row in rows {
        if let Some(ready_at) = get::<Option<Timestamp>>(row, "next_retry_at")? {
            freed.push((get(row, "lane_id")?, ready_at));
        }
    }
    Ok(freed)
}
