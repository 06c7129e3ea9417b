//! Finding deliveries past their deadline, and expired leases.

use async_trait::async_trait;

use super::PgStore;
use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use super::row::live;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::store::ExpireStore;

pub(super) const EXPIRED_DELIVERIES: &str = "
SELECT q.event_id, q.subscription_id, q.lane_id, q.event_type, q.lease, q.attempts, q.attempts_limit, q.retry_count,
       q.max_retries, q.subscription, q.group_id
FROM windlass.subscriptions s CROSS JOIN LATERAL (
    SELECT * FROM windlass.event_queue q
    WHERE q.subscription_id = s.subscription_id AND q.expires_at IS NOT NULL AND q.expires_at <= coalesce($2, now())
      AND q.lease IS NULL AND q.namespace = $1
    ORDER BY q.expires_at, q.event_id LIMIT $3) AS q
WHERE s.namespace = $1
LIMIT $3";

/// How many rows of `leases` one call checks.
const LEASES_CHECKED: i64 = 1_000;

// Checks leases that are due. Deletes a lease without deliveries; reschedules the check of a renewed lease to its
// expiry. Returns deliveries whose lease has expired; the caller releases them, and the next call deletes the lease. Of
// a run, only the first delivery is returned: releasing it releases the others.
pub(super) const EXPIRED_LEASES: &str = "
WITH due AS MATERIALIZED (
    SELECT l.* FROM unnest($2::bigint[]) AS s(subscription_id)
    CROSS JOIN LATERAL (
        SELECT l.ctid AS tid, l.subscription_id, l.lease, l.first_id, l.last_id FROM windlass.leases l
        WHERE l.subscription_id = s.subscription_id AND l.check_at <= coalesce($3, now())
        ORDER BY l.check_at LIMIT $5 FOR UPDATE SKIP LOCKED) AS l
), leased AS MATERIALIZED (
    SELECT d.tid, q.* FROM due d
    CROSS JOIN LATERAL (
        SELECT q.event_id, q.subscription_id, q.lane_id, q.event_type, q.lease, q.attempts, q.attempts_limit,
               q.retry_count, q.max_retries, q.subscription, q.group_id, q.due_at, q.lease_expires_at
        FROM windlass.event_queue q
        WHERE q.subscription_id = d.subscription_id AND q.event_id BETWEEN d.first_id AND d.last_id AND q.lease = d.lease
        ORDER BY q.event_id OFFSET 0) AS q
), next AS MATERIALIZED (
    SELECT d.tid, (SELECT min(l.lease_expires_at) FROM leased l WHERE l.tid = d.tid) AS check_at FROM due d
), over AS (
    DELETE FROM windlass.leases l
    WHERE (l.namespace = $1) IS TRUE AND l.ctid = ANY(ARRAY(SELECT n.tid FROM next n WHERE n.check_at IS NULL))
), renewed AS (
    UPDATE windlass.leases l SET check_at = n.check_at FROM next n
    WHERE l.ctid = n.tid AND n.check_at > coalesce($3, now()) AND (l.namespace = $1) IS TRUE
)
SELECT e.* FROM (
    SELECT l.*, row_number() OVER (PARTITION BY l.subscription_id, l.lease, l.group_id ORDER BY l.due_at, l.event_id) AS n
    FROM leased l WHERE l.lease_expires_at <= coalesce($3, now())) AS e
WHERE e.group_id IS NULL OR e.n = 1 LIMIT $4";

#[async_trait]
impl ExpireStore for PgStore {
    async fn expired_deliveries(
        &self,
        namespace: &str,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<LiveDelivery>> {
        let mut connection = self.maintenance.get().await?;
        let query = sqlx::query(EXPIRED_DELIVERIES).bind(namespace).bind(now).bind(limit as i64);
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        rows.iter().map(live).collect()
    }

    async fn expired_leases(
        &self,
        namespace: &str,
        subscriptions: &[i64],
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<LiveDelivery>> {
        retry_deadlocks!(async {
            let mut connection = self.maintenance.get().await?;
            let query = sqlx::query(EXPIRED_LEASES).bind(namespace).bind(subscriptions).bind(now);
            let query = query.bind(limit as i64).bind(LEASES_CHECKED);
            let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
            connection.done();
            rows.iter().map(live).collect()
        })
    }
}
