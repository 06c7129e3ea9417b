//! Taking deliveries.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};

use rusqlite::{Connection, OptionalExtension, Row, Statement};

use super::row;
use crate::clock::{from_micros, micros};
use crate::delivery::Delivery;
use crate::error::Result;
use crate::store::{Claim, LaneClaim};

/// A delivery that is held now.
pub(super) struct Taken {
    event_id: i64,
    /// Its place in the claim.
    lane: usize,
    request: usize,
    picked_at: i64,
}

pub(super) fn take(conn: &Connection, claim: &Claim, now: i64) -> Result<Vec<Taken>> {
    if row::version(conn, &claim.namespace)? != Some(claim.version) {
        return Ok(Vec::new());
    }
    let mut chosen = choose(conn, claim, now)?.into_iter();
    let mut update = conn.prepare_cached(TAKE)?;
    let mut taken = Vec::with_capacity(chosen.len());
    for (request, slot) in claim.requests.iter().enumerate() {
        for (lane, event_id) in chosen.by_ref().take(slot.max) {
            let LaneClaim { lane_id, lease, .. } = claim.lanes[lane];
            let end = now.saturating_add(micros(lease));
            update.execute((event_id, lane_id, slot.lease.0, &slot.worker_id, now, end))?;
            taken.push(Taken { event_id, lane, request, picked_at: now });
        }
    }
    Ok(taken)
}

/// What was taken, with its events. They may be read after the claim is committed: then what is no longer held is left out.
pub(super) fn deliveries(conn: &Connection, claim: &Claim, taken: &[Taken]) -> Result<Vec<Delivery>> {
    let mut select = conn.prepare_cached(SELECT)?;
    let mut deliveries = Vec::with_capacity(taken.len());
    for Taken { event_id, lane, request, picked_at } in taken {
        let (lane, request) = (&claim.lanes[*lane], &claim.requests[*request]);
        let found = select.query_row((event_id, lane.lane_id, request.lease.0), |row| {
            Ok(Delivery {
                event: row::event_from(row)?,
                subscription: claim.subscription.clone(),
                worker_id: request.worker_id.clone(),
                lease: request.lease,
                attempts: row.get(16)?,
                retry_count: row.get(17)?,
                max_retries: row.get(18)?,
                picked_at: from_micros(*picked_at),
                lease_expires_at: from_micros(picked_at.saturating_add(micros(lane.lease))),
                lane_id: lane.lane_id,
                attempts_limit: row.get(19)?,
            })
        });
        // One without its event must not exist; held, it is out of the way.
        deliveries.extend(found.optional()?);
    }
    Ok(deliveries)
}

/// Without RETURNING, for which SQLite builds a table each time: that doubles the cost.
pub(super) const TAKE: &str = "
UPDATE event_queue
SET lease = ?3, worker_id = ?4, attempts = attempts + 1, picked_at = ?5, updated_at = ?5, started_at = NULL,
    lease_expires_at = ?6
WHERE event_id = ?1 AND lane_id = ?2";
const SELECT: &str = "
SELECT e.id, e.namespace, e.event_type, e.title, e.description, e.tags, e.payload, e.group_id, e.key, e.priority,
       e.producer, e.scheduled_task_id, e.run_at, e.expires_at, e.metadata, e.created_at,
       q.attempts, q.retry_count, q.max_retries, q.attempts_limit
FROM event_queue q CROSS JOIN events e ON e.id = q.event_id
WHERE q.event_id = ?1 AND q.lane_id = ?2 AND q.lease = ?3";

/// The place of a lane among those that are asked, and an event in it.
type Chosen = (usize, i64);

/// The deliveries to take: near deadlines first, then by priority, then the earliest.
fn choose(conn: &Connection, claim: &Claim, now: i64) -> Result<Vec<Chosen>> {
    let (mut chosen, wanted) = (Vec::new(), claim.wanted());
    let mut places: Vec<(usize, &LaneClaim)> = claim.lanes.iter().enumerate().collect();
    if has_deadlines(conn)? {
        merge(conn, Order::Deadline, &places, wanted, now, &mut chosen)?;
    } else if let Some(shares) = claim.shares()
        && let Some(chosen) = from_each(conn, claim, &shares, now)?
    {
        return Ok(chosen);
    }
    places.sort_by_key(|(_, lane)| Reverse(lane.priority));
    for equals in places.chunk_by(|(_, a), (_, b)| a.priority == b.priority) {
        if chosen.len() >= wanted {
            break;
        }
        merge(conn, Order::Readiness, equals, wanted, now, &mut chosen)?;
    }
    Ok(chosen)
}

/// The earliest of each lane; `None` where that is too little, and one that gave all it was asked for may have what
/// others had not.
fn from_each(conn: &Connection, claim: &Claim, shares: &[usize], now: i64) -> Result<Option<Vec<Chosen>>> {
    let (order, mut found) = (Order::Readiness, Vec::with_capacity(claim.wanted()));
    let (mut select, mut filled) = (conn.prepare_cached(order.sql())?, 0);
    for (place, (lane, share)) in claim.lanes.iter().zip(shares).enumerate() {
        let of_lane = order.read(&mut select, lane, order.begin(now), *share, now)?;
        filled += usize::from(of_lane.len() == *share);
        found.extend(of_lane.into_iter().map(|(ready_at, event_id)| (ready_at, event_id, place)));
    }
    if filled > 0 && !claim.is_filled(found.len()) {
        return Ok(None);
    }
    found.sort_unstable();
    Ok(Some(found.into_iter().map(|(_, event_id, place)| (place, event_id)).collect()))
}

