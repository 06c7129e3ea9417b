//! The state that waiting claims depend on.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};

use super::claim::next_priority;
use super::lanes::newest_lane;
use super::{SqliteStore, row};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::store::{WatchRequest, WatchResult, WatchStore};

#[async_trait]
impl WatchStore for SqliteStore {
    async fn poll_ready(&self, namespace: &str, request: &WatchRequest, now: Option<Timestamp>) -> Result<WatchResult> {
        let (namespace, request, now) = (namespace.to_owned(), request.clone(), self.now(now));
        self.read(move |conn| poll_ready(conn, &namespace, &request, now)).await
    }
}

pub(super) fn poll_ready(conn: &Connection, namespace: &str, request: &WatchRequest, now: i64) -> Result<WatchResult> {
    let unknown = || Error::NamespaceNotFound { namespace: namespace.to_owned() };
    let version = row::version(conn, namespace)?.ok_or_else(unknown)?;
    let mut result = WatchResult { version, newest_lane: newest_lane(conn, namespace)?, ..WatchResult::default() };
    let mut next_at: Vec<i64> = Vec::new();
    for &(id, after_event) in &request.subscriptions {
        let mut in_order = conn.prepare_cached(IN_ORDER_IS_READY)?;
        if has_out_of_order(conn, id, now)? || in_order.exists((id, after_event, now))? {
            result.ready_subscriptions.push(id);
        }
        next_at.extend(next_of_subscription(conn, id, now)?);
    }
    for lane_id in lanes_with_deliveries(conn, &request.lanes)? {
        if conn.prepare_cached(LANE_IS_READY)?.exists((lane_id, now))? {
            result.ready_lanes.push(lane_id);
        }
        next_at.extend(next_of_lane(conn, lane_id, now)?);
    }
    let first_lease_ends: Option<i64> = conn.prepare_cached(FIRST_LEASE)?.query_row([namespace], |row| row.get(0))?;
    result.leases_due = first_lease_ends.is_some_and(|at| at <= now);
    next_at.extend(first_lease_ends.filter(|at| *at > now));
    result.next_in = next_at.into_iter().min().map(|at| Duration::from_micros((at - now).unsigned_abs()));
    Ok(result)
}

const FIRST_LEASE: &str = "
SELECT min((SELECT q.lease_expires_at FROM event_queue q INDEXED BY event_queue_leased
            WHERE q.subscription_id = s.subscription_id AND q.lease IS NOT NULL
            ORDER BY q.lease_expires_at LIMIT 1))
FROM subscriptions s WHERE s.namespace = ?1";

const OUT_OF_ORDER_IS_READY: &str = "
SELECT 1 FROM event_queue INDEXED BY event_queue_out_of_order
WHERE subscription_id = ?1 AND out_of_order AND lease IS NULL AND priority = ?2 AND ready_at <= ?3
  AND (expires_at IS NULL OR expires_at > ?3) LIMIT 1";

fn has_out_of_order(conn: &Connection, subscription_id: i64, now: i64) -> Result<bool> {
    let mut select = conn.prepare_cached(OUT_OF_ORDER_IS_READY)?;
    let mut below = None;
    while let Some(priority) = next_priority(conn, subscription_id, below)? {
        if select.exists((subscription_id, priority, now))? {
            return Ok(true);
        }
        below = Some(priority);
    }
    Ok(false)
}

/// A claim takes an in-order row whatever its `ready_at` is. A row with a deadline must be ready.
const IN_ORDER_IS_READY: &str = "
SELECT 1 FROM event_queue
WHERE subscription_id = ?1 AND event_id > ?2 AND NOT out_of_order AND lease IS NULL
  AND (expires_at IS NULL OR (expires_at > ?3 AND ready_at <= ?3)) ORDER BY event_id LIMIT 1";

const NEXT_OF_PRIORITY: &str = "
SELECT ready_at FROM event_queue INDEXED BY event_queue_out_of_order
WHERE subscription_id = ?1 AND out_of_order AND lease IS NULL AND priority = ?2
  AND ready_at > ?3 AND ready_at < 9223372036854775807
ORDER BY ready_at LIMIT 1";

/// When the next delivery of the subscription becomes ready.
fn next_of_subscription(conn: &Connection, subscription_id: i64, now: i64) -> Result<Option<i64>> {
    let mut select = conn.prepare_cached(NEXT_OF_PRIORITY)?;
    let (mut next_at, mut below) = (None, None);
    while let Some(priority) = next_priority(conn, subscription_id, below)? {
        let next: Option<i64> = select.query_row((subscription_id, priority, now), |row| row.get(0)).optional()?;
        next_at = next_at.into_iter().chain(next).min();
        below = Some(priority);
    }
    Ok(next_at)
}

const NEXT_LANE: &str = "
SELECT lane_id FROM event_queue INDEXED BY event_queue_lane
WHERE lane_id >= ?1 AND lease IS NULL ORDER BY lane_id LIMIT 1";

/// The lanes with pending deliveries. Jumps from each requested lane to the next one that has deliveries, and from
/// there to the next requested one.
fn lanes_with_deliveries(conn: &Connection, mut wanted: &[i64]) -> Result<Vec<i64>> {
    let mut select = conn.prepare_cached(NEXT_LANE)?;
    let mut found = Vec::new();
    while let Some(first) = wanted.first()
        && let Some(lane_id) = select.query_row([first], |row| row.get::<_, i64>(0)).optional()?
    {
        wanted = &wanted[wanted.partition_point(|wanted| *wanted < lane_id)..];
        if let Some(rest) = wanted.strip_prefix(&[lane_id]) {
            found.push(lane_id);
            wanted = rest;
        }
    }
    Ok(found)
}

const LANE_IS_READY: &str = "
SELECT 1 FROM event_queue INDEXED BY event_queue_lane
WHERE lane_id = ?1 AND lease IS NULL AND ready_at <= ?2 AND (expires_at IS NULL OR expires_at > ?2) LIMIT 1";

const NEXT_OF_LANE: &str = "
SELECT ready_at FROM event_queue INDEXED BY event_queue_lane
WHERE lane_id = ?1 AND lease IS NULL AND ready_at > ?2 AND ready_at < 9223372036854775807
ORDER BY ready_at LIMIT 1";

/// When the next delivery of the lane becomes ready.
fn next_of_lane(conn: &Connection, lane_id: i64, now: i64) -> Result<Option<i64>> {
    Ok(conn.prepare_cached(NEXT_OF_LANE)?.query_row((lane_id, now), |row| row.get(0)).optional()?)
}
