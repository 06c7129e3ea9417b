//! Applying changes to deliveries.

use async_trait::async_trait;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Statement};

use super::attempts::{self, EndedAttempt};
use super::group::{self, Group, GroupChange};
use super::row::INFINITY;
use super::{SqliteStore, results};
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::event::delivery::{LiveDelivery, Status};
use crate::queue::decide::{RequeueTime, Transition};
use crate::queue::outcome::Attempt;
use crate::queue::wake::ReadyLane;
use crate::store::{AppliedChanges, ChangeGuard, DeliveryChange, TransitionStore};

#[async_trait]
impl TransitionStore for SqliteStore {
    async fn transition(
        &self,
        namespace: &str,
        changes: &[DeliveryChange],
        now: Option<Timestamp>,
    ) -> Result<AppliedChanges> {
        let (namespace, changes) = (namespace.to_owned(), changes.to_vec());
        self.write(now, move |conn, now| transition(conn, &namespace, &changes, now)).await
    }
}

pub(super) fn transition(
    conn: &Connection,
    namespace: &str,
    changes: &[DeliveryChange],
    now: i64,
) -> Result<AppliedChanges> {
    let (mut applied, mut statements) = (AppliedChanges::default(), CommonStatements::prepare(conn)?);
    for change in changes {
        applied.attempts.push(apply(conn, &mut statements, namespace, change, &mut applied.ready_lanes, now)?);
    }
    Ok(applied)
}

/// The statements that nearly every change needs, prepared once per batch.
struct CommonStatements<'c> {
    current: CachedStatement<'c>,
    remove: CachedStatement<'c>,
    record: CachedStatement<'c>,
}

impl CommonStatements<'_> {
    fn prepare(conn: &Connection) -> Result<CommonStatements<'_>> {
        let (current, remove) = (conn.prepare_cached(CURRENT)?, conn.prepare_cached(REMOVE)?);
        Ok(CommonStatements { current, remove, record: conn.prepare_cached(attempts::INSERT)? })
    }
}

fn apply(
    conn: &Connection,
    statements: &mut CommonStatements<'_>,
    namespace: &str,
    change: &DeliveryChange,
    ready_lanes: &mut Vec<ReadyLane>,
    now: i64,
) -> Result<Option<Attempt>> {
    let current = current(&mut statements.current, namespace, &change.live)?;
    let Some(row) = current.filter(|row| row.holds(change.guard, now)) else { return Ok(None) };
    let (mut failed, mut next_retry_at, mut kept) = (false, None, true);
    match &change.transition {
        Transition::End { forget } => {
            ready_lanes.extend(remove(conn, &mut statements.remove, namespace, change, &row, now)?);
            kept = !forget;
        }
        Transition::Requeue { when, failed: fails, refund_attempt, pass_group } => {
            failed = *fails;
            let (ready_at, due_at) = row.times_again(*when, *pass_group, now);
            requeue(conn, change, (ready_at, due_at), (failed, *refund_attempt), now)?;
            ready_lanes.push(change.live.ready_lane(change.keeps_ready_time()));
            ready_lanes.extend(change_group(conn, namespace, change, &row, now)?);
            next_retry_at = if ready_at == INFINITY { due_at } else { Some(ready_at) };
        }
        Transition::DeadLetter { status, reason, failed: fails } => {
            failed = *fails;
            ready_lanes.extend(remove(conn, &mut statements.remove, namespace, change, &row, now)?);
            bury(conn, namespace, change, &row, (*status, reason, failed), now)?;
        }
    }
    results::write(conn, namespace, change, now)?;
    let ended = row.ended(change, failed, next_retry_at, now);
    if kept {
        attempts::insert(&mut statements.record, namespace, &ended)?;
    } else {
        attempts::forget(conn, namespace, change.live.event_id, &row.subscription)?;
    }
    Ok(Some(ended.into_attempt()))
}

/// The fields of a row of the queue that changes need.
struct QueueRow {
    subscription: String,
    group_id: Option<String>,
    ready_at: i64,
    due_at: Option<i64>,
    attempts: u32,
    retry_count: u32,
    max_retries: Option<u32>,
    lease: Option<i64>,
    worker_id: Option<String>,
    picked_at: Option<i64>,
    started_at: Option<i64>,
    lease_expires_at: Option<i64>,
    created_at: i64,
}

const CURRENT: &str = "
SELECT subscription, group_id, ready_at, due_at, attempts, retry_count, max_retries, lease, worker_id, picked_at,
       started_at, lease_expires_at, created_at
FROM event_queue WHERE subscription_id = ?1 AND event_id = ?2 AND namespace = ?3";

fn current(select: &mut Statement<'_>, namespace: &str, live: &LiveDelivery) -> Result<Option<QueueRow>> {
    let found = select.query_row((live.subscription_id, live.event_id, namespace), |row| {
        Ok(QueueRow {
            subscription: row.get(0)?,
            group_id: row.get(1)?,
            ready_at: row.get(2)?,
            due_at: row.get(3)?,
            attempts: row.get(4)?,
            retry_count: row.get(5)?,
            max_retries: row.get(6)?,
            lease: row.get(7)?,
            worker_id: row.get(8)?,
            picked_at: row.get(9)?,
            started_at: row.get(10)?,
            lease_expires_at: row.get(11)?,
            created_at: row.get(12)?,
        })
    });
    Ok(found.optional()?)
}

