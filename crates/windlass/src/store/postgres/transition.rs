//! Applying changes to deliveries: one statement for each kind of change, in one transaction.

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection};

use super::complete::{by_subscription, complete, is_plain};
use super::enqueue::{column, flags, optional};
use super::error::from_sqlx;
use super::group::{self, GroupChange, Groups, RunStop};
use super::retry::{self, fill, missed, retry_deadlocks};
use super::row::Columns;
use super::{PgStore, results};
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::queue::decide::{RequeueTime, Transition};
use crate::queue::outcome::Attempt;
use crate::queue::wake::ReadyLane;
use crate::store::{AppliedChanges, ChangeGuard, DeliveryChange, TransitionStore};

#[async_trait]
impl TransitionStore for PgStore {
    async fn transition(
        &self,
        namespace: &str,
        changes: &[DeliveryChange],
        now: Option<Timestamp>,
    ) -> Result<AppliedChanges> {
        let mut applied = retry_deadlocks!(once(self, namespace, changes, false, now))?;
        // Skipped because of a concurrent change, or lost.
        let missed = missed(changes, &applied.attempts);
        if !missed.is_empty() {
            let second = retry_deadlocks!(once(self, namespace, &missed, true, now))?;
            fill(&mut applied.attempts, second.attempts);
            applied.ready_lanes.extend(second.ready_lanes);
        }
        Ok(applied)
    }
}

async fn once(
    store: &PgStore,
    namespace: &str,
    changes: &[DeliveryChange],
    locking: bool,
    now: Option<Timestamp>,
) -> Result<AppliedChanges> {
    let (mut connection, kinds) = (store.writes.get().await?, Kinds::of(changes));
    let (attempts, ready_lanes) = if is_one_statement(changes, &kinds) && !locking {
        let done = kinds.apply(&mut connection, namespace, now).await?;
        let ready_lanes = requeued(&done);
        (in_order(changes, done), ready_lanes)
    } else {
        let mut tx = connection.begin().await.map_err(from_sqlx)?;
        let applied = apply(&mut tx, namespace, changes, locking, now).await?;
        tx.commit().await.map_err(from_sqlx)?;
        applied
    };
    connection.done();
    store.notify(namespace, ready_lanes.clone());
    store.note_finished_leases(changes.iter());
    Ok(AppliedChanges { attempts, ready_lanes })
}

/// Whether one statement, without a transaction around it, can apply all changes.
fn is_one_statement(changes: &[DeliveryChange], kinds: &Kinds<'_>) -> bool {
    let alone = |change: &DeliveryChange| change.live.group_id.is_none() && !change.concerns_results();
    changes.iter().all(alone) && kinds.is_one_statement()
}

/// Applies changes in the caller's transaction. Returns the attempts, and the lanes in which deliveries became ready.
async fn apply(
    connection: &mut PgConnection,
    namespace: &str,
    changes: &[DeliveryChange],
    locking: bool,
    now: Option<Timestamp>,
) -> Result<(Vec<Option<Attempt>>, Vec<ReadyLane>)> {
    let groups: Groups<()> = changes.iter().filter_map(|change| Some((group_of(change)?, ()))).collect();
    if !groups.is_empty() {
        group::lock(connection, namespace, &groups).await?;
        group::release_runs(connection, namespace, &stops(changes), now).await?;
    }
    if locking {
        retry::lock(connection, namespace, changes.iter().map(|change| &change.live)).await?;
    }
    let done = Kinds::of(changes).apply(connection, namespace, now).await?;
    forget(connection, namespace, &done).await?;
    results::write(connection, namespace, &column(&done, |done| done.change), now).await?;
    let moved = group::apply(connection, namespace, &group_changes(&done), now).await?;
    let ready_lanes = requeued(&done).into_iter().chain(moved).collect();
    Ok((in_order(changes, done), ready_lanes))
}

const DEPART: &str = "
INSERT INTO windlass.departures (namespace, subscription, group_id, lease) VALUES ($1, $2, $3, $4)";

