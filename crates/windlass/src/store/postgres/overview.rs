//! How much there is of everything.

use sqlx::postgres::PgRow;
use sqlx::{Connection as _, Executor};

use super::error::from_sqlx;
use super::row::get;
use super::{PgStore, fix_planner};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::overview::{Counts, DeadCount, LiveCount, PROCESSING_AGES, Reasons};

const BY_INDEX: &str = fix_planner!("SET LOCAL");

// By the lanes, and not with a join: others may have any number of deliveries.
pub(super) const LIVE: &str = "
SELECT l.subscription, l.event_type, q.ready, q.delayed, q.waiting, q.ready_since, q.ages
FROM windlass.lanes l
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE q.lease IS NULL AND q.ready_at <= coalesce($2, now())) AS ready,
           count(*) FILTER (WHERE q.lease IS NULL AND q.ready_at > coalesce($2, now()) AND q.ready_at < 'infinity')
               AS delayed,
           count(*) FILTER (WHERE q.lease IS NULL AND q.ready_at = 'infinity') AS waiting,
           min(q.ready_at) FILTER (WHERE q.lease IS NULL AND q.ready_at <= coalesce($2, now())) AS ready_since,
           ARRAY[count(*) FILTER (WHERE q.age_s < ($3::bigint[])[1]), count(*) FILTER (WHERE q.age_s < ($3::bigint[])[2]),
                 count(*) FILTER (WHERE q.age_s < ($3::bigint[])[3]), count(*) FILTER (WHERE q.age_s < ($3::bigint[])[4]),
                 count(q.age_s)] AS ages
    FROM (
        SELECT q.ready_at, q.lease,
               CASE WHEN q.lease IS NOT NULL THEN extract(epoch FROM coalesce($2, now()) - q.picked_at) END AS age_s
        FROM windlass.event_queue q WHERE q.lane_id = l.lane_id OFFSET 0) AS q) AS q
WHERE l.namespace = $1";

// A lane goes only with its dead letters.
const DEAD: &str = "
SELECT d.subscription, l.event_type,
       CASE WHEN d.reason = ANY($2) THEN d.reason WHEN starts_with(d.reason, $3) THEN $3 ELSE '' END AS reason,
       count(*) AS count
FROM windlass.dead_letters d JOIN windlass.lanes l ON l.lane_id = d.lane_id
WHERE d.namespace = $1 GROUP BY 1, 2, 3";

const NEXT_TICK: &str = "
SELECT coalesce($2, now()) AS at,
       (SELECT min(s.next_at) FROM windlass.schedules s WHERE s.namespace = $1 AND s.next_at IS NOT NULL) AS next_tick";

pub(super) async fn counts(
    store: &PgStore,
    namespace: &str,
    reasons: &Reasons,
    now: Option<Timestamp>,
) -> Result<Counts> {
    let mut connection = store.reads.get().await?;
    let dead = sqlx::query(DEAD).bind(namespace).bind(&reasons.known[..]).bind(reasons.beginning);
    let dead = dead.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    let mut tx = connection.begin().await.map_err(from_sqlx)?;
    tx.execute(BY_INDEX).await.map_err(from_sqlx)?;
    let ages = PROCESSING_AGES.map(|age| age.as_secs() as i64);
    let live = sqlx::query(LIVE).bind(namespace).bind(now).bind(&ages[..]);
    let live = live.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
    let tick = sqlx::query(NEXT_TICK).bind(namespace).bind(now).fetch_one(&mut *tx).await.map_err(from_sqlx)?;
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    Ok(Counts {
        at: get(&tick, "at")?,
        live: live.iter().map(live_count).collect::<Result<_>>()?,
        dead: dead.iter().map(dead_count).collect::<Result<_>>()?,
        next_tick: get(&tick, "next_tick")?,
    })
}

fn live_count(row: &PgRow) -> Result<LiveCount> {
    let count = |column| get::<i64>(row, column).map(i64::unsigned_abs);
    let up_to: Vec<i64> = get(row, "ages")?;
    let mut ages = [0; 5];
    for (place, age) in ages.iter_mut().enumerate() {
        let before = if place == 0 { 0 } else { up_to[place - 1] };
        *age = (up_to[place] - before).unsigned_abs();
    }
    Ok(LiveCount {
        subscription: get(row, "subscription")?,
        event_type: get(row, "event_type")?,
        ready: count("ready")?,
        delayed: count("delayed")?,
        waiting_for_group: count("waiting")?,
        processing_ages: ages,
        ready_since: get(row, "ready_since")?,
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
