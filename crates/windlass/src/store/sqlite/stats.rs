//! Counts of deliveries, dead letters and workers.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::SqliteStore;
use super::row::{self, INFINITY};
use super::topology::to_json;
use crate::clock::{Timestamp, from_micros, micros};
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::backlog::{LiveCount, PROCESSING_AGES};
use crate::observe::inspect::{StatRow, StuckDelivery, WorkerView};
use crate::observe::overview::{Counts, DeadCount, Reasons};
use crate::store::StatsStore;

#[async_trait]
impl StatsStore for SqliteStore {
    async fn backlog(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<LiveCount>> {
        let (namespace, now) = (namespace.to_owned(), self.now(now));
        self.read(move |conn| backlog(conn, &namespace, now)).await
    }

    async fn counts(&self, namespace: &str, reasons: &Reasons, now: Option<Timestamp>) -> Result<Counts> {
        let (namespace, reasons, now) = (namespace.to_owned(), *reasons, self.now(now));
        self.read(move |conn| counts(conn, &namespace, &reasons, now)).await
    }

    async fn stats(
        &self,
        namespace: &str,
        since: Timestamp,
        now: Option<Timestamp>,
    ) -> Result<(Vec<LiveCount>, Vec<StatRow>)> {
        let (namespace, since, now) = (namespace.to_owned(), since.timestamp_micros(), self.now(now));
        let read = move |conn: &Connection| Ok((backlog(conn, &namespace, now)?, ended(conn, &namespace, since)?));
        self.read(read).await
    }

    async fn stuck(
        &self,
        namespace: &str,
        older_than: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<StuckDelivery>> {
        let (namespace, now) = (namespace.to_owned(), self.now(now));
        self.read(move |conn| stuck(conn, &namespace, older_than, limit, now)).await
    }

    async fn workers(&self, namespace: &str, since: Timestamp) -> Result<Vec<WorkerView>> {
        let (namespace, since) = (namespace.to_owned(), since.timestamp_micros());
        self.read(move |conn| workers(conn, &namespace, since)).await
    }
}

const STUCK: &str = "
SELECT q.event_id, q.event_type, q.subscription, q.worker_id, q.attempts, q.picked_at, q.started_at, q.updated_at,
       q.lease_expires_at
FROM subscriptions s CROSS JOIN event_queue q INDEXED BY event_queue_leased
WHERE s.namespace = ?1 AND q.subscription_id = s.subscription_id AND q.lease IS NOT NULL AND q.picked_at < ?2
ORDER BY q.picked_at, q.event_id LIMIT ?3";

fn stuck(
    conn: &Connection,
    namespace: &str,
    older_than: Duration,
    limit: usize,
    now: i64,
) -> Result<Vec<StuckDelivery>> {
    let before = now.saturating_sub(micros(older_than));
    let mut select = conn.prepare_cached(STUCK)?;
    let found = select.query_map((namespace, before, limit as i64), |row| {
        Ok(StuckDelivery {
            event_id: row.get(0)?,
            event_type: row.get(1)?,
            subscription: row.get(2)?,
            worker_id: row.get(3)?,
            attempts: row.get(4)?,
            picked_at: row::timestamp(row, 5)?,
            started_at: row::timestamp_or_null(row, 6)?,
            updated_at: row::timestamp(row, 7)?,
            lease_expires_at: row::timestamp(row, 8)?,
        })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

const HOLDERS: &str = "
SELECT q.worker_id, max(q.updated_at), count(*), min(q.picked_at)
FROM subscriptions s CROSS JOIN event_queue q INDEXED BY event_queue_leased
WHERE s.namespace = ?1 AND q.subscription_id = s.subscription_id AND q.lease IS NOT NULL
GROUP BY q.worker_id";

/// Rows are appended in the order of time, so the rows since a time are the last ones. Actions of others on a worker's
/// delivery do not count as activity of the worker.
const FINISHERS: &str = "
SELECT worker_id, max(finished_at), 0, NULL FROM event_attempts
WHERE rowid > coalesce((SELECT rowid FROM event_attempts WHERE finished_at < ?2 ORDER BY rowid DESC LIMIT 1), 0)
  AND namespace = ?1 AND worker_id IS NOT NULL
  AND action IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'FAILED', 'SNOOZED', 'RELEASED')
GROUP BY worker_id";

fn workers(conn: &Connection, namespace: &str, since: i64) -> Result<Vec<WorkerView>> {
    let mut workers = BTreeMap::new();
    let mut select = conn.prepare_cached(HOLDERS)?;
    for holder in select.query_map([namespace], worker)? {
        let holder = holder?;
        workers.insert(holder.worker_id.clone(), holder);
    }
    let mut select = conn.prepare_cached(FINISHERS)?;
    for finisher in select.query_map((namespace, since), worker)? {
        let finisher = finisher?;
        let seen_at = finisher.last_seen_at;
        let known = workers.entry(finisher.worker_id.clone()).or_insert(finisher);
        known.last_seen_at = known.last_seen_at.max(seen_at);
    }
    Ok(workers.into_values().collect())
}

fn worker(row: &Row) -> rusqlite::Result<WorkerView> {
    Ok(WorkerView {
        worker_id: row.get(0)?,
        last_seen_at: row::timestamp(row, 1)?,
        held: row::count(row, 2)?,
        oldest_picked_at: row::timestamp_or_null(row, 3)?,
        stale: false,
    })
}

const DEAD: &str = "
SELECT subscription, event_type, status, failed_at FROM dead_letters INDEXED BY dead_letters_by_event
WHERE namespace = ?1";

const ENDED: &str = "
SELECT subscription, event_type, action, finished_at FROM event_attempts
WHERE rowid > coalesce((SELECT rowid FROM event_attempts WHERE finished_at < ?2 ORDER BY rowid DESC LIMIT 1), 0)
  AND namespace = ?1 AND action IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'CANCELLED')";

/// Dead letters, and the deliveries that ended since then.
fn ended(conn: &Connection, namespace: &str, since: i64) -> Result<Vec<StatRow>> {
    let mut stats = count_by_type(conn, DEAD, [namespace])?;
    stats.append(&mut count_by_type(conn, ENDED, (namespace, since))?);
    Ok(stats)
}

/// How many deliveries ended with a status, and when the first of them did.
struct Count {
    count: u64,
    oldest_at: i64,
}

/// By subscription, type and status.
type CountsByType = BTreeMap<String, BTreeMap<String, BTreeMap<Status, Count>>>;

/// Counts here instead of with GROUP BY, for which SQLite would sort all rows.
fn count_by_type(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<Vec<StatRow>> {
    let mut counts = CountsByType::new();
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params)?;
    while let Some(row) = rows.next()? {
        count(&mut counts, row)?;
    }
    let mut stats = Vec::new();
    for (subscription, by_type) in &counts {
        for (event_type, by_status) in by_type {
            stats.extend(by_status.iter().map(|(status, Count { count, oldest_at })| StatRow {
                subscription: subscription.clone(),
                event_type: event_type.clone(),
                status: *status,
                count: *count,
                oldest_at: Some(from_micros(*oldest_at)),
            }));
        }
    }
    Ok(stats)
}

/// From the columns of `DEAD` or `ENDED`. Allocates only for a new subscription or type.
fn count(counts: &mut CountsByType, row: &Row) -> rusqlite::Result<()> {
    let (subscription, event_type) = (row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?);
    let (status, at) = (row::parse_text(row, 2)?, row.get(3)?);
    if !counts.get(subscription).is_some_and(|by_type| by_type.contains_key(event_type)) {
        counts.entry(subscription.to_owned()).or_default().entry(event_type.to_owned()).or_default();
    }
    let by_status = counts.get_mut(subscription).and_then(|by_type| by_type.get_mut(event_type));
    if let Some(by_status) = by_status {
        let count = by_status.entry(status).or_insert(Count { count: 0, oldest_at: at });
        count.count += 1;
        count.oldest_at = count.oldest_at.min(at);
    }
    Ok(())
}

// Deliveries that are ready or wait for their group may be many, and are counted in the index alone. Lanes without
// deliveries are included: a type whose deliveries are all done has a depth of 0.
const BACKLOG: &str = "
SELECT subscription, event_type, sum(ready), sum(delayed), sum(retrying), sum(waiting), min(ready_since), min(next_at),
       min(held_since), sum(age_1), sum(age_2), sum(age_3), sum(age_4), sum(age_5)
FROM (
    SELECT subscription, event_type, 0 AS ready, 0 AS delayed, 0 AS retrying, 0 AS waiting, NULL AS ready_since,
           NULL AS next_at, NULL AS held_since, 0 AS age_1, 0 AS age_2, 0 AS age_3, 0 AS age_4, 0 AS age_5
    FROM lanes WHERE namespace = ?1
    UNION ALL
    SELECT l.subscription, l.event_type, count(*), 0, 0, 0, min(q.ready_at), NULL, NULL, 0, 0, 0, 0, 0
    FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_lane
    WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at <= ?2
    GROUP BY l.lane_id
    UNION ALL
    SELECT l.subscription, l.event_type, 0, sum(q.retry_count = 0), sum(q.retry_count > 0), 0, NULL, min(q.ready_at), NULL,
           0, 0, 0, 0, 0
    FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_lane
    WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at > ?2 AND q.ready_at < ?3
    GROUP BY l.lane_id
    UNION ALL
    SELECT l.subscription, l.event_type, 0, 0, 0, count(*), NULL, NULL, NULL, 0, 0, 0, 0, 0
    FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_lane
    WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at = ?3
    GROUP BY l.lane_id
    UNION ALL
    SELECT q.subscription, q.event_type, 0, 0, 0, 0, NULL, NULL, min(q.picked_at),
           sum(q.picked_at > ?2 - ?4),
           sum(q.picked_at <= ?2 - ?4 AND q.picked_at > ?2 - ?5),
           sum(q.picked_at <= ?2 - ?5 AND q.picked_at > ?2 - ?6),
           sum(q.picked_at <= ?2 - ?6 AND q.picked_at > ?2 - ?7),
           sum(q.picked_at <= ?2 - ?7)
    FROM subscriptions s CROSS JOIN event_queue q INDEXED BY event_queue_leased
    WHERE s.namespace = ?1 AND q.subscription_id = s.subscription_id AND q.lease IS NOT NULL
    GROUP BY q.subscription, q.event_type)
GROUP BY subscription, event_type";

fn backlog(conn: &Connection, namespace: &str, now: i64) -> Result<Vec<LiveCount>> {
    let mut select = conn.prepare_cached(BACKLOG)?;
    let [first, second, third, fourth] = PROCESSING_AGES.map(micros);
    let live = select.query_map((namespace, now, INFINITY, first, second, third, fourth), live_count)?;
    Ok(live.collect::<rusqlite::Result<_>>()?)
}

fn live_count(row: &Row) -> rusqlite::Result<LiveCount> {
    let mut processing_ages = [0; 5];
    for (place, age) in processing_ages.iter_mut().enumerate() {
        *age = row::count(row, 9 + place)?;
    }
    Ok(LiveCount {
        subscription: row.get(0)?,
        event_type: row.get(1)?,
        ready: row::count(row, 2)?,
        delayed: row::count(row, 3)?,
        retrying: row::count(row, 4)?,
        waiting_for_group: row::count(row, 5)?,
        processing_ages,
        ready_since: row::timestamp_or_null(row, 6)?,
        next_at: row::timestamp_or_null(row, 7)?,
        held_since: row::timestamp_or_null(row, 8)?,
    })
}

const DEAD_BY_REASON: &str = "
SELECT d.subscription, d.event_type,
       CASE WHEN d.reason IN (SELECT value FROM json_each(?2)) THEN d.reason
            WHEN substr(d.reason, 1, length(?3)) = ?3 THEN ?3 ELSE '' END AS reason,
       count(*)
FROM dead_letters d
WHERE d.namespace = ?1 GROUP BY 1, 2, 3";

const NEXT_TICK: &str = "SELECT min(next_at) FROM schedules WHERE namespace = ?1 AND next_at IS NOT NULL";

const OLDEST_ARRIVAL: &str = "
SELECT e.created_at FROM arrivals a CROSS JOIN events e ON e.id = a.event_id
WHERE a.namespace = ?1 ORDER BY a.event_id LIMIT 1";

fn counts(conn: &Connection, namespace: &str, reasons: &Reasons, now: i64) -> Result<Counts> {
    let mut dead = conn.prepare_cached(DEAD_BY_REASON)?;
    let dead = dead.query_map((namespace, to_json(&reasons.known)?, reasons.prefix), |row| {
        let (subscription, event_type) = (row.get(0)?, row.get(1)?);
        Ok(DeadCount { subscription, event_type, reason: row.get(2)?, count: row::count(row, 3)? })
    })?;
    let dead = dead.collect::<rusqlite::Result<_>>()?;
    let next_tick = conn.prepare_cached(NEXT_TICK)?.query_row([namespace], |row| row::timestamp_or_null(row, 0))?;
    let mut oldest_arrival = conn.prepare_cached(OLDEST_ARRIVAL)?;
    let oldest_arrival = oldest_arrival.query_row([namespace], |row| row::timestamp(row, 0)).optional()?;
    Ok(Counts { at: from_micros(now), dead, next_tick, oldest_arrival })
}
