//! How live deliveries stand, by subscription and type.

use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection};

use super::error::from_sqlx;
use super::row::get;
use super::{PgStore, read_pages};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::backlog::{LiveCount, PROCESSING_AGES};

/// All that is live in a namespace.
macro_rules! of_namespace {
    () => {
        "windlass.event_queue q
    WHERE q.namespace = $1
      AND q.subscription_id = ANY(ARRAY(SELECT s.subscription_id FROM windlass.subscriptions s WHERE s.namespace = $1))"
    };
}

// Types whose lanes are empty are listed, too, until maintenance removes the lanes.
pub(super) const BACKLOG: &str = concat!(
    "
WITH l AS MATERIALIZED (
    SELECT DISTINCT l.subscription, l.event_type FROM windlass.lanes l WHERE l.namespace = $1)
SELECT l.subscription, l.event_type, coalesce(sum(q.ready), 0)::bigint AS ready,
       coalesce(sum(q.delayed), 0)::bigint AS delayed, coalesce(sum(q.retrying), 0)::bigint AS retrying,
       coalesce(sum(q.waiting), 0)::bigint AS waiting, min(q.ready_since) AS ready_since, min(q.next_at) AS next_at,
       min(q.held_since) AS held_since,
       ARRAY[coalesce(sum(q.age_1), 0), coalesce(sum(q.age_2), 0), coalesce(sum(q.age_3), 0), coalesce(sum(q.age_4), 0),
             coalesce(sum(q.held), 0)]::bigint[] AS ages
FROM l
LEFT JOIN (
    SELECT q.subscription, q.event_type, count(*) FILTER (WHERE q.free_at <= coalesce($2, now())) AS ready,
           count(*) FILTER (WHERE q.free_at > coalesce($2, now()) AND q.free_at < 'infinity' AND q.retry_count = 0)
               AS delayed,
           count(*) FILTER (WHERE q.free_at > coalesce($2, now()) AND q.free_at < 'infinity' AND q.retry_count > 0)
               AS retrying,
           count(*) FILTER (WHERE q.free_at = 'infinity') AS waiting,
           min(q.free_at) FILTER (WHERE q.free_at <= coalesce($2, now())) AS ready_since,
           min(q.free_at) FILTER (WHERE q.free_at > coalesce($2, now()) AND q.free_at < 'infinity') AS next_at,
           min(q.held_at) AS held_since,
           count(*) FILTER (WHERE q.age_s < ($3::bigint[])[1]) AS age_1,
           count(*) FILTER (WHERE q.age_s < ($3::bigint[])[2]) AS age_2,
           count(*) FILTER (WHERE q.age_s < ($3::bigint[])[3]) AS age_3,
           count(*) FILTER (WHERE q.age_s < ($3::bigint[])[4]) AS age_4,
           count(q.held_at) AS held
    FROM (
        SELECT q.subscription, q.event_type, q.retry_count, CASE WHEN q.lease IS NULL THEN q.ready_at END AS free_at,
               CASE WHEN q.lease IS NOT NULL THEN q.picked_at END AS held_at,
               CASE WHEN q.lease IS NOT NULL THEN extract(epoch FROM coalesce($2, now()) - q.picked_at) END AS age_s
        FROM ",
    of_namespace!(),
    ") AS q
    GROUP BY q.subscription, q.event_type) AS q ON q.subscription = l.subscription AND q.event_type = l.event_type
GROUP BY l.subscription, l.event_type"
);

/// As of one moment.
const BEGIN: &str = concat!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; ", read_pages!("SET LOCAL"));

pub(super) async fn backlog(store: &PgStore, namespace: &str, now: Option<Timestamp>) -> Result<Vec<LiveCount>> {
    let mut connection = store.reads.get().await?;
    let mut tx = connection.begin_with(BEGIN).await.map_err(from_sqlx)?;
    let live = live(&mut tx, namespace, now).await?;
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    Ok(live)
}

/// In a transaction that reads by pages.
pub(super) async fn live(tx: &mut PgConnection, namespace: &str, now: Option<Timestamp>) -> Result<Vec<LiveCount>> {
    let ages = PROCESSING_AGES.map(|age| age.as_secs() as i64);
    let query = sqlx::query(BACKLOG).bind(namespace).bind(now).bind(&ages[..]);
    query.fetch_all(tx).await.map_err(from_sqlx)?.iter().map(live_count).collect()
}

fn live_count(row: &PgRow) -> Result<LiveCount> {
    let count = |column| get::<i64>(row, column).map(i64::unsigned_abs);
    // Each is how many are younger than that, and the last is all.
    let mut ages: [i64; 5] = get(row, "ages")?;
    for place in (1..ages.len()).rev() {
        ages[place] -= ages[place - 1];
    }
    Ok(LiveCount {
        subscription: get(row, "subscription")?,
        event_type: get(row, "event_type")?,
        ready: count("ready")?,
        delayed: count("delayed")?,
        retrying: count("retrying")?,
        waiting_for_group: count("waiting")?,
        processing_ages: ages.map(i64::unsigned_abs),
        ready_since: get(row, "ready_since")?,
        next_at: get(row, "next_at")?,
        held_since: get(row, "held_since")?,
    })
}