/// Ends a delivery in a handler's transaction, which must not lock the group. `None`: the lease is lost.
pub(super) async fn apply_in_tx(
    connection: &mut PgConnection,
    namespace: &str,
    change: &DeliveryChange,
    now: Option<Timestamp>,
) -> Result<Option<Attempt>> {
    let changes = std::slice::from_ref(change);
    retry::lock(connection, namespace, std::iter::once(&change.live)).await?;
    let done = Kinds::of(changes).apply(connection, namespace, now).await?;
    if let (Some(group_id), Some(lease), [_]) = (&change.live.group_id, lease_of(change), &done[..]) {
        let depart = sqlx::query(DEPART).bind(namespace).bind(&change.live.subscription).bind(group_id).bind(lease);
        depart.execute(&mut *connection).await.map_err(from_sqlx)?;
    }
    forget(connection, namespace, &done).await?;
    results::write(connection, namespace, &column(&done, |done| done.change), now).await?;
    Ok(in_order(changes, done).pop().flatten())
}

fn group_of(change: &DeliveryChange) -> Option<group::Group> {
    change.live.group_id.as_ref().map(|group_id| (change.live.subscription.clone(), group_id.clone()))
}

/// A change with its index in the call.
pub(super) type IndexedChange<'a> = (usize, &'a DeliveryChange);

/// An applied change, with the values that only its row knows.
struct AppliedChange<'a> {
    at: usize,
    change: &'a DeliveryChange,
    attempt: u32,
    worker_id: Option<String>,
    retry_count: u32,
    max_retries: Option<u32>,
    finished_at: Timestamp,
    next_retry_at: Option<Timestamp>,
    /// Set if the history of the delivery is deleted.
    created_at: Option<Timestamp>,
}

