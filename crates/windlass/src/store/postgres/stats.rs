//! Counts of deliveries, dead letters and workers. They read whole tables of a namespace, on connections with the
//! planner's usual settings.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection};

use super::error::from_sqlx;
use super::row::{count, get};
use super::{PgStore, read_pages};
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::observe::backlog::{LiveCount, PROCESSING_AGES};
use crate::observe::inspect::{StatRow, StuckDelivery, WorkerView};
use crate::observe::overview::{Counts, DeadCount, Reasons};
use crate::store::StatsStore;

/// All pending and processing deliveries of a namespace.
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

const DEAD_BY_REASON: &str = "
SELECT d.subscription, d.event_type,
       CASE WHEN d.reason = ANY($2) THEN d.reason WHEN starts_with(d.reason, $3) THEN $3 ELSE '' END AS reason,
       count(*) AS count
FROM windlass.dead_letters d WHERE d.namespace = $1 GROUP BY 1, 2, 3";

const NEXT_TICK_AND_OLDEST_ARRIVAL: &str = "
SELECT coalesce($2, now()) AS at,
       (SELECT min(s.next_at) FROM windlass.schedules s WHERE s.namespace = $1 AND s.next_at IS NOT NULL) AS next_tick,
       (SELECT a.created_at FROM windlass.arrivals a WHERE a.namespace = $1 ORDER BY a.event_id LIMIT 1)
         AS oldest_arrival";

// Read from the table of leases, which has an index by claim time.
pub(super) const STUCK: &str = "
SELECT q.event_id, q.event_type, q.subscription, q.worker_id, q.attempts, q.picked_at, q.started_at, q.updated_at,
       q.lease_expires_at
FROM windlass.subscriptions s CROSS JOIN LATERAL (
    SELECT l.lease, l.first_id, l.last_id FROM windlass.leases l
    WHERE l.subscription_id = s.subscription_id AND l.claimed_at < coalesce($4, now()) - $2 * interval '1 microsecond'
    ORDER BY l.claimed_at) AS l
CROSS JOIN LATERAL (
    SELECT * FROM windlass.event_queue q
    WHERE q.subscription_id = s.subscription_id AND q.event_id BETWEEN l.first_id AND l.last_id AND q.lease = l.lease
    ORDER BY q.event_id OFFSET 0) AS q
WHERE s.namespace = $1
ORDER BY q.picked_at, q.event_id LIMIT $3";

pub(super) const WORKERS: &str = "
SELECT worker_id, sum(held)::bigint AS held, min(picked_at) AS oldest_picked_at, max(seen_at) AS last_seen_at
FROM (
    SELECT q.worker_id, 1 AS held, q.picked_at, q.updated_at AS seen_at
    FROM windlass.subscriptions s JOIN windlass.leases l ON l.subscription_id = s.subscription_id
    CROSS JOIN LATERAL (
        SELECT q.worker_id, q.picked_at, q.updated_at FROM windlass.event_queue q
        WHERE q.subscription_id = l.subscription_id AND q.event_id BETWEEN l.first_id AND l.last_id AND q.lease = l.lease
        ORDER BY q.event_id OFFSET 0) AS q
    WHERE s.namespace = $1
    UNION ALL
    SELECT a.worker_id, 0, NULL, a.finished_at FROM windlass.event_attempts a
    WHERE a.namespace = $1 AND a.finished_at >= $2 AND a.worker_id IS NOT NULL
      AND a.action NOT IN ('ABANDONED', 'RESET')
) AS w
GROUP BY worker_id ORDER BY worker_id";

const ENDED_SINCE: &str = "
SELECT d.subscription, d.event_type, d.status, count(*) AS count, min(d.failed_at) AS oldest_at
FROM windlass.dead_letters d WHERE d.namespace = $1 GROUP BY 1, 2, 3
UNION ALL
SELECT a.subscription, a.event_type, a.action, count(*), min(a.finished_at)
FROM windlass.event_attempts a
WHERE a.namespace = $1 AND a.finished_at >= $2 AND a.action IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'CANCELLED')
GROUP BY 1, 2, 3";

/// A snapshot with the planner settings for statements that read all rows of a namespace.
const SNAPSHOT_OF_PAGES: &str = concat!(
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; ",
    read_pages!("SET LOCAL"),
    "; LOCK TABLE windlass.event_attempts IN ACCESS SHARE MODE"
);

const BACKLOG_SNAPSHOT: &str = concat!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; ", read_pages!("SET LOCAL"));

