//! How much there is of everything that is not live.

use sqlx::postgres::PgRow;

use super::PgStore;
use super::error::from_sqlx;
use super::row::get;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::overview::{Counts, DeadCount, Reasons};

const DEAD: &str = "
SELECT d.subscription, d.event_type,
       CASE WHEN d.reason = ANY($2) THEN d.reason WHEN starts_with(d.reason, $3) THEN $3 ELSE '' END AS reason,
       count(*) AS count
FROM windlass.dead_letters d WHERE d.namespace = $1 GROUP BY 1, 2, 3";

const FIRST: &str = "
SELECT coalesce($2, now()) AS at,
       (SELECT min(s.next_at) FROM windlass.schedules s WHERE s.namespace = $1 AND s.next_at IS NOT NULL) AS next_tick,
       (SELECT a.created_at FROM windlass.arrivals a WHERE a.namespace = $1 ORDER BY a.event_id LIMIT 1)
         AS oldest_arrival";

pub(super) async fn counts(
    store: &PgStore,
    namespace: &str,
    reasons: &Reasons,
    now: Option<Timestamp>,
) -> Result<Counts> {
    let mut connection = store.reads.get().await?;
    let dead = sqlx::query(DEAD).bind(namespace).bind(&reasons.known[..]).bind(reasons.beginning);
    let dead = dead.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    let first = sqlx::query(FIRST).bind(namespace).bind(now).fetch_one(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    Ok(Counts {
        at: get(&first, "at")?,
        dead: dead.iter().map(dead_count).collect::<Result<_>>()?,
        next_tick: get(&first, "next_tick")?,
        oldest_arrival: get(&first, "oldest_arrival")?,
    })
}

fn dead_count(row: &PgRow) -> Result<DeadCount> {
    Ok(DeadCount {
        subscription: get(row, "subscription")?,
        event_type: get(row, "event_type")?,
        reason: get(row, "reason")?,
        count: get::<i64>(row, "count")?.unsigned_abs(),
    })
}