impl<'a> AppliedChange<'a> {
    /// Reads one row with all results. All kinds of changes return the same columns.
    fn read_all(row: &PgRow, asked: &[IndexedChange<'a>]) -> Result<Vec<AppliedChange<'a>>> {
        let mut columns = Columns::of(row);
        let finished_at = columns.next()?;
        let Some(numbers) = columns.next::<Option<Vec<i64>>>()? else { return Ok(Vec::new()) };
        let (attempts, workers): (Vec<i32>, Vec<Option<String>>) = (columns.next()?, columns.next()?);
        let (retry_counts, max_retries): (Vec<i32>, Vec<Option<i32>>) = (columns.next()?, columns.next()?);
        let next_retry_at: Option<Vec<Option<Timestamp>>> = columns.next()?;
        let created_at: Option<Vec<Option<Timestamp>>> = columns.next()?;
        let instant = |of: &Option<Vec<Option<Timestamp>>>, at: usize| of.as_ref().and_then(|of| of[at]);
        let done = numbers.into_iter().zip(workers).enumerate().map(|(row, (n, worker_id))| {
            let (at, change) = asked[n as usize - 1];
            AppliedChange {
                at,
                change,
                attempt: attempts[row].unsigned_abs(),
                worker_id,
                retry_count: retry_counts[row].unsigned_abs(),
                max_retries: max_retries[row].map(i32::unsigned_abs),
                finished_at,
                next_retry_at: instant(&next_retry_at, row),
                created_at: instant(&created_at, row),
            }
        });
        Ok(done.collect())
    }
}

/// The changes, sorted by the statement that applies them.
#[derive(Default)]
struct Kinds<'a> {
    /// By subscription.
    completions: Vec<Vec<IndexedChange<'a>>>,
    ends: Vec<IndexedChange<'a>>,
    requeues: Vec<IndexedChange<'a>>,
    burials: Vec<IndexedChange<'a>>,
}

impl<'a> Kinds<'a> {
    fn of(changes: &'a [DeliveryChange]) -> Kinds<'a> {
        let (mut kinds, mut plain) = (Kinds::default(), Vec::new());
        for asked in changes.iter().enumerate() {
            let kind = match &asked.1.transition {
                Transition::End { .. } if is_plain(asked.1) => &mut plain,
                Transition::End { .. } => &mut kinds.ends,
                Transition::Requeue { .. } => &mut kinds.requeues,
                Transition::DeadLetter { .. } => &mut kinds.burials,
            };
            kind.push(asked);
        }
        kinds.completions = by_subscription(&plain);
        kinds
    }

    /// The changes of each statement.
    fn statements(&self) -> impl Iterator<Item = (&[IndexedChange<'a>], BuildStatement)> {
        let others: [(&[IndexedChange<'a>], BuildStatement); 3] =
            [(&self.ends, end), (&self.requeues, requeue), (&self.burials, bury)];
        let completions = self.completions.iter().map(|layer| (&layer[..], complete as BuildStatement));
        completions.chain(others).filter(|(asked, _)| !asked.is_empty())
    }

    fn is_one_statement(&self) -> bool {
        self.statements().count() == 1 && !self.ends.iter().any(forgets)
    }

    async fn apply(
        &self,
        connection: &mut PgConnection,
        namespace: &str,
        now: Option<Timestamp>,
    ) -> Result<Vec<AppliedChange<'a>>> {
        let mut done = Vec::new();
        for (asked, ask) in self.statements() {
            let row = ask(namespace, now, asked).fetch_one(&mut *connection).await.map_err(from_sqlx)?;
            done.extend(AppliedChange::read_all(&row, asked)?);
        }
        Ok(done)
    }
}

fn forgets((_, change): &IndexedChange<'_>) -> bool {
    matches!(change.transition, Transition::End { forget: true })
}

pub(super) type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// The statement for changes of one kind.
type BuildStatement = for<'q> fn(&'q str, Option<Timestamp>, &[IndexedChange<'q>]) -> Query<'q>;

/// The lease that the guard requires.
pub(super) fn lease_of(change: &DeliveryChange) -> Option<i64> {
    match change.guard {
        ChangeGuard::Lease(lease) | ChangeGuard::ExpiredLease(lease) => Some(lease.0),
        ChangeGuard::Pending => None,
    }
}

/// Binds $1 to $11, which every kind of change has.
fn with_changes<'q>(
    sql: &'static str,
    namespace: &'q str,
    now: Option<Timestamp>,
    asked: &[IndexedChange<'q>],
) -> Query<'q> {
    sqlx::query(sql)
        .bind(namespace)
        .bind(now)
        .bind(column(asked, |(_, change)| change.live.event_id))
        .bind(column(asked, |(_, change)| change.live.subscription_id))
        .bind(optional(asked, |(_, change)| lease_of(change)))
        .bind(flags(asked, |(_, change)| matches!(change.guard, ChangeGuard::ExpiredLease(_))))
        .bind(column(asked, |(_, change)| change.action.as_str()))
        .bind(optional(asked, |(_, change)| change.record.status_code))
        .bind(optional(asked, |(_, change)| change.record.execution_time_ms.map(|ms| ms as i64)))
        .bind(optional(asked, |(_, change)| change.record.error.as_deref()))
        .bind(optional(asked, |(_, change)| change.record.detail.as_deref().map(|detail| detail.get())))
}

// Each row is looked up on its own and changed by ctid. A subquery with LIMIT keeps the planner from turning the join
// around, which after an ANALYZE of an empty queue would read the whole table. The range of one event with its ORDER BY
// leaves only the primary key: if the planner takes the queue for empty, an index on the lane seems as cheap.
pub(super) const END: &str = "
WITH gone AS (
    DELETE FROM windlass.event_queue q
    USING unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::text[], $8::integer[], $9::bigint[],
                 $10::text[], $11::text[], $12::boolean[]) WITH ORDINALITY
      AS i(event_id, subscription_id, lease, run_out, action, status_code, execution_time_ms, error, detail, forget, n)
    WHERE q.ctid = (
        SELECT f.ctid FROM windlass.event_queue f
        WHERE f.event_id BETWEEN i.event_id AND i.event_id AND f.subscription_id = i.subscription_id AND f.namespace = $1
          AND f.lease IS NOT DISTINCT FROM i.lease ORDER BY f.event_id LIMIT 1)
      AND q.namespace = $1 AND q.lease IS NOT DISTINCT FROM i.lease
      AND (i.run_out IS NOT TRUE OR q.lease_expires_at <= coalesce($2, now()))
    RETURNING i.n, q.event_id, q.subscription_id, q.event_type, q.subscription, q.attempts AS attempt, q.lease,
        CASE WHEN q.lease IS NOT NULL THEN q.worker_id END AS worker_id,
        CASE WHEN q.lease IS NOT NULL THEN q.picked_at END AS picked_at,
        CASE WHEN q.lease IS NOT NULL THEN q.started_at END AS started_at,
        i.action, i.status_code, i.execution_time_ms, i.error AS error_message, i.detail, i.forget,
        q.retry_count, q.max_retries, q.created_at
), logged AS (
    INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, lease, worker_id,
        picked_at, started_at, finished_at, action, status_code, execution_time_ms, error_message, detail,
        retry_count, max_retries)
    SELECT event_id, subscription_id, event_type, attempt, $1, subscription, lease, worker_id, picked_at, started_at,
           coalesce($2, now()), action, status_code, execution_time_ms, error_message, detail::json,
           retry_count, max_retries
    FROM gone WHERE forget IS NOT TRUE
)
SELECT coalesce($2, now()), array_agg(n), array_agg(attempt), array_agg(worker_id), array_agg(retry_count),
       array_agg(max_retries), NULL::timestamptz[],
       CASE WHEN bool_or(forget) THEN array_agg(CASE WHEN forget THEN created_at END) END
FROM gone";

fn end<'q>(namespace: &'q str, now: Option<Timestamp>, asked: &[IndexedChange<'q>]) -> Query<'q> {
    with_changes(END, namespace, now, asked).bind(flags(asked, forgets))
}

// worker_id, picked_at and started_at stay in the row. They mean nothing while the delivery is pending, and RETURNING
// them here saves a second pass.
pub(super) const REQUEUE: &str = "
WITH found AS MATERIALIZED (
    SELECT q.tid, i.* FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::text[],
                                  $8::integer[], $9::bigint[], $10::text[], $11::text[], $12::bigint[],
                                  $13::boolean[], $14::boolean[], $15::boolean[])
      WITH ORDINALITY
      AS i(event_id, subscription_id, lease, run_out, action, status_code, execution_time_ms, error, detail, delay_us,
           failed, free, pass_group, n)
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.event_id BETWEEN i.event_id AND i.event_id AND q.subscription_id = i.subscription_id AND q.namespace = $1
          AND q.lease IS NOT DISTINCT FROM i.lease ORDER BY q.event_id LIMIT 1) AS q
), changed AS (
    UPDATE windlass.event_queue q
    SET lease = NULL, out_of_order = true,
        ready_at = CASE WHEN i.pass_group THEN 'infinity' WHEN i.delay_us IS NULL THEN q.ready_at
                        ELSE coalesce($2, now()) + i.delay_us * interval '1 microsecond' END,
        due_at = CASE WHEN i.pass_group THEN coalesce($2, now()) + i.delay_us * interval '1 microsecond' ELSE q.due_at END,
        retry_count = q.retry_count + i.failed::integer,
        attempts_limit = q.attempts_limit + i.free::integer,
        updated_at = coalesce($2, now())
    FROM found i
    WHERE q.ctid = i.tid AND q.namespace = $1 AND q.lease IS NOT DISTINCT FROM i.lease
      AND (i.run_out IS NOT TRUE OR q.lease_expires_at <= coalesce($2, now()))
    RETURNING i.n, q.event_id, q.subscription_id, q.event_type, q.subscription, q.attempts AS attempt, i.lease,
        CASE WHEN i.lease IS NOT NULL THEN q.worker_id END AS worker_id,
        CASE WHEN i.lease IS NOT NULL THEN q.picked_at END AS picked_at,
        CASE WHEN i.lease IS NOT NULL THEN q.started_at END AS started_at,
        i.action, i.status_code, i.execution_time_ms, i.error AS error_message, i.detail,
        CASE WHEN q.ready_at = 'infinity' THEN q.due_at ELSE q.ready_at END AS next_retry_at,
        q.retry_count, q.max_retries, q.created_at
), logged AS (
    INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, lease, worker_id,
        picked_at, started_at, finished_at, action, status_code, execution_time_ms, error_message, detail,
        next_retry_at, retry_count, max_retries)
    SELECT event_id, subscription_id, event_type, attempt, $1, subscription, lease, worker_id, picked_at, started_at,
           coalesce($2, now()), action, status_code, execution_time_ms, error_message, detail::json,
           next_retry_at, retry_count, max_retries
    FROM changed
)
SELECT coalesce($2, now()), array_agg(n), array_agg(attempt), array_agg(worker_id), array_agg(retry_count),
       array_agg(max_retries), array_agg(next_retry_at), NULL::timestamptz[]
FROM changed";

/// How a delivery is requeued.
struct Requeue {
    delay_us: Option<i64>,
    failed: bool,
    free: bool,
    pass_group: bool,
}

impl Requeue {
    fn of((_, change): &IndexedChange<'_>) -> Option<Requeue> {
        let Transition::Requeue { when, failed, refund_attempt, pass_group } = &change.transition else { return None };
        let delay_us = match when {
            RequeueTime::Unchanged => None,
            RequeueTime::After(delay) => Some(micros(*delay)),
        };
        Some(Requeue { delay_us, failed: *failed, free: *refund_attempt, pass_group: *pass_group })
    }
}

fn requeue<'q>(namespace: &'q str, now: Option<Timestamp>, asked: &[IndexedChange<'q>]) -> Query<'q> {
    let requeues: Vec<Requeue> = asked.iter().filter_map(Requeue::of).collect();
    with_changes(REQUEUE, namespace, now, asked)
        .bind(column(&requeues, |requeue| requeue.delay_us))
        .bind(column(&requeues, |requeue| requeue.failed))
        .bind(column(&requeues, |requeue| requeue.free))
        .bind(column(&requeues, |requeue| requeue.pass_group))
}

pub(super) const BURY: &str = "
WITH found AS MATERIALIZED (
    SELECT q.tid, i.* FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::text[],
                                  $8::integer[], $9::bigint[], $10::text[], $11::text[], $12::text[], $13::text[],
                                  $14::boolean[])
      WITH ORDINALITY
      AS i(event_id, subscription_id, lease, run_out, action, status_code, execution_time_ms, error, detail, status,
           reason, failed, n)
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.event_id BETWEEN i.event_id AND i.event_id AND q.subscription_id = i.subscription_id AND q.namespace = $1
          AND q.lease IS NOT DISTINCT FROM i.lease ORDER BY q.event_id LIMIT 1) AS q
), gone AS (
    DELETE FROM windlass.event_queue q USING found i
    WHERE q.ctid = i.tid AND q.namespace = $1 AND q.lease IS NOT DISTINCT FROM i.lease
      AND (i.run_out IS NOT TRUE OR q.lease_expires_at <= coalesce($2, now()))
    RETURNING i.n, q.event_id, q.subscription_id, q.event_type, q.subscription, q.attempts AS attempt, q.lease,
        CASE WHEN q.lease IS NOT NULL THEN q.worker_id END AS worker_id,
        CASE WHEN q.lease IS NOT NULL THEN q.picked_at END AS picked_at,
        CASE WHEN q.lease IS NOT NULL THEN q.started_at END AS started_at,
        i.action, i.status_code, i.execution_time_ms, i.error AS error_message, i.detail, i.status, i.reason,
        q.retry_count + i.failed::integer AS retry_count, q.max_retries, q.created_at
), logged AS (
    INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, lease, worker_id,
        picked_at, started_at, finished_at, action, status_code, execution_time_ms, error_message, detail,
        retry_count, max_retries)
    SELECT event_id, subscription_id, event_type, attempt, $1, subscription, lease, worker_id, picked_at, started_at,
           coalesce($2, now()), action, status_code, execution_time_ms, error_message, detail::json,
           retry_count, max_retries
    FROM gone
), buried AS (
    INSERT INTO windlass.dead_letters (event_id, subscription_id, event_type, namespace, subscription, status, reason, error,
        attempts, retry_count, max_retries, failed_at, created_at)
    SELECT event_id, subscription_id, event_type, $1, subscription, status, reason, error_message, attempt, retry_count, max_retries,
           coalesce($2, now()), created_at
    FROM gone
)
SELECT coalesce($2, now()), array_agg(n), array_agg(attempt), array_agg(worker_id), array_agg(retry_count),
       array_agg(max_retries), NULL::timestamptz[], NULL::timestamptz[]
