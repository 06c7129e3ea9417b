//! Leased deliveries: finding them, recording the start of work, renewing leases.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection};

use super::PgStore;
use super::enqueue::column;
use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use super::retry::{self, fill, missed};
use super::row::{attempt, get, live};
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::queue::outcome::Attempt;
use crate::store::{HeartbeatStore, HeldBy, HeldDelivery};

// For the one-event ranges and the ORDER BY see `transition::END`.
pub(super) const HELD: &str = "
SELECT i.n, q.*
FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[]) WITH ORDINALITY
  AS i(event_id, subscription, lease, worker_id, n)
CROSS JOIN LATERAL (
    SELECT q.event_id, q.subscription_id, q.lane_id, q.event_type, q.lease, q.attempts, q.attempts_limit,
           q.retry_count, q.max_retries,
           q.subscription, q.group_id, q.picked_at
    FROM windlass.event_queue q
    WHERE q.subscription_id = (SELECT s.subscription_id FROM windlass.subscriptions s
                               WHERE s.namespace = $1 AND s.subscription = i.subscription)
      AND q.event_id BETWEEN i.event_id AND i.event_id AND q.namespace = $1
      AND (i.lease IS NULL OR q.lease = i.lease)
      AND (i.worker_id IS NULL OR (q.lease IS NOT NULL AND q.worker_id = i.worker_id))
    ORDER BY q.event_id LIMIT 1) AS q";

pub(super) const RECORDED: &str = "
SELECT i.n, a.*
FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[]) WITH ORDINALITY
  AS i(event_id, subscription, lease, worker_id, n)
CROSS JOIN LATERAL (
    SELECT a.event_id, a.subscription, a.attempt, a.worker_id, a.action, a.status_code, a.execution_time_ms,
           a.error_message, a.next_retry_at, a.retry_count, a.max_retries, a.finished_at
    FROM windlass.event_attempts a
    WHERE a.event_id BETWEEN i.event_id AND i.event_id AND a.namespace = $1 AND a.subscription = i.subscription
      AND (i.lease IS NULL OR a.lease = i.lease) AND (i.worker_id IS NULL OR a.worker_id = i.worker_id)
    ORDER BY a.event_id, a.id DESC LIMIT 1) AS a";

pub(super) const START: &str = "
WITH found AS MATERIALIZED (
    SELECT i.n, i.lease, q.tid
    FROM unnest($3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY AS i(event_id, subscription_id, lease, n)
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.event_id BETWEEN i.event_id AND i.event_id AND q.subscription_id = i.subscription_id AND q.namespace = $1
          AND q.lease = i.lease ORDER BY q.event_id LIMIT 1) AS q
)
UPDATE windlass.event_queue q
SET started_at = coalesce(q.started_at, $2, now()), updated_at = coalesce($2, now())
FROM found i WHERE q.ctid = i.tid AND q.namespace = $1 AND q.lease = i.lease
RETURNING i.n, q.started_at AS at";

// If a lease is shortened, its check is moved earlier.
pub(super) const EXTEND: &str = "
WITH found AS MATERIALIZED (
    SELECT i.n, i.lease, i.lease_us, q.tid, q.subscription_id, q.picked_at, q.lease_expires_at AS before
    FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) WITH ORDINALITY
      AS i(event_id, subscription_id, lease, lease_us, n)
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid, q.subscription_id, q.picked_at, q.lease_expires_at FROM windlass.event_queue q
        WHERE q.event_id BETWEEN i.event_id AND i.event_id AND q.subscription_id = i.subscription_id AND q.namespace = $1
          AND q.lease = i.lease ORDER BY q.event_id LIMIT 1) AS q
), shortened AS (
    UPDATE windlass.leases l SET check_at = least(l.check_at, s.check_at)
    FROM (
        SELECT l.tid, min(coalesce($2, now()) + i.lease_us * interval '1 microsecond') AS check_at FROM found i
        CROSS JOIN LATERAL (
            SELECT l.ctid AS tid FROM windlass.leases l
            WHERE l.subscription_id = i.subscription_id AND l.claimed_at = i.picked_at AND (l.lease = i.lease) IS TRUE
            ORDER BY l.claimed_at OFFSET 0) AS l
        WHERE coalesce($2, now()) + i.lease_us * interval '1 microsecond' < i.before GROUP BY l.tid) AS s
    WHERE l.ctid = s.tid AND (l.namespace = $1) IS TRUE
)
UPDATE windlass.event_queue q
SET lease_expires_at = coalesce($2, now()) + i.lease_us * interval '1 microsecond', updated_at = coalesce($2, now())
FROM found i WHERE q.ctid = i.tid AND q.namespace = $1 AND q.lease = i.lease
RETURNING i.n, q.lease_expires_at AS at";

