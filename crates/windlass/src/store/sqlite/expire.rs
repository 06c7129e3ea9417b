//! Finding deliveries past their deadline, and expired leases.

use async_trait::async_trait;
use rusqlite::Connection;

use super::{SqliteStore, row};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::store::ExpireStore;

#[async_trait]
impl ExpireStore for SqliteStore {
    async fn expired_deliveries(
        &self,
        namespace: &str,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<LiveDelivery>> {
        let (namespace, now) = (namespace.to_owned(), self.now(now));
        self.read(move |conn| expired_deliveries(conn, &namespace, limit, now)).await
    }

    async fn expired_leases(
        &self,
        namespace: &str,
        subscriptions: &[i64],
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<LiveDelivery>> {
        let (namespace, subscriptions, now) = (namespace.to_owned(), subscriptions.to_vec(), self.now(now));
        self.read(move |conn| expired_leases(conn, &namespace, &subscriptions, limit, now)).await
    }
}

const EXPIRED_LEASES: &str = "
SELECT event_id, subscription_id, lane_id, event_type, lease, attempts, attempts_limit, retry_count, max_retries,
       subscription, group_id, lease_expires_at
FROM event_queue INDEXED BY event_queue_leased
WHERE subscription_id = ?1 AND lease IS NOT NULL AND lease_expires_at <= ?2 AND namespace = ?3
ORDER BY lease_expires_at, event_id LIMIT ?4";

/// Of a run, only the first delivery is returned: releasing it releases the others.
const FIRST_OF_RUN: &str = "
SELECT event_id FROM event_queue INDEXED BY event_queue_group
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3 AND lease = ?4 AND lease_expires_at <= ?5
ORDER BY ready_at = 9223372036854775807, due_at, event_id LIMIT 1";

pub(super) fn expired_leases(
    conn: &Connection,
    namespace: &str,
    subscriptions: &[i64],
    limit: usize,
    now: i64,
) -> Result<Vec<LiveDelivery>> {
    let (mut select, mut first_of_run) = (conn.prepare_cached(EXPIRED_LEASES)?, conn.prepare_cached(FIRST_OF_RUN)?);
    let mut found: Vec<(i64, LiveDelivery)> = Vec::new();
    for id in subscriptions {
        let rows = select.query_map((id, now, namespace, limit as i64), |row| Ok((row.get(11)?, row::live(row)?)))?;
        for row in rows {
            let (expires_at, live): (i64, LiveDelivery) = row?;
            let is_first = match (&live.group_id, live.lease) {
                (Some(group_id), Some(lease)) => {
                    let run = (group_id, &live.subscription, namespace, lease.0, now);
                    first_of_run.query_row(run, |row| row.get::<_, i64>(0))? == live.event_id
                }
                _ => true,
            };
            if is_first {
                found.push((expires_at, live));
            }
        }
    }
    found.sort_by_key(|(expired_at, live)| (*expired_at, live.event_id));
    found.truncate(limit);
    Ok(found.into_iter().map(|(_, live)| live).collect())
}

const EXPIRED_DELIVERIES: &str = "
SELECT q.event_id, q.subscription_id, q.lane_id, q.event_type, q.lease, q.attempts, q.attempts_limit, q.retry_count,
       q.max_retries, q.subscription, q.group_id
FROM subscriptions s CROSS JOIN event_queue q INDEXED BY event_queue_deadline
WHERE s.namespace = ?1 AND q.subscription_id = s.subscription_id AND q.lease IS NULL AND q.expires_at <= ?2
LIMIT ?3";

fn expired_deliveries(conn: &Connection, namespace: &str, limit: usize, now: i64) -> Result<Vec<LiveDelivery>> {
    let mut select = conn.prepare_cached(EXPIRED_DELIVERIES)?;
    let found = select.query_map((namespace, now, limit as i64), row::live)?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}