impl QueueRow {
    fn holds(&self, guard: ChangeGuard, now: i64) -> bool {
        match guard {
            ChangeGuard::Lease(lease) => self.lease == Some(lease.0),
            ChangeGuard::ExpiredLease(lease) => {
                self.lease == Some(lease.0) && self.lease_expires_at.is_some_and(|end| end <= now)
            }
            ChangeGuard::Pending => self.lease.is_none(),
        }
    }

    fn group<'a>(&'a self, namespace: &'a str) -> Option<Group<'a>> {
        let group_id = self.group_id.as_deref()?;
        Some(Group { namespace, subscription: &self.subscription, group_id })
    }

    /// The ready time after a requeue, and the due time in the group. With `pass_group`, the delivery waits until its
    /// group reaches it again.
    fn times_again(&self, when: RequeueTime, pass_group: bool, now: i64) -> (i64, Option<i64>) {
        match when {
            RequeueTime::Unchanged => (self.ready_at, self.due_at),
            RequeueTime::After(delay) if pass_group => (INFINITY, Some(now.saturating_add(micros(delay)))),
            RequeueTime::After(delay) => (now.saturating_add(micros(delay)), self.due_at),
        }
    }

    fn retry_count(&self, failed: bool) -> u32 {
        self.retry_count.saturating_add(u32::from(failed))
    }

    fn ended<'a>(
        &'a self,
        change: &'a DeliveryChange,
        failed: bool,
        next_retry_at: Option<i64>,
        now: i64,
    ) -> EndedAttempt<'a> {
        EndedAttempt {
            event_id: change.live.event_id,
            subscription_id: change.live.subscription_id,
            subscription: &self.subscription,
            event_type: &change.live.event_type,
            attempt: self.attempts,
            lease: self.lease,
            worker_id: self.worker_id.as_deref(),
            picked_at: self.picked_at,
            started_at: self.started_at,
            finished_at: now,
            action: change.action,
            status_code: change.record.status_code,
            execution_time_ms: change.record.execution_time_ms,
            error: change.record.error.as_deref(),
            detail: change.record.detail.as_deref(),
            next_retry_at,
            retry_count: self.retry_count(failed),
            max_retries: self.max_retries,
        }
    }
}

const REMOVE: &str = "DELETE FROM event_queue WHERE subscription_id = ?1 AND event_id = ?2";

/// Returns the lane of the delivery that its group makes ready next, if any.
fn remove(
    conn: &Connection,
    delete: &mut Statement<'_>,
    namespace: &str,
    change: &DeliveryChange,
    row: &QueueRow,
    now: i64,
) -> Result<Option<ReadyLane>> {
    delete.execute((change.live.subscription_id, change.live.event_id))?;
    change_group(conn, namespace, change, row, now)
}

/// Returns the lane of the delivery that the group makes ready next, if any.
fn change_group(
    conn: &Connection,
    namespace: &str,
    change: &DeliveryChange,
    row: &QueueRow,
    now: i64,
) -> Result<Option<ReadyLane>> {
    let Some(group) = row.group(namespace) else { return Ok(None) };
    let ended = !matches!(change.transition, Transition::Requeue { .. });
    let due_at = row.due_at.unwrap_or(row.ready_at);
    let (event_id, lease, succeeded) = (change.live.event_id, row.lease, change.succeeded);
    group::apply(conn, group, GroupChange { event_id, due_at, ended, lease, succeeded }, now)
}

const REQUEUE: &str = "
UPDATE event_queue
SET lease = NULL, worker_id = NULL, picked_at = NULL, started_at = NULL, lease_expires_at = NULL,
    out_of_order = 1, ready_at = ?3, due_at = ?4, retry_count = retry_count + ?5, attempts_limit = attempts_limit + ?6,
    updated_at = ?7
WHERE subscription_id = ?1 AND event_id = ?2";

fn requeue(
    conn: &Connection,
    change: &DeliveryChange,
    (ready_at, due_at): (i64, Option<i64>),
    (failed, free): (bool, bool),
    now: i64,
) -> Result<()> {
    conn.prepare_cached(REQUEUE)?.execute((
        change.live.subscription_id,
        change.live.event_id,
        ready_at,
        due_at,
        failed,
        free,
        now,
    ))?;
    Ok(())
}

const BURY: &str = "
INSERT INTO dead_letters (event_id, subscription_id, namespace, subscription, event_type, status, reason, error, attempts,
                          retry_count, max_retries, failed_at, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";

fn bury(
    conn: &Connection,
    namespace: &str,
    change: &DeliveryChange,
    row: &QueueRow,
    (status, reason, failed): (Status, &str, bool),
    now: i64,
) -> Result<()> {
    conn.prepare_cached(BURY)?.execute((
        change.live.event_id,
        change.live.subscription_id,
        namespace,
        &row.subscription,
        &change.live.event_type,
        status.as_str(),
        reason,
        &change.record.error,
        row.attempts,
        row.retry_count(failed),
        row.max_retries,
        now,
        row.created_at,
    ))?;
    Ok(())
}