FROM gone";

fn bury<'q>(namespace: &'q str, now: Option<Timestamp>, asked: &[IndexedChange<'q>]) -> Query<'q> {
    let burial = |(_, change): &IndexedChange<'q>| match &change.transition {
        Transition::DeadLetter { status, reason, failed } => Some((status.as_str(), reason.as_str(), *failed)),
        _ => None,
    };
    let burials: Vec<(&str, &str, bool)> = asked.iter().filter_map(burial).collect();
    with_changes(BURY, namespace, now, asked)
        .bind(column(&burials, |(status, ..)| *status))
        .bind(column(&burials, |(_, reason, _)| *reason))
        .bind(column(&burials, |(.., failed)| *failed))
}

// By partition and ctid, as in `retain::DELETE_ATTEMPTS`.
pub(super) const FORGET_ATTEMPTS: &str = "
WITH attempts AS MATERIALIZED (
    SELECT a.part, a.tid FROM unnest($2::bigint[], $3::text[]) AS i(id, subscription)
    CROSS JOIN LATERAL (
        SELECT a.tableoid AS part, a.ctid AS tid FROM windlass.event_attempts a
        WHERE a.event_id BETWEEN i.id AND i.id AND a.namespace = $1 AND a.subscription = i.subscription
        ORDER BY a.event_id OFFSET 0) AS a
)
DELETE FROM windlass.event_attempts a USING attempts
WHERE a.ctid = attempts.tid AND a.tableoid = attempts.part AND (a.namespace = $1) IS TRUE";