#[async_trait]
impl HeartbeatStore for PgStore {
    async fn held(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<LiveDelivery>>> {
        let rows = of_holders(self, HELD, namespace, holders).await?;
        by_number(holders.len(), &rows, |row| Ok(LiveDelivery { picked_at: get(row, "picked_at")?, ..live(row)? }))
    }

    async fn recorded(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<Attempt>>> {
        let rows = of_holders(self, RECORDED, namespace, holders).await?;
        by_number(holders.len(), &rows, attempt)
    }

    async fn start(
        &self,
        namespace: &str,
        live: &[LiveDelivery],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let mut done = start_once(&mut connection, namespace, live, now).await?;
            let missed = missed(live, &done);
            if !missed.is_empty() {
                let mut tx = connection.begin().await.map_err(from_sqlx)?;
                retry::lock(&mut tx, namespace, missed.iter()).await?;
                fill(&mut done, start_once(&mut tx, namespace, &missed, now).await?);
                tx.commit().await.map_err(from_sqlx)?;
            }
            connection.done();
            Ok(done)
        })
    }

    async fn extend(
        &self,
        namespace: &str,
        live: &[(LiveDelivery, Duration)],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>> {
        retry_deadlocks!(async {
            let mut connection = self.renewals.get().await?;
            extend_runs(&mut connection, namespace, live, now).await?;
            let mut done = extend_once(&mut connection, namespace, live, now).await?;
            let missed = missed(live, &done);
            if !missed.is_empty() {
                let mut tx = connection.begin().await.map_err(from_sqlx)?;
                retry::lock(&mut tx, namespace, missed.iter().map(|(live, _)| live)).await?;
                fill(&mut done, extend_once(&mut tx, namespace, &missed, now).await?);
                tx.commit().await.map_err(from_sqlx)?;
            }
            connection.done();
            Ok(done)
        })
    }
}

async fn of_holders(
    store: &PgStore,
    sql: &'static str,
    namespace: &str,
    holders: &[HeldDelivery],
) -> Result<Vec<PgRow>> {
    let lease = |holder: &HeldDelivery| match &holder.by {
        HeldBy::Lease(lease) => Some(lease.0),
        HeldBy::Worker(_) | HeldBy::Anyone => None,
    };
    let worker = |holder: &HeldDelivery| match &holder.by {
        HeldBy::Worker(worker_id) => Some(worker_id.clone()),
        HeldBy::Lease(_) | HeldBy::Anyone => None,
    };
    let mut connection = store.writes.get().await?;
    let query = sqlx::query(sql)
        .bind(namespace)
        .bind(column(holders, |holder| holder.event_id))
        .bind(column(holders, |holder| holder.subscription.as_str()))
        .bind(column(holders, lease))
        .bind(column(holders, worker));
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    Ok(rows)
}

/// Puts rows with an input number `n`, from 1, into the order of the inputs.
pub(super) fn by_number<T>(
    inputs: usize,
    rows: &[PgRow],
    value: impl Fn(&PgRow) -> Result<T>,
) -> Result<Vec<Option<T>>> {
    let mut values: Vec<Option<T>> = (0..inputs).map(|_| None).collect();
    for row in rows {
        let n = get::<i64>(row, "n")?;
        values[n as usize - 1] = Some(value(row)?);
    }
    Ok(values)
}

async fn start_once(
    connection: &mut PgConnection,
    namespace: &str,
    live: &[LiveDelivery],
    now: Option<Timestamp>,
) -> Result<Vec<Option<Timestamp>>> {
    let query = sqlx::query(START)
        .bind(namespace)
        .bind(now)
        .bind(column(live, |live| live.event_id))
        .bind(column(live, |live| live.subscription_id))
        .bind(column(live, |live| live.lease.map(|lease| lease.0)));
    let rows = query.fetch_all(connection).await.map_err(from_sqlx)?;
    by_number(live.len(), &rows, |row| get(row, "at"))
}

// All deliveries of a run share the lease, so all are extended.
pub(super) const EXTEND_RUNS: &str = "
UPDATE windlass.event_queue q SET lease_expires_at = r.lease_expires_at
FROM (
    SELECT m.tid, coalesce($2, now()) + i.lease_us * interval '1 microsecond' AS lease_expires_at
    FROM unnest($3::text[], $4::text[], $5::bigint[], $6::bigint[]) AS i(subscription, group_id, lease, lease_us)
    CROSS JOIN LATERAL (
        SELECT s.run_to FROM windlass.event_groups s
        WHERE s.group_id = i.group_id AND s.subscription = i.subscription AND s.namespace = $1 AND s.run_lease = i.lease
          AND s.run_left > 1 LIMIT 1) AS s
    CROSS JOIN LATERAL (
        SELECT q.ctid AS tid FROM windlass.event_queue q
        WHERE q.group_id = i.group_id AND q.subscription = i.subscription AND q.namespace = $1 AND NOT isfinite(q.ready_at)
          AND q.due_at <= s.run_to AND q.lease = i.lease
        OFFSET 0) AS m
    OFFSET 0) AS r
WHERE q.ctid = r.tid AND (q.namespace = $1) IS TRUE AND q.lease IS NOT NULL AND q.lease_expires_at < r.lease_expires_at";

/// Extends the leases of the runs that these deliveries belong to.
async fn extend_runs(
    connection: &mut PgConnection,
    namespace: &str,
    live: &[(LiveDelivery, Duration)],
    now: Option<Timestamp>,
) -> Result<()> {
    let mut runs: BTreeMap<(&str, &str, i64), Duration> = BTreeMap::new();
    for (live, lease) in live.iter().filter(|(live, _)| live.attempts <= 1) {
        if let (Some(group_id), Some(of_run)) = (&live.group_id, live.lease) {
            runs.insert((&live.subscription, group_id, of_run.0), *lease);
        }
    }
    if runs.is_empty() {
        return Ok(());
    }
    let runs: Vec<((&str, &str, i64), Duration)> = runs.into_iter().collect();
    let extend = sqlx::query(EXTEND_RUNS)
        .bind(namespace)
        .bind(now)
        .bind(column(&runs, |((subscription, ..), _)| *subscription))
        .bind(column(&runs, |((_, group_id, _), _)| *group_id))
        .bind(column(&runs, |((.., lease), _)| *lease))
        .bind(column(&runs, |(_, lease)| micros(*lease)));
    extend.execute(connection).await.map_err(from_sqlx).map(drop)
}

async fn extend_once(
    connection: &mut PgConnection,
    namespace: &str,
    live: &[(LiveDelivery, Duration)],
    now: Option<Timestamp>,
) -> Result<Vec<Option<Timestamp>>> {
    let query = sqlx::query(EXTEND)
        .bind(namespace)
        .bind(now)
        .bind(column(live, |(live, _)| live.event_id))
        .bind(column(live, |(live, _)| live.subscription_id))
        .bind(column(live, |(live, _)| live.lease.map(|lease| lease.0)))
        .bind(column(live, |(_, lease)| micros(*lease)));
    let rows = query.fetch_all(connection).await.map_err(from_sqlx)?;
    by_number(live.len(), &rows, |row| get(row, "at"))
}
