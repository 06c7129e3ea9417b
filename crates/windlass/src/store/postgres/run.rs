//! Runs: claims the next deliveries of a group under the lease of the first one.

use sqlx::{Connection as _, PgConnection};

use super::claim::{ClaimedRow, claimed_row, deliveries};
use super::enqueue::column;
use super::error::from_sqlx;
use super::row::get;
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::event::delivery::Delivery;
use crate::store::{Claim, ClaimSource, RunHead};

// Like a claim, it need not survive a crash of the server.
const BEGIN: &str = "BEGIN; SET LOCAL synchronous_commit = off";

// A group that another transaction has locked gets no run. The next statement reads the members, and sees the changes
// of earlier transactions.
pub(super) const LOCK_GROUPS: &str = "
SELECT i.n FROM unnest($3::text[]) WITH ORDINALITY AS i(group_id, n)
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.event_groups g
    WHERE g.group_id = i.group_id AND g.subscription = $2 AND g.namespace = $1 AND g.depth > 1
    FOR UPDATE SKIP LOCKED) AS locked";

// Claims the first waiting deliveries of each group, up to one that cannot be part of the run: it is not due, was tried
// before, has expired or is not among the claim's lanes. The first delivery of the run must still have its lease.
pub(super) const CLAIM_RUNS: &str = "
WITH picked AS MATERIALIZED (
    SELECT g.n, g.lease, g.worker_id, m.tid, m.due_at
    FROM unnest($4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::integer[]) WITH ORDINALITY
      AS g(group_id, head_id, lease, worker_id, more, n)
    CROSS JOIN LATERAL (
        SELECT h.event_id FROM windlass.event_queue h
        WHERE h.subscription_id = $9 AND h.event_id BETWEEN g.head_id AND g.head_id AND h.lease = g.lease
        ORDER BY h.event_id LIMIT 1) AS head
    CROSS JOIN LATERAL (
        SELECT s.last_at FROM windlass.event_groups s
        WHERE s.group_id = g.group_id AND s.subscription = $2 AND s.namespace = $1 LIMIT 1) AS s
    CROSS JOIN LATERAL (
        SELECT c.tid, c.due_at FROM (
            SELECT w.tid, w.due_at, count(*) FILTER (WHERE w.stops) OVER (ORDER BY w.due_at, w.event_id) AS stops
            FROM (
                SELECT q.ctid AS tid, q.due_at, q.event_id,
                       q.lease IS NOT NULL OR q.attempts > 0 OR q.due_at > greatest(s.last_at, coalesce($3, now()))
                       OR q.expires_at <= coalesce($3, now()) IS TRUE OR q.lane_id <> ALL($10::bigint[]) IS TRUE AS stops
                FROM windlass.event_queue q
                WHERE q.group_id = g.group_id AND q.subscription = $2 AND q.namespace = $1 AND NOT isfinite(q.ready_at)
                ORDER BY q.due_at, q.event_id LIMIT g.more) AS w) AS c
        WHERE c.stops = 0) AS m
), taken AS (
    UPDATE windlass.event_queue q
    SET lease = p.lease, worker_id = p.worker_id, attempts = q.attempts + 1, picked_at = coalesce($3, now()),
        started_at = NULL, updated_at = coalesce($3, now()),
        lease_expires_at = coalesce($3, now()) + interval '1 microsecond' * CASE
            WHEN cardinality($12::text[]) = 0 THEN $11 ELSE windlass._lease_us(q.event_type, $11, $12, $13) END
    FROM picked p WHERE q.ctid = p.tid AND (q.namespace = $1) IS TRUE
    RETURNING p.n, p.due_at, q.event_id, q.lane_id, q.priority, q.out_of_order, q.ready_at, q.expires_at, q.created_at,
              q.lease, q.attempts, q.retry_count, q.max_retries, q.attempts_limit, q.lease_expires_at
), leased AS (
    INSERT INTO windlass.leases (subscription_id, check_at, claimed_at, lease, namespace, first_id, last_id)
    SELECT $9, min(t.lease_expires_at), coalesce($3, now()), t.lease, $1, min(t.event_id), max(t.event_id)
    FROM taken t GROUP BY t.lease, t.event_id / 1000
), noted AS (
    UPDATE windlass.event_groups s SET run_lease = t.lease, run_left = t.members + 1, run_to = t.run_to
    FROM (
        SELECT g.tid, r.* FROM (
            SELECT t.n, min(t.lease) AS lease, count(*) AS members, max(t.due_at) AS run_to FROM taken t GROUP BY t.n) AS r
        CROSS JOIN LATERAL (
            SELECT g.ctid AS tid FROM windlass.event_groups g
            WHERE g.group_id = ($4::text[])[r.n] AND g.subscription = $2 AND g.namespace = $1 LIMIT 1) AS g
        OFFSET 0) AS t
    WHERE s.ctid = t.tid AND (s.namespace = $1) IS TRUE
)
SELECT t.n, coalesce($3, now()) AS now, t.due_at, t.event_id, t.lane_id, t.priority, t.out_of_order, t.due_at AS ready_at,
       t.expires_at, t.created_at, t.lease, t.attempts, t.retry_count, t.max_retries, t.attempts_limit, t.lease_expires_at
