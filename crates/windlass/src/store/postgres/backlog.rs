//! How live deliveries stand, by type.

use sqlx::postgres::PgRow;
use sqlx::{Connection as _, Executor};

use super::PgStore;
use super::error::from_sqlx;
use super::fix_planner;
use super::row::get;
use crate::backlog::Backlog;
use crate::clock::Timestamp;
use crate::error::Result;

// By the lanes, and not with a join: others may have any number of deliveries.
pub(super) const BACKLOG: &str = "
SELECT l.event_type, sum(q.ready)::bigint AS ready, sum(q.running)::bigint AS running, sum(q.delayed)::bigint AS delayed,
       sum(q.retrying)::bigint AS retrying, sum(q.behind)::bigint AS behind, min(q.ready_since) AS ready_since
FROM windlass.lanes l
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE q.lease IS NOT NULL) AS running,
           count(*) FILTER (WHERE q.lease IS NULL AND q.ready_at <= coalesce($2, now())) AS ready,
           count(*) FILTER (WHERE q.lease IS NULL AND q.ready_at > coalesce($2, now()) AND q.ready_at < 'infinity'
                            AND q.retry_count = 0) AS delayed,
           count(*) FILTER (WHERE q.lease IS NULL AND q.ready_at > coalesce($2, now()) AND q.ready_at < 'infinity'
                            AND q.retry_count > 0) AS retrying,
           count(*) FILTER (WHERE q.lease IS NULL AND q.ready_at = 'infinity') AS behind,
           min(q.ready_at) FILTER (WHERE q.lease IS NULL AND q.ready_at <= coalesce($2, now())) AS ready_since
    FROM windlass.event_queue q WHERE q.lane_id = l.lane_id OFFSET 0) AS q
WHERE l.namespace = $1
GROUP BY l.event_type";

const BY_INDEX: &str = fix_planner!("SET LOCAL");

pub(super) async fn backlog(store: &PgStore, namespace: &str, now: Option<Timestamp>) -> Result<Vec<Backlog>> {
    let mut connection = store.reads.get().await?;
    let mut tx = connection.begin().await.map_err(from_sqlx)?;
    tx.execute(BY_INDEX).await.map_err(from_sqlx)?;
    let query = sqlx::query(BACKLOG).bind(namespace).bind(now);
    let rows = query.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    rows.iter().map(of_type).collect()
}

fn of_type(row: &PgRow) -> Result<Backlog> {
    let count = |column| get::<i64>(row, column).map(i64::unsigned_abs);
    Ok(Backlog {
        event_type: get(row, "event_type")?,
        ready: count("ready")?,
        running: count("running")?,
        delayed: count("delayed")?,
        retrying: count("retrying")?,
        behind_group: count("behind")?,
        ready_since: get(row, "ready_since")?,
    })
}
