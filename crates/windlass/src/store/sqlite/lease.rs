//! Who holds what; saying that work began, and holding it for longer.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row};

use super::group::{self, Group};
use super::row;
use crate::clock::{Timestamp, from_micros, micros};
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::store::{HeldBy, HeldDelivery};

const HELD: &str = "
SELECT event_id, subscription_id, lane_id, event_type, lease, attempts, attempts_limit, retry_count, max_retries,
       subscription, group_id, picked_at
FROM event_queue
WHERE subscription_id = (SELECT subscription_id FROM subscriptions WHERE namespace = ?2 AND subscription = ?3)
  AND event_id = ?1
  AND (?4 IS NULL OR lease = ?4) AND (?5 IS NULL OR (worker_id = ?5 AND lease IS NOT NULL))";

pub(super) fn held(conn: &Connection, namespace: &str, holder: &HeldDelivery) -> Result<Option<LiveDelivery>> {
    let (lease, worker_id) = match &holder.by {
        HeldBy::Lease(lease) => (Some(lease.0), None),
        HeldBy::Worker(worker_id) => (None, Some(worker_id)),
        HeldBy::Anyone => (None, None),
    };
    let mut select = conn.prepare_cached(HELD)?;
    let values = (holder.event_id, namespace, &holder.subscription, lease, worker_id);
    let live = |row: &Row| Ok(LiveDelivery { picked_at: row::instant_if_any(row, 11)?, ..row::live(row)? });
    Ok(select.query_row(values, live).optional()?)
}

const START: &str = "
UPDATE event_queue SET started_at = coalesce(started_at, ?5), updated_at = ?5
WHERE subscription_id = ?1 AND event_id = ?2 AND namespace = ?3 AND lease = ?4
RETURNING started_at";

pub(super) fn start(conn: &Connection, namespace: &str, live: &LiveDelivery, now: i64) -> Result<Option<Timestamp>> {
    let values = (live.subscription_id, live.event_id, namespace, live.lease.map(|lease| lease.0), now);
    Ok(conn.prepare_cached(START)?.query_row(values, |row| row::instant(row, 0)).optional()?)
}

const EXTEND: &str = "
UPDATE event_queue SET lease_expires_at = ?5, updated_at = ?6
WHERE subscription_id = ?1 AND event_id = ?2 AND namespace = ?3 AND lease = ?4";

pub(super) fn extend(
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
