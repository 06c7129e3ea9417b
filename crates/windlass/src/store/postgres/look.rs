//! What there is to take, without taking it.

use std::time::Duration;

use sqlx::postgres::PgRow;

use super::PgStore;
use super::error::from_sqlx;
use super::row::get;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::store::{LaneLook, Look};

// From each lane wanted to the next one that has deliveries, and from there to the next one wanted: so of
// many empty lanes hardly any is visited, nor any of other namespaces, although the first step names none.
// The order, which OFFSET 0 keeps, leaves the planner the hot index alone; see `transition::END`.
pub(super) const LOOK: &str = "
WITH RECURSIVE present AS (
    SELECT (SELECT q.lane_id FROM windlass.event_queue q
            WHERE q.lane_id >= ($2::bigint[])[1] ORDER BY q.lane_id LIMIT 1) AS lane_id
    UNION ALL
    SELECT (SELECT q.lane_id FROM windlass.event_queue q
            WHERE q.lane_id >= ($2::bigint[])[width_bucket(p.lane_id, $2::bigint[]) + 1]
            ORDER BY q.lane_id LIMIT 1)
    FROM present p WHERE p.lane_id IS NOT NULL
), found AS (
    SELECT p.lane_id,
        EXISTS (
            SELECT FROM windlass.event_queue q
            WHERE q.lane_id = p.lane_id AND q.namespace = $1 AND q.ready_at <= coalesce($3, now())
              AND q.lease IS NULL AND (q.expires_at IS NULL OR q.expires_at > coalesce($3, now()))
            ORDER BY q.ready_at OFFSET 0) AS claimable,
        EXISTS (
            SELECT FROM windlass.event_queue q
            WHERE q.lane_id = p.lane_id AND q.namespace = $1 AND q.ready_at <= coalesce($3, now())
              AND q.lease IS NOT NULL AND q.lease_expires_at <= coalesce($3, now())
            ORDER BY q.ready_at OFFSET 0) AS run_out,
        (SELECT (extract(epoch FROM q.ready_at - coalesce($3, now())) * 1000000)::bigint
         FROM windlass.event_queue q
         WHERE q.lane_id = p.lane_id AND q.namespace = $1 AND q.ready_at > coalesce($3, now())
           AND q.ready_at < 'infinity' AND q.lease IS NULL
         ORDER BY q.ready_at LIMIT 1) AS next_ready_us
    FROM present p WHERE p.lane_id = ($2::bigint[])[width_bucket(p.lane_id, $2::bigint[])]
)
SELECT n.version, (SELECT count(*) FROM windlass.lanes l WHERE l.namespace = $1) AS lanes, f.*
FROM windlass.namespaces n LEFT JOIN found f ON true WHERE n.namespace = $1";

pub(super) async fn look(
    store: &PgStore,
    namespace: &str,
    lanes: &[i64],
    now: Option<Timestamp>,
) -> Result<Option<Look>> {
    let mut connection = store.claims.get().await?;
    let query = sqlx::query(LOOK).bind(namespace).bind(lanes).bind(now);
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    let Some(first) = rows.first() else { return Ok(None) };
    let lanes = get::<i64>(first, "lanes")?.unsigned_abs() as usize;
    let mut look = Look { version: get(first, "version")?, lanes, found: Vec::new() };
    for row in &rows {
        look.found.extend(lane_look(row)?);
    }
    Ok(Some(look))
}

fn lane_look(row: &PgRow) -> Result<Option<LaneLook>> {
    let Some(lane_id) = get(row, "lane_id")? else { return Ok(None) };
    let next_ready_in = get::<Option<i64>>(row, "next_ready_us")?.map(|us| Duration::from_micros(us.unsigned_abs()));
    Ok(Some(LaneLook { lane_id, claimable: get(row, "claimable")?, run_out: get(row, "run_out")?, next_ready_in }))
}