// A separate statement, so that it sees which attempts the previous one has left.
pub(super) const FORGET_EVENTS: &str = "
WITH events AS MATERIALIZED (
    SELECT e.part, e.tid FROM unnest($2::bigint[], $3::timestamptz[]) AS i(id, created_at)
    CROSS JOIN LATERAL (
        SELECT e.tableoid AS part, e.ctid AS tid FROM windlass.events e
        WHERE e.id = i.id AND e.created_at = i.created_at AND e.namespace = $1 LIMIT 1) AS e
    WHERE NOT EXISTS (SELECT FROM windlass.subscriptions s CROSS JOIN LATERAL (
                          SELECT FROM windlass.event_queue q
                          WHERE q.subscription_id = s.subscription_id AND q.event_id BETWEEN i.id AND i.id
                          ORDER BY q.event_id LIMIT 1) AS q
                      WHERE s.namespace = $1)
      AND NOT EXISTS (SELECT FROM windlass.dead_letters d
                      WHERE d.event_id BETWEEN i.id AND i.id ORDER BY d.event_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM windlass.event_attempts a
                      WHERE a.event_id BETWEEN i.id AND i.id AND a.namespace = $1 ORDER BY a.event_id OFFSET 0)
)
DELETE FROM windlass.events e USING events
WHERE e.ctid = events.tid AND e.tableoid = events.part AND (e.namespace = $1) IS TRUE";

