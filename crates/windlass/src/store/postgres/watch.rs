//! The state that waiting claims depend on.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::error::from_sqlx;
use super::row::get;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::store::{WatchRequest, WatchResult, WatchStore};

// Lanes: jumps from each requested lane to the next one that has deliveries, and from there to the next requested one,
// so that few empty lanes are visited. The ORDER BY clauses, which OFFSET 0 keeps, leave the planner one index.
pub(super) const POLL_READY: &str = "
WITH RECURSIVE present AS (
    SELECT (SELECT q.lane_id FROM windlass.event_queue q
            WHERE q.lane_id >= ($2::bigint[])[1] ORDER BY q.lane_id LIMIT 1) AS lane_id
    UNION ALL
    SELECT (SELECT q.lane_id FROM windlass.event_queue q
            WHERE q.lane_id >= ($2::bigint[])[width_bucket(p.lane_id, $2::bigint[]) + 1]
            ORDER BY q.lane_id LIMIT 1)
    FROM present p WHERE p.lane_id IS NOT NULL
), found AS (
    SELECT NULL::bigint AS subscription_id, p.lane_id,
        EXISTS (
            SELECT FROM windlass.event_queue q
            WHERE q.lane_id = p.lane_id AND q.namespace = $1 AND q.ready_at <= coalesce($4, now())
              AND q.lease IS NULL AND (q.expires_at IS NULL OR q.expires_at > coalesce($4, now()))
            ORDER BY q.ready_at OFFSET 0) AS ready,
        (SELECT q.ready_at FROM windlass.event_queue q
         WHERE q.lane_id = p.lane_id AND q.namespace = $1 AND q.ready_at > coalesce($4, now())
           AND q.ready_at < 'infinity' AND q.lease IS NULL
         ORDER BY q.ready_at LIMIT 1) AS next_at
    FROM present p WHERE p.lane_id = ($2::bigint[])[width_bucket(p.lane_id, $2::bigint[])]
    UNION ALL
    SELECT s.subscription_id, NULL,
        EXISTS (
            SELECT FROM windlass.event_queue q
            WHERE q.subscription_id = s.subscription_id AND q.event_id > r.after_event AND NOT q.out_of_order
              AND q.lease IS NULL
              AND (q.expires_at IS NULL OR q.expires_at > coalesce($4, now()) AND q.ready_at <= coalesce($4, now()))
            ORDER BY q.event_id OFFSET 0)
        OR EXISTS (
            SELECT FROM unnest(s.priorities || 0::smallint) AS p CROSS JOIN LATERAL (
                SELECT FROM windlass.event_queue q
                WHERE q.subscription_id = s.subscription_id AND q.priority = p AND q.out_of_order
                  AND q.ready_at <= coalesce($4, now()) AND q.lease IS NULL
                  AND (q.expires_at IS NULL OR q.expires_at > coalesce($4, now()))
                ORDER BY q.ready_at LIMIT 1) AS q),
        (SELECT min(q.ready_at) FROM unnest(s.priorities || 0::smallint) AS p CROSS JOIN LATERAL (
             SELECT q.ready_at FROM windlass.event_queue q
             WHERE q.subscription_id = s.subscription_id AND q.priority = p AND q.out_of_order
               AND q.ready_at > coalesce($4, now()) AND q.ready_at < 'infinity' AND q.lease IS NULL
             ORDER BY q.ready_at LIMIT 1) AS q)
    FROM unnest($3::bigint[], $5::bigint[]) AS r(subscription_id, after_event)
    JOIN windlass.subscriptions s ON s.subscription_id = r.subscription_id AND s.namespace = $1
), next_lease AS (
    SELECT min(l.check_at) AS at FROM windlass.subscriptions s CROSS JOIN LATERAL (
        SELECT l.check_at FROM windlass.leases l
        WHERE l.subscription_id = s.subscription_id ORDER BY l.check_at LIMIT 1) AS l
    WHERE s.namespace = $1
)
SELECT n.version, (SELECT l.number FROM windlass.lanes l WHERE l.namespace = $1 AND l.number IS NOT NULL
        ORDER BY l.number DESC LIMIT 1) AS newest_lane,
       coalesce(next_lease.at <= coalesce($4, now()), false) AS leases_due,
       (extract(epoch FROM next_lease.at - coalesce($4, now())) * 1000000)::bigint AS lease_us,
       f.subscription_id, f.lane_id, f.ready,
       (extract(epoch FROM f.next_at - coalesce($4, now())) * 1000000)::bigint AS next_us
FROM windlass.namespaces n CROSS JOIN next_lease LEFT JOIN found f ON true WHERE n.namespace = $1";

#[async_trait]
impl WatchStore for PgStore {
    async fn poll_ready(&self, namespace: &str, request: &WatchRequest, now: Option<Timestamp>) -> Result<WatchResult> {
        let mut connection = self.claims.get().await?;
        let connects = self.claims.connects();
        let (subscriptions, after): (Vec<i64>, Vec<i64>) = request.subscriptions.iter().copied().unzip();
        let query =
            sqlx::query(POLL_READY).bind(namespace).bind(&request.lanes).bind(subscriptions).bind(now).bind(after);
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let Some(first) = rows.first() else {
            return Err(Error::NamespaceNotFound { namespace: namespace.to_owned() });
        };
        let mut result = WatchResult {
            version: get(first, "version")?,
            newest_lane: get::<Option<i64>>(first, "newest_lane")?.unwrap_or(0),
            leases_due: get(first, "leases_due")?,
            next_in: duration(first, "lease_us")?,
            connects,
            ..WatchResult::default()
        };
        for row in &rows {
            let (subscription_id, lane_id): (Option<i64>, Option<i64>) =
                (get(row, "subscription_id")?, get(row, "lane_id")?);
            if get::<Option<bool>>(row, "ready")? == Some(true) {
                result.ready_subscriptions.extend(subscription_id);
                result.ready_lanes.extend(lane_id);
            }
            result.next_in = result.next_in.into_iter().chain(duration(row, "next_us")?).min();
        }
        Ok(result)
    }
}

fn duration(row: &PgRow, column: &'static str) -> Result<Option<Duration>> {
    let us: Option<i64> = get(row, column)?;
    Ok(us.map(|us| Duration::from_micros(us.max(0).unsigned_abs())))
}