#[async_trait]
impl StatsStore for PgStore {
    async fn backlog(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<LiveCount>> {
        let mut connection = self.reads.get().await?;
        let mut tx = connection.begin_with(BACKLOG_SNAPSHOT).await.map_err(from_sqlx)?;
        let live = backlog_of(&mut tx, namespace, now).await?;
        tx.commit().await.map_err(from_sqlx)?;
        connection.done();
        Ok(live)
    }

    async fn counts(&self, namespace: &str, reasons: &Reasons, now: Option<Timestamp>) -> Result<Counts> {
        let mut connection = self.reads.get().await?;
        let dead = sqlx::query(DEAD_BY_REASON).bind(namespace).bind(&reasons.known[..]).bind(reasons.prefix);
        let dead = dead.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        let first = sqlx::query(NEXT_TICK_AND_OLDEST_ARRIVAL)
            .bind(namespace)
            .bind(now)
            .fetch_one(&mut *connection)
            .await
            .map_err(from_sqlx)?;
        connection.done();
        Ok(Counts {
            at: get(&first, "at")?,
            dead: dead.iter().map(dead_count).collect::<Result<_>>()?,
            next_tick: get(&first, "next_tick")?,
            oldest_arrival: get(&first, "oldest_arrival")?,
        })
    }

    async fn stats(
        &self,
        namespace: &str,
        since: Timestamp,
        now: Option<Timestamp>,
    ) -> Result<(Vec<LiveCount>, Vec<StatRow>)> {
        let mut connection = self.reads.get().await?;
        let mut tx = connection.begin_with(SNAPSHOT_OF_PAGES).await.map_err(from_sqlx)?;
        let live = backlog_of(&mut tx, namespace, now).await?;
        let rows = sqlx::query(ENDED_SINCE).bind(namespace).bind(since).fetch_all(&mut *tx).await.map_err(from_sqlx)?;
        tx.commit().await.map_err(from_sqlx)?;
        connection.done();
        let stat = |row: &PgRow| {
            Ok(StatRow {
                subscription: get(row, "subscription")?,
                event_type: get(row, "event_type")?,
                status: get::<String>(row, "status")?.parse()?,
                count: get::<i64>(row, "count")?.unsigned_abs(),
                oldest_at: get(row, "oldest_at")?,
            })
        };
        Ok((live, rows.iter().map(stat).collect::<Result<_>>()?))
    }

    async fn stuck(
        &self,
        namespace: &str,
        older_than: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<StuckDelivery>> {
        let mut connection = self.reads.get().await?;
        let mut tx = connection.begin_with(SNAPSHOT_OF_PAGES).await.map_err(from_sqlx)?;
        let query = sqlx::query(STUCK).bind(namespace).bind(micros(older_than)).bind(limit as i64).bind(now);
        let rows = query.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
        tx.commit().await.map_err(from_sqlx)?;
        connection.done();
        let delivery = |row: &PgRow| {
            Ok(StuckDelivery {
                event_id: get(row, "event_id")?,
                event_type: get(row, "event_type")?,
                subscription: get(row, "subscription")?,
                worker_id: get(row, "worker_id")?,
                attempts: count(row, "attempts")?,
                picked_at: get(row, "picked_at")?,
                started_at: get(row, "started_at")?,
                updated_at: get(row, "updated_at")?,
                lease_expires_at: get(row, "lease_expires_at")?,
            })
        };
        rows.iter().map(delivery).collect()
    }

    async fn workers(&self, namespace: &str, since: Timestamp) -> Result<Vec<WorkerView>> {
        let mut connection = self.reads.get().await?;
        let mut tx = connection.begin_with(SNAPSHOT_OF_PAGES).await.map_err(from_sqlx)?;
        let rows = sqlx::query(WORKERS).bind(namespace).bind(since).fetch_all(&mut *tx).await.map_err(from_sqlx)?;
        tx.commit().await.map_err(from_sqlx)?;
        connection.done();
        let worker = |row: &PgRow| {
            Ok(WorkerView {
                worker_id: get(row, "worker_id")?,
                held: get::<i64>(row, "held")?.unsigned_abs(),
                oldest_picked_at: get(row, "oldest_picked_at")?,
                last_seen_at: get(row, "last_seen_at")?,
                stale: false,
            })
        };
        rows.iter().map(worker).collect()
    }
}

/// Runs in a transaction with the settings of `read_pages!`.
async fn backlog_of(tx: &mut PgConnection, namespace: &str, now: Option<Timestamp>) -> Result<Vec<LiveCount>> {
    let ages = PROCESSING_AGES.map(|age| age.as_secs() as i64);
    let query = sqlx::query(BACKLOG).bind(namespace).bind(now).bind(&ages[..]);
    query.fetch_all(tx).await.map_err(from_sqlx)?.iter().map(live_count).collect()
}

fn live_count(row: &PgRow) -> Result<LiveCount> {
    let count = |column| get::<i64>(row, column).map(i64::unsigned_abs);
    // Each count includes the younger ones, and the last is the total.
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

fn dead_count(row: &PgRow) -> Result<DeadCount> {
    Ok(DeadCount {
        subscription: get(row, "subscription")?,
        event_type: get(row, "event_type")?,
        reason: get(row, "reason")?,
        count: get::<i64>(row, "count")?.unsigned_abs(),
    })
}