const HAS_DEADLINES: &str = "
SELECT 1 FROM event_queue INDEXED BY event_queue_deadline WHERE expires_at IS NOT NULL AND lease IS NULL LIMIT 1";

/// Most queues know no deadlines: then no lane is asked for them.
fn has_deadlines(conn: &Connection) -> Result<bool> {
    Ok(conn.prepare_cached(HAS_DEADLINES)?.query_row([], |_| Ok(())).optional()?.is_some())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Those that expire within the horizon, the earliest deadline first.
    Deadline,
    /// All, the earliest first.
    Readiness,
}

/// One lane's next deliveries, of which the rest is read when these are used up.
struct Page<'a> {
    place: usize,
    lane: &'a LaneClaim,
    next: VecDeque<(i64, i64)>,
    /// Where the rest begins; `None` if there is none.
    rest: Option<(i64, i64)>,
    /// How many to read at a time.
    size: usize,
}

/// Adds from all lanes in one order until `wanted` are chosen. Each lane is asked for little more than
/// its share: taking `wanted` from each would read far too much.
fn merge(
    conn: &Connection,
    order: Order,
    lanes: &[(usize, &LaneClaim)],
    wanted: usize,
    now: i64,
    chosen: &mut Vec<Chosen>,
) -> Result<()> {
    let seen: HashSet<Chosen> = chosen.iter().copied().collect();
    let share = (wanted - chosen.len() + seen.len()).div_ceil(lanes.len());
    let mut select = conn.prepare_cached(order.sql())?;
    let (mut pages, mut heads) = (Vec::with_capacity(lanes.len()), BinaryHeap::with_capacity(lanes.len()));
    for (at, &(place, lane)) in lanes.iter().enumerate() {
        let mut page = Page { place, lane, next: VecDeque::new(), rest: Some(order.begin(now)), size: share };
        heads.extend(page.next(&mut select, order, now)?.map(|head| Reverse((head, at))));
        pages.push(page);
    }
    while chosen.len() < wanted
        && let Some(Reverse((head, at))) = heads.pop()
    {
        let page: &mut Page = &mut pages[at];
        if !seen.contains(&(page.place, head.1)) {
            chosen.push((page.place, head.1));
        }
        heads.extend(page.next(&mut select, order, now)?.map(|head| Reverse((head, at))));
    }
    Ok(())
}

impl Page<'_> {
    fn next(&mut self, select: &mut Statement, order: Order, now: i64) -> Result<Option<(i64, i64)>> {
        if self.next.is_empty()
            && let Some(after) = self.rest
        {
            self.next = order.read(select, self.lane, after, self.size, now)?;
            self.rest = self.next.back().filter(|_| self.next.len() >= self.size).copied();
            // A lane that gave all of its share may be where most of the work is.
            self.size *= 4;
        }
        Ok(self.next.pop_front())
    }
}

const BY_READINESS: &str = "
SELECT ready_at, event_id FROM event_queue INDEXED BY event_queue_free
WHERE lane_id = ?1 AND lease IS NULL AND ready_at <= ?2 AND (ready_at, event_id) > (?3, ?4)
  AND (expires_at IS NULL OR expires_at > ?2)
ORDER BY ready_at, event_id LIMIT ?5";
const BY_DEADLINE: &str = "
SELECT expires_at, event_id FROM event_queue INDEXED BY event_queue_deadline
WHERE lane_id = ?1 AND lease IS NULL AND expires_at <= ?6 AND (expires_at, event_id) > (?3, ?4)
  AND ready_at <= ?2
ORDER BY expires_at, event_id LIMIT ?5";

impl Order {
    fn sql(self) -> &'static str {
        match self {
            Order::Deadline => BY_DEADLINE,
            Order::Readiness => BY_READINESS,
        }
    }

    /// What lies before everything that may be taken.
    fn begin(self, now: i64) -> (i64, i64) {
        match self {
            Order::Deadline => (now, i64::MAX),
            Order::Readiness => (i64::MIN, i64::MIN),
        }
    }

    fn read(
        self,
        select: &mut Statement,
        lane: &LaneClaim,
        (at, event_id): (i64, i64),
        limit: usize,
        now: i64,
    ) -> Result<VecDeque<(i64, i64)>> {
        let (limit, horizon) = (limit as i64, now.saturating_add(micros(lane.deadline_horizon)));
        let pair = |row: &Row| Ok((row.get(0)?, row.get(1)?));
        let read = match self {
            Order::Deadline => select.query_map((lane.lane_id, now, at, event_id, limit, horizon), pair)?,
            Order::Readiness => select.query_map((lane.lane_id, now, at, event_id, limit), pair)?,
        };
        Ok(read.collect::<rusqlite::Result<_>>()?)
    }
}