// Transactions that add a delivery of a stored event, or delete the history of another one, take this lock, so the next
// statement sees their changes.
pub(super) const HOLD_EVENTS: &str = "
SELECT 1 FROM unnest($2::bigint[], $3::timestamptz[]) AS i(id, created_at)
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.events e WHERE e.id = i.id AND e.created_at = i.created_at AND e.namespace = $1
    LIMIT 1 FOR UPDATE) AS e";

/// Deletes the history of these deliveries and, unless another delivery is in the queue, a dead letter or kept, their
/// events.
async fn forget(connection: &mut PgConnection, namespace: &str, done: &[AppliedChange<'_>]) -> Result<()> {
    let mut forgotten: Vec<(i64, Timestamp, &str)> = Vec::new();
    for AppliedChange { at, change, created_at, .. } in done {
        if let (true, Some(created_at)) = (forgets(&(*at, *change)), created_at) {
            forgotten.push((change.live.event_id, *created_at, &change.live.subscription));
        }
    }
    if forgotten.is_empty() {
        return Ok(());
    }
    // All transactions lock in the order of ids.
    forgotten.sort();
    let (ids, created) = (column(&forgotten, |(id, ..)| *id), column(&forgotten, |(_, created, _)| *created));
    let hold = sqlx::query(HOLD_EVENTS).bind(namespace).bind(&ids).bind(&created);
    hold.execute(&mut *connection).await.map_err(from_sqlx)?;
    let attempts = sqlx::query(FORGET_ATTEMPTS).bind(namespace).bind(&ids);
    let attempts = attempts.bind(column(&forgotten, |(.., subscription)| *subscription));
    attempts.execute(&mut *connection).await.map_err(from_sqlx)?;
    let events = sqlx::query(FORGET_EVENTS).bind(namespace).bind(ids).bind(created);
    events.execute(connection).await.map_err(from_sqlx).map(drop)
}

/// The deliveries in progress that did not succeed. Only first attempts are claimed in runs.
fn stops(changes: &[DeliveryChange]) -> Vec<RunStop<'_>> {
    let mut stops = Vec::new();
    for change in changes.iter().filter(|change| change.live.attempts <= 1 && !change.succeeded) {
        if let (Some(group_id), Some(lease)) = (&change.live.group_id, lease_of(change)) {
            stops.push(RunStop {
                subscription: &change.live.subscription,
                group_id,
                event_id: change.live.event_id,
                subscription_id: change.live.subscription_id,
                lease,
                expired: matches!(change.guard, ChangeGuard::ExpiredLease(_)),
            });
        }
    }
    stops
}

