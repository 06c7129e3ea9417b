//! Leased deliveries: finding them, recording the start of work, renewing leases.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::group::{self, Group};
use super::{SqliteStore, row};
use crate::clock::{Timestamp, from_micros, micros};
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::queue::outcome::Attempt;
use crate::store::{HeartbeatStore, HeldBy, HeldDelivery};

#[async_trait]
impl HeartbeatStore for SqliteStore {
    async fn held(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<LiveDelivery>>> {
        let (namespace, holders) = (namespace.to_owned(), holders.to_vec());
        self.read(move |conn| holders.iter().map(|holder| held(conn, &namespace, holder)).collect()).await
    }

    async fn recorded(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<Attempt>>> {
        let (namespace, holders) = (namespace.to_owned(), holders.to_vec());
        self.read(move |conn| holders.iter().map(|holder| recorded(conn, &namespace, holder)).collect()).await
    }

    async fn start(
        &self,
        namespace: &str,
        live: &[LiveDelivery],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>> {
        let (namespace, live) = (namespace.to_owned(), live.to_vec());
        self.write(now, move |conn, now| live.iter().map(|live| start(conn, &namespace, live, now)).collect()).await
    }

    async fn extend(
        &self,
        namespace: &str,
        live: &[(LiveDelivery, Duration)],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>> {
        let (namespace, live) = (namespace.to_owned(), live.to_vec());
        self.write(now, move |conn, now| {
            live.iter().map(|(live, by)| extend(conn, &namespace, live, *by, now)).collect()
        })
        .await
    }
}

const HELD: &str = "
SELECT event_id, subscription_id, lane_id, event_type, lease, attempts, attempts_limit, retry_count, max_retries,
       subscription, group_id, picked_at
FROM event_queue
WHERE subscription_id = (SELECT subscription_id FROM subscriptions WHERE namespace = ?2 AND subscription = ?3)
  AND event_id = ?1
  AND (?4 IS NULL OR lease = ?4) AND (?5 IS NULL OR (worker_id = ?5 AND lease IS NOT NULL))";

fn held(conn: &Connection, namespace: &str, holder: &HeldDelivery) -> Result<Option<LiveDelivery>> {
    let (lease, worker_id) = match &holder.by {
        HeldBy::Lease(lease) => (Some(lease.0), None),
        HeldBy::Worker(worker_id) => (None, Some(worker_id)),
        HeldBy::Anyone => (None, None),
    };
    let mut select = conn.prepare_cached(HELD)?;
    let values = (holder.event_id, namespace, &holder.subscription, lease, worker_id);
    let live = |row: &Row| Ok(LiveDelivery { picked_at: row::timestamp_or_null(row, 11)?, ..row::live(row)? });
    Ok(select.query_row(values, live).optional()?)
}

const START: &str = "
UPDATE event_queue SET started_at = coalesce(started_at, ?5), updated_at = ?5
WHERE subscription_id = ?1 AND event_id = ?2 AND namespace = ?3 AND lease = ?4
RETURNING started_at";

fn start(conn: &Connection, namespace: &str, live: &LiveDelivery, now: i64) -> Result<Option<Timestamp>> {
    let values = (live.subscription_id, live.event_id, namespace, live.lease.map(|lease| lease.0), now);
    Ok(conn.prepare_cached(START)?.query_row(values, |row| row::timestamp(row, 0)).optional()?)
}

const EXTEND: &str = "
UPDATE event_queue SET lease_expires_at = ?5, updated_at = ?6
WHERE subscription_id = ?1 AND event_id = ?2 AND namespace = ?3 AND lease = ?4";

fn extend(
    conn: &Connection,
    namespace: &str,
    live: &LiveDelivery,
    by: Duration,
    now: i64,
) -> Result<Option<Timestamp>> {
    let end = now.saturating_add(micros(by));
    let values = (live.subscription_id, live.event_id, namespace, live.lease.map(|lease| lease.0), end, now);
    let held = conn.prepare_cached(EXTEND)?.execute(values)? > 0;
    if let (true, Some(group_id)) = (held, live.group_id.as_deref()) {
        let group = Group { namespace, subscription: &live.subscription, group_id };
        group::extend_run(conn, group, live.lease.map(|lease| lease.0), end)?;
    }
    Ok(held.then(|| from_micros(end)))
}

const RECORDED: &str = "
SELECT event_id, subscription, attempt, worker_id, action, status_code, execution_time_ms, error_message,
       next_retry_at, retry_count, max_retries, finished_at
FROM event_attempts INDEXED BY event_attempts_by_event
WHERE event_id = ?1 AND namespace = ?2 AND subscription = ?3 AND (?4 IS NULL OR lease = ?4)
  AND (?5 IS NULL OR worker_id = ?5)
ORDER BY rowid DESC LIMIT 1";

fn recorded(conn: &Connection, namespace: &str, holder: &HeldDelivery) -> Result<Option<Attempt>> {
    let (lease, worker_id) = match &holder.by {
        HeldBy::Lease(lease) => (Some(lease.0), None),
        HeldBy::Worker(worker_id) => (None, Some(worker_id)),
        HeldBy::Anyone => (None, None),
    };
    let mut select = conn.prepare_cached(RECORDED)?;
    let key = (holder.event_id, namespace, &holder.subscription, lease, worker_id);
    let found = select.query_row(key, |row| row::attempt(row, 0));
    Ok(found.optional()?)
}
