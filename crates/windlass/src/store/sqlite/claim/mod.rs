//! Claiming deliveries: choosing them, leasing them and reading their events.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};

use super::lanes::newest_lane;
use super::run::claim_runs;
use super::writer::Durability;
use super::{SqliteStore, connection, row};
use crate::clock::{Timestamp, from_micros, micros};
use crate::error::Result;
use crate::event::delivery::Delivery;
use crate::event::names::type_matches;
use crate::store::{BehindCheck, Claim, ClaimSource, ClaimStore, Claimed, LeaseTimes};

mod choose;
mod lanes;
#[cfg(test)]
mod tests;

use choose::Candidate;
pub(super) use choose::next_priority;

/// A claim that takes this many deliveries per stream lets a reader thread read their events, so that the writer thread
/// can go on. The reader starts with a cold cache: this pays off if the events are stored next to each other.
const READ_APART_MIN: usize = 100;

#[async_trait]
impl ClaimStore for SqliteStore {
    async fn claim(&self, claim: &Claim, now: Option<Timestamp>) -> Result<Claimed> {
        let (claim, now, read_apart_min) = (Arc::new(claim.clone()), row::micros(now), self.read_apart_min(claim));
        let leasing = claim.clone();
        let lease = move |conn: &Connection, now| {
            let (mut claimed, leased) = lease(conn, &leasing, now)?;
            if leased.len() < read_apart_min {
                leased.read(conn, &leasing, &mut claimed)?;
                return Ok((claimed, None));
            }
            Ok((claimed, Some(leased)))
        };
        // A claim that is lost in a power failure only causes a redelivery.
        let (mut claimed, leased) = self.writer.write(Durability::Relaxed, now, lease).await?;
        let Some(leased) = leased else { return Ok(claimed) };
        let leased = Arc::new(leased);
        let (reading, to_read) = (claim.clone(), leased.clone());
        let read = self.read(move |conn| {
            let mut read = Claimed::default();
            to_read.read(conn, &reading, &mut read).map(|()| read)
        });
        let read = match read.await {
            Ok(read) => read,
            // The deliveries are leased already. If no reader can read them, the writer does.
            Err(_) => {
                let read = move |conn: &Connection, _| {
                    let mut read = Claimed::default();
                    leased.read(conn, &claim, &mut read).map(|()| read)
                };
                self.writer.write(Durability::Relaxed, now, read).await?
            }
        };
        (claimed.deliveries, claimed.followers) = (read.deliveries, read.followers);
        Ok(claimed)
    }

    /// Event ids are assigned under the write lock, so nothing is committed late: `ended` and `next` are equal.
    async fn check_behind(&self, claim: &Claim, from: i64, to: i64, now: Option<Timestamp>) -> Result<BehindCheck> {
        let (claim, now) = (claim.clone(), self.now(now));
        let first = self.read(move |conn| choose::first_in_order(conn, &claim, from, to, now)).await?;
        Ok(BehindCheck { first, ..BehindCheck::default() })
    }
}

impl SqliteStore {
    /// From how many deliveries on a reader reads their events. In memory, readers and the writer block each other.
    fn read_apart_min(&self, claim: &Claim) -> usize {
        if connection::is_in_memory(&self.file) {
            return usize::MAX;
        }
        match &claim.source {
            ClaimSource::Subscription { .. } => READ_APART_MIN,
            ClaimSource::Lanes(lanes) => READ_APART_MIN * lanes.len().max(1),
        }
    }
}

/// A delivery that a claim has leased.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeasedDelivery {
    pub event_id: i64,
    /// The index of the request that gets it.
    pub request: usize,
    pub picked_at: i64,
    pub lease_expires_at: i64,
}

/// The deliveries that a claim has leased and not read yet.
#[derive(Default)]
struct Leased {
    deliveries: Vec<LeasedDelivery>,
    /// The rest of their runs.
    followers: Vec<LeasedDelivery>,
}

impl Leased {
    fn len(&self) -> usize {
        self.deliveries.len() + self.followers.len()
    }