/// The changes of each group.
fn group_changes(done: &[AppliedChange<'_>]) -> Groups<GroupChange> {
    let mut changes: Groups<GroupChange> = Groups::new();
    for change in done.iter().map(|done| done.change) {
        let Some(group) = group_of(change) else { continue };
        let of_group = changes.entry(group).or_default();
        match change.transition {
            Transition::Requeue { .. } => of_group.requeued += 1,
            Transition::End { .. } | Transition::DeadLetter { .. } => of_group.ended += 1,
        }
        if let Some(lease) = lease_of(change) {
            of_group.lease = Some(lease);
            of_group.of_lease += 1;
        }
    }
    changes
}

fn in_order(changes: &[DeliveryChange], done: Vec<AppliedChange<'_>>) -> Vec<Option<Attempt>> {
    let mut attempts = vec![None; changes.len()];
    for done in done {
        let at = done.at;
        attempts[at] = Some(done.into_attempt());
    }
    attempts
}

impl AppliedChange<'_> {
    /// The attempt: the requested values, and those that only the row knows.
    fn into_attempt(self) -> Attempt {
        let change = self.change;
        Attempt {
            event_id: change.live.event_id,
            subscription: change.live.subscription.clone(),
            attempt: self.attempt,
            worker_id: self.worker_id,
            action: change.action,
            status_code: change.record.status_code,
            execution_time_ms: change.record.execution_time_ms,
            error_message: change.record.error.clone(),
            next_retry_at: self.next_retry_at,
            retry_count: self.retry_count,
            max_retries: self.max_retries,
            finished_at: self.finished_at,
        }
    }
}

/// The lanes of the requeued deliveries.
fn requeued(done: &[AppliedChange<'_>]) -> Vec<ReadyLane> {
    let requeued = done.iter().filter(|done| done.next_retry_at.is_some());
    requeued.map(|done| done.change.live.ready_lane(done.change.keeps_ready_time())).collect()
}