FROM taken t";

/// Claims the deliveries that follow these in their groups, if the requests want runs. Each run is in order.
pub(super) async fn claim_runs(
    connection: &mut PgConnection,
    claim: &Claim,
    claimed: &[Delivery],
    now: Option<Timestamp>,
) -> Result<Vec<Delivery>> {
    let first_attempts = claimed.iter().filter(|delivery| delivery.attempts == 1);
    let heads = first_attempts.filter_map(|delivery| {
        Some(RunHead {
            event_id: delivery.event.id,
            group_id: delivery.event.group_id.as_deref()?,
            lease: delivery.lease,
        })
    });
    let mut heads = claim.run_heads(heads);
    if heads.is_empty() {
        return Ok(Vec::new());
    }
    heads.sort_by_key(|(head, _)| head.group_id);
    let mut tx = connection.begin_with(BEGIN).await.map_err(from_sqlx)?;
    let lock = sqlx::query_scalar(LOCK_GROUPS)
        .bind(&claim.namespace)
        .bind(&claim.subscription)
        .bind(column(&heads, |(head, _)| head.group_id));
    let locked: Vec<i64> = lock.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
    let heads: Vec<(RunHead<'_>, usize)> = locked.into_iter().map(|n| heads[n as usize - 1]).collect();
    if heads.is_empty() {
        tx.rollback().await.map_err(from_sqlx)?;
        return Ok(Vec::new());
    }
    let taken = take(&mut tx, claim, &heads, now).await?;
    tx.commit().await.map_err(from_sqlx)?;
    let Some(at) = taken.first().map(|(.., at)| *at) else { return Ok(Vec::new()) };
    let rows = taken.into_iter().map(|(row, _)| row).collect();
    deliveries(connection, claim, rows, at).await
}

async fn take(
    connection: &mut PgConnection,
    claim: &Claim,
    heads: &[(RunHead<'_>, usize)],
    now: Option<Timestamp>,
) -> Result<Vec<(ClaimedRow, Timestamp)>> {
    let worker = |head: &RunHead<'_>| claim.requests.iter().find(|slot| slot.lease == head.lease);
    let lanes = match &claim.source {
        ClaimSource::Subscription { lanes, .. } => lanes.as_deref().map(<[i64]>::to_vec),
        ClaimSource::Lanes(lanes) => Some(column(lanes, |lane| lane.lane_id)),
    };
    let query = sqlx::query(CLAIM_RUNS)
        .bind(&claim.namespace)
        .bind(&claim.subscription)
        .bind(now)
        .bind(column(heads, |(head, _)| head.group_id))
        .bind(column(heads, |(head, _)| head.event_id))
        .bind(column(heads, |(head, _)| head.lease.0))
        .bind(column(heads, |(head, _)| worker(head).map_or("", |slot| slot.worker_id.as_str())))
        .bind(column(heads, |(_, more)| *more as i32))
        .bind(claim.subscription_id)
        .bind(lanes)
        .bind(micros(claim.leases.default))
        .bind(column(&claim.leases.by_type, |(pattern, _)| pattern.as_str()))
        .bind(column(&claim.leases.by_type, |(_, duration)| micros(*duration)));
    let mut taken = Vec::new();
    for row in query.fetch_all(connection).await.map_err(from_sqlx)? {
        let (n, at, due_at): (i64, Timestamp, Timestamp) = (get(&row, "n")?, get(&row, "now")?, get(&row, "due_at")?);
        taken.push((n, due_at, claimed_row(claim, &row, 3, at)?, at));
    }
    taken.sort_by_key(|(n, due_at, row, _)| (*n, *due_at, row.event_id));
    Ok(taken.into_iter().map(|(.., row, at)| (row, at)).collect())
}