    /// Adds the deliveries with their events to `claimed`.
    fn read(&self, conn: &Connection, claim: &Claim, claimed: &mut Claimed) -> Result<()> {
        read_deliveries(conn, claim, &self.deliveries, &mut claimed.deliveries)?;
        read_deliveries(conn, claim, &self.followers, &mut claimed.followers)
    }
}

/// Chooses and leases the deliveries of a claim. They are not read yet.
fn lease(conn: &Connection, claim: &Claim, now: i64) -> Result<(Claimed, Leased)> {
    if row::version(conn, &claim.namespace)? != Some(claim.version) {
        return Ok((Claimed { outdated: true, ..Claimed::default() }, Leased::default()));
    }
    if let Some(known) = claim.known_lanes
        && newest_lane(conn, &claim.namespace)? > known
    {
        return Ok((Claimed { new_lanes: true, ..Claimed::default() }, Leased::default()));
    }
    let mut claimed = Claimed::default();
    if has_expired_lease(conn, claim.subscription_id, now)? {
        claimed.leases_due = true;
        return Ok((claimed, Leased::default()));
    }
    let mut candidates = choose::choose(conn, claim, now)?.into_iter();
    if let ClaimSource::Subscription { .. } = claim.source {
        claimed.newest = newest_event(conn, claim.subscription_id)?;
    }
    let mut lease_times = LeaseTimesByLane::new(claim);
    let mut leased = Vec::with_capacity(candidates.len());
    for (request, slot) in claim.requests.iter().enumerate() {
        for candidate in candidates.by_ref().take(slot.max) {
            let lease_expires_at = now.saturating_add(lease_times.of(conn, candidate.event_id, candidate.lane_id)?);
            let Candidate { event_id, place, .. } = candidate;
            claimed.positions.push(place);
            leased.push(LeasedDelivery { event_id, request, picked_at: now, lease_expires_at });
        }
    }
    update_leases(conn, claim, &leased, now)?;
    let followers = claim_runs(conn, claim, &leased, &mut lease_times, now)?;
    Ok((claimed, Leased { deliveries: leased, followers }))
}

/// Stores the leases in the rows.
pub(super) fn update_leases(conn: &Connection, claim: &Claim, leased: &[LeasedDelivery], now: i64) -> Result<()> {
    let mut update = conn.prepare_cached(LEASE)?;
    for consecutive in consecutive(leased) {
        let (first, slot) = (&consecutive[0], &claim.requests[consecutive[0].request]);
        let (from, to) = (first.event_id, consecutive[consecutive.len() - 1].event_id);
        let values = (claim.subscription_id, from, to, slot.lease.0, &slot.worker_id, now, first.lease_expires_at);
        update.execute(values)?;
    }
    Ok(())
}

/// Deliveries of consecutive events that one request gets. One statement for all of them costs less than one for each.
pub(super) fn consecutive(leased: &[LeasedDelivery]) -> impl Iterator<Item = &[LeasedDelivery]> {
    leased.chunk_by(|a, b| {
        b.event_id == a.event_id + 1 && (b.request, b.lease_expires_at) == (a.request, a.lease_expires_at)
    })
}

/// Without RETURNING: SQLite builds a temporary table for it each time, which doubles the cost.
const LEASE: &str = "
UPDATE event_queue
SET lease = ?4, worker_id = ?5, attempts = attempts + 1, picked_at = ?6, updated_at = ?6, started_at = NULL,
    lease_expires_at = ?7
WHERE subscription_id = ?1 AND event_id BETWEEN ?2 AND ?3";

const HAS_EXPIRED_LEASE: &str = "
SELECT 1 FROM event_queue INDEXED BY event_queue_leased
WHERE subscription_id = ?1 AND lease IS NOT NULL AND lease_expires_at <= ?2 LIMIT 1";

fn has_expired_lease(conn: &Connection, subscription_id: i64, now: i64) -> Result<bool> {
    Ok(conn.prepare_cached(HAS_EXPIRED_LEASE)?.exists((subscription_id, now))?)
}

