//! Lanes: creating, listing and removing them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};

use super::SqliteStore;
use super::topology::grow_version;
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::event::Event;
use crate::store::{LaneStore, NewDelivery};
use crate::topology::lanes::{EMPTY_LANES_MIN, Lane, LaneKey, join_tags, split_tags};

#[async_trait]
impl LaneStore for SqliteStore {
    async fn add_lanes(&self, namespace: &str, lanes: &[LaneKey]) -> Result<Vec<i64>> {
        let (namespace, lanes) = (namespace.to_owned(), lanes.to_vec());
        self.write(None, move |conn, now| add_lanes(conn, &namespace, &lanes, now)).await
    }

    async fn lanes_after(&self, namespace: &str, lane_id: i64) -> Result<Vec<Lane>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| lanes_after(conn, &namespace, lane_id)).await
    }

    /// Finds the lanes outside of the write transaction, which checks them again.
    async fn remove_empty_lanes(
        &self,
        namespace: &str,
        min_age: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let (reading, created_until) = (namespace.to_owned(), self.now(now).saturating_sub(micros(min_age)));
        let empty = self.read(move |conn| empty_lanes(conn, &reading, created_until, limit)).await?;
        if empty.len() < EMPTY_LANES_MIN {
            return Ok(0);
        }
        let namespace = namespace.to_owned();
        self.write(now, move |conn, _| remove_lanes(conn, &namespace, &empty)).await
    }
}

const LANE_ID: &str = "
SELECT lane_id FROM lanes WHERE subscription_id = ?1 AND event_type = ?2 AND tags = ?3 AND priority = ?4";

const ADD_LANE: &str = "
INSERT INTO lanes (namespace, subscription_id, subscription, event_type, tags, priority, created_at)
SELECT namespace, subscription_id, subscription, ?3, ?4, ?5, ?6 FROM subscriptions
WHERE subscription_id = ?2 AND namespace = ?1";

/// The ids of the lanes, in order; creates missing ones. The id is 0 if the subscription was removed: then the caller's
/// version of the namespace is outdated, and nothing can be stored with it.
pub(super) fn add_lanes(conn: &Connection, namespace: &str, lanes: &[LaneKey], now: i64) -> Result<Vec<i64>> {
    let (mut select, mut insert) = (conn.prepare_cached(LANE_ID)?, conn.prepare_cached(ADD_LANE)?);
    let mut ids = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let (id, event_type, tags) = (lane.subscription_id, &lane.event_type, join_tags(&lane.tags));
        let known = select.query_row((id, event_type, &tags, lane.priority), |row| row.get(0)).optional()?;
        ids.push(match known {
            Some(lane_id) => lane_id,
            None if insert.execute((namespace, id, event_type, &tags, lane.priority, now))? > 0 => {
                conn.last_insert_rowid()
            }
            None => 0,
        });
    }
    Ok(ids)
}

const EXISTS: &str = "SELECT 1 FROM lanes WHERE lane_id = ?1";

/// The lane for a delivery of a stored event. Creates the lane again if it was removed after routing.
pub(super) fn existing_lane(conn: &Connection, event: &Event, delivery: &NewDelivery, now: i64) -> Result<i64> {
    if conn.prepare_cached(EXISTS)?.exists([delivery.lane_id])? {
        return Ok(delivery.lane_id);
    }
    let tags: BTreeSet<String> = split_tags(&event.tags).iter().map(|tag| tag.trim_ascii().to_owned()).collect();
    let key = LaneKey {
        subscription_id: delivery.subscription_id,
        event_type: event.event_type.clone(),
        tags: tags.into_iter().filter(|tag| !tag.is_empty()).collect(),
        priority: event.priority,
    };
    let ids = add_lanes(conn, &event.namespace, &[key], now)?;
    Ok(ids.first().copied().unwrap_or_default())
}

const LANES_AFTER: &str = "
SELECT lane_id, subscription_id, event_type, tags, priority FROM lanes INDEXED BY lanes_by_namespace
WHERE namespace = ?1 AND lane_id > ?2 ORDER BY lane_id";

pub(super) fn lanes_after(conn: &Connection, namespace: &str, lane_id: i64) -> Result<Vec<Lane>> {
    let mut select = conn.prepare_cached(LANES_AFTER)?;
    let found = select.query_map((namespace, lane_id), |row| {
        let tags = split_tags(row.get_ref(3)?.as_str()?);
        let key = LaneKey { subscription_id: row.get(1)?, event_type: row.get(2)?, tags, priority: row.get(4)? };
        // Only one transaction writes at a time, so ids are in the order of commits.
        Ok(Lane { lane_id: row.get(0)?, number: row.get(0)?, key: Arc::new(key) })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

const NEWEST_LANE: &str = "
SELECT coalesce(max(lane_id), 0) FROM lanes INDEXED BY lanes_by_namespace WHERE namespace = ?1";

/// The number of the newest lane of the namespace; 0 if there is none.
pub(super) fn newest_lane(conn: &Connection, namespace: &str) -> Result<i64> {
    Ok(conn.prepare_cached(NEWEST_LANE)?.query_row([namespace], |row| row.get(0))?)
}

const EMPTY_LANES: &str = "
SELECT l.lane_id FROM lanes l INDEXED BY lanes_by_namespace
WHERE l.namespace = ?1 AND l.created_at <= ?2
  AND NOT EXISTS (SELECT 1 FROM event_queue q INDEXED BY event_queue_lane
                  WHERE q.lane_id = l.lane_id AND q.lease IS NULL)
  AND l.lane_id NOT IN (SELECT q.lane_id FROM subscriptions s
                        CROSS JOIN event_queue q INDEXED BY event_queue_leased ON q.subscription_id = s.subscription_id
                        WHERE s.namespace = ?1 AND q.lease IS NOT NULL)
ORDER BY l.lane_id LIMIT ?3";

/// Up to `limit` lanes without deliveries that were created at this time or before.
pub(super) fn empty_lanes(conn: &Connection, namespace: &str, created_until: i64, limit: usize) -> Result<Vec<i64>> {
    let mut select = conn.prepare_cached(EMPTY_LANES)?;
    let found = select.query_map((namespace, created_until, limit as i64), |row| row.get(0))?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

const LEASED_LANES: &str = "
SELECT q.lane_id FROM subscriptions s
CROSS JOIN event_queue q INDEXED BY event_queue_leased ON q.subscription_id = s.subscription_id
WHERE s.namespace = ?1 AND q.lease IS NOT NULL";

const REMOVE_LANE: &str = "
DELETE FROM lanes WHERE lane_id = ?1 AND namespace = ?2
  AND NOT EXISTS (SELECT 1 FROM event_queue INDEXED BY event_queue_lane WHERE lane_id = ?1 AND lease IS NULL)";

/// Removes the lanes that are still empty, and increments the version if there are any. Returns how many.
pub(super) fn remove_lanes(conn: &Connection, namespace: &str, lanes: &[i64]) -> Result<usize> {
    let mut select = conn.prepare_cached(LEASED_LANES)?;
    let leased: HashSet<i64> = select.query_map([namespace], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut delete = conn.prepare_cached(REMOVE_LANE)?;
    let mut removed = 0;
    for lane_id in lanes.iter().filter(|lane_id| !leased.contains(lane_id)) {
        removed += delete.execute((lane_id, namespace))?;
    }
    if removed > 0 {
        grow_version(conn, namespace)?;
    }
    Ok(removed)
}