const NEWEST_EVENT: &str = "
SELECT event_id FROM event_queue WHERE subscription_id = ?1 ORDER BY event_id DESC LIMIT 1";

fn newest_event(conn: &Connection, subscription_id: i64) -> Result<Option<i64>> {
    Ok(conn.prepare_cached(NEWEST_EVENT)?.query_row([subscription_id], |row| row.get(0)).optional()?)
}

/// Lease durations in microseconds. All deliveries of a lane have the same type.
pub(super) struct LeaseTimesByLane<'a> {
    subscription_id: i64,
    times: &'a LeaseTimes,
    by_lane: HashMap<i64, i64>,
}

const EVENT_TYPE: &str = "SELECT event_type FROM event_queue WHERE subscription_id = ?1 AND event_id = ?2";

impl LeaseTimesByLane<'_> {
    fn new(claim: &Claim) -> LeaseTimesByLane<'_> {
        let (subscription_id, times) = (claim.subscription_id, &claim.leases);
        LeaseTimesByLane { subscription_id, times, by_lane: HashMap::new() }
    }

    pub fn of(&mut self, conn: &Connection, event_id: i64, lane_id: i64) -> Result<i64> {
        if self.times.by_type.is_empty() {
            return Ok(micros(self.times.default));
        }
        if let Some(known) = self.by_lane.get(&lane_id) {
            return Ok(*known);
        }
        let mut select = conn.prepare_cached(EVENT_TYPE)?;
        let event_type: String = select.query_row((self.subscription_id, event_id), |row| row.get(0))?;
        let matching = self.times.by_type.iter().filter(|(pattern, _)| type_matches(pattern, &event_type));
        let longest = matching.max_by_key(|(pattern, _)| pattern.len());
        let lease = micros(longest.map_or(self.times.default, |(_, duration)| *duration));
        self.by_lane.insert(lane_id, lease);
        Ok(lease)
    }
}

const DELIVERY: &str = "
SELECT e.id, e.namespace, e.event_type, e.title, e.description, e.tags, e.payload, e.group_id, e.key, e.priority,
       e.producer, e.scheduled_task_id, e.run_at, e.expires_at, e.metadata, e.created_at,
       q.attempts, q.retry_count, q.max_retries, q.attempts_limit, q.lane_id
FROM event_queue q CROSS JOIN events e ON e.id = q.event_id
WHERE q.subscription_id = ?1 AND q.event_id BETWEEN ?2 AND ?3 AND q.lease = ?4 ORDER BY q.event_id";

/// Adds the leased deliveries with their events to `deliveries`. If this happens after the claim was committed, deliveries
/// whose lease has ended by then are left out.
fn read_deliveries(
    conn: &Connection,
    claim: &Claim,
    leased: &[LeasedDelivery],
    deliveries: &mut Vec<Delivery>,
) -> Result<()> {
    let mut select = conn.prepare_cached(DELIVERY)?;
    deliveries.reserve(leased.len());
    for consecutive in consecutive(leased) {
        let (first, request) = (&consecutive[0], &claim.requests[consecutive[0].request]);
        let (from, to) = (first.event_id, consecutive[consecutive.len() - 1].event_id);
        let mut rows = select.query((claim.subscription_id, from, to, request.lease.0))?;
        while let Some(row) = rows.next()? {
            let event = row::event_from(row)?;
            deliveries.push(Delivery {
                event,
                subscription: claim.subscription.clone(),
                worker_id: request.worker_id.clone(),
                lease: request.lease,
                attempts: row.get(16)?,
                retry_count: row.get(17)?,
                max_retries: row.get(18)?,
                picked_at: from_micros(first.picked_at),
                lease_expires_at: from_micros(first.lease_expires_at),
                subscription_id: claim.subscription_id,
                lane_id: row.get(20)?,
                attempts_limit: row.get(19)?,
            });
        }
    }
    Ok(())
}
