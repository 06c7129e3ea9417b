//! Choosing the deliveries of a claim from the streams of a subscription. See `lanes.rs` for claims from single lanes.
//!
//! The partial indexes contain no leased rows, so out-of-order rows and deadlines are always read from the start, and a
//! claim's remembered positions in them are not needed. Only the in-order rows are read from the primary key, which
//! also contains leased and out-of-order rows: there the position saves reading these again.

use rusqlite::{Connection, OptionalExtension, Rows};

use super::lanes;
use crate::clock::{from_micros, micros};
use crate::error::Result;
use crate::store::{Claim, ClaimSource, StreamPosition};

/// A delivery to claim, and the stream in which it was found.
pub(super) struct Candidate {
    pub event_id: i64,
    pub lane_id: i64,
    pub place: StreamPosition,
}

/// The time of a claim. Deliveries with a deadline after `now` and up to `horizon` are claimed first; others are claimed
/// by priority and readiness if they have no deadline or one after `horizon`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimTime {
    pub now: i64,
    pub horizon: i64,
}

impl ClaimTime {
    fn new(claim: &Claim, now: i64) -> ClaimTime {
        let horizon = claim.deadline_horizon.map_or(i64::MAX, |horizon| now.saturating_add(micros(horizon)));
        ClaimTime { now, horizon }
    }
}

/// The deliveries to claim, in claim order.
pub(super) fn choose(conn: &Connection, claim: &Claim, now: i64) -> Result<Vec<Candidate>> {
    let (wanted, time) = (claim.wanted(), ClaimTime::new(claim, now));
    match &claim.source {
        ClaimSource::Subscription { lanes, after_event, .. } => {
            let (subscription_id, lanes) = (claim.subscription_id, lanes.as_deref());
            Streams { conn, subscription_id, lanes, time }.choose(*after_event, wanted)
        }
        ClaimSource::Lanes(lanes) => lanes::choose(conn, claim.subscription_id, lanes, time, wanted),
    }
}

/// The first delivery that can be claimed in publish order, after `from` and up to `to`.
pub(super) fn first_in_order(conn: &Connection, claim: &Claim, from: i64, to: i64, now: i64) -> Result<Option<i64>> {
    let ClaimSource::Subscription { lanes, .. } = &claim.source else { return Ok(None) };
    let mut select = conn.prepare_cached(IN_ORDER)?;
    let rows = select.query((claim.subscription_id, from, to, ClaimTime::new(claim, now).horizon))?;
    Ok(Stream::new(rows, lanes.as_deref()).peek()?.map(|found| found.event_id))
}

const HAS_DEADLINE: &str = "
SELECT 1 FROM event_queue INDEXED BY event_queue_deadline
WHERE subscription_id = ?1 AND lease IS NULL AND expires_at > ?2 AND expires_at <= ?3 LIMIT 1";

/// Whether the subscription has any delivery that must be claimed by its deadline.
pub(super) fn has_deadline(conn: &Connection, subscription_id: i64, time: ClaimTime) -> Result<bool> {
    Ok(conn.prepare_cached(HAS_DEADLINE)?.exists((subscription_id, time.now, time.horizon))?)
}

const NEXT_PRIORITY: &str = "
SELECT priority FROM event_queue INDEXED BY event_queue_out_of_order
WHERE subscription_id = ?1 AND out_of_order AND lease IS NULL AND priority < ?2 ORDER BY priority DESC LIMIT 1";

/// The next lower priority that has out-of-order rows which are not leased; `None` as `below`: the highest.
pub(in super::super) fn next_priority(
    conn: &Connection,
    subscription_id: i64,
    below: Option<i16>,
) -> Result<Option<i16>> {
    let below = below.map_or(i64::MAX, i64::from);
    let mut select = conn.prepare_cached(NEXT_PRIORITY)?;
    Ok(select.query_row((subscription_id, below), |row| row.get(0)).optional()?)
}

const BY_DEADLINE: &str = "
SELECT expires_at, event_id, lane_id FROM event_queue INDEXED BY event_queue_deadline
WHERE subscription_id = ?1 AND lease IS NULL AND expires_at > ?2 AND expires_at <= ?3 AND ready_at <= ?2
ORDER BY expires_at, event_id";

const OUT_OF_ORDER: &str = "
SELECT ready_at, event_id, lane_id FROM event_queue INDEXED BY event_queue_out_of_order
WHERE subscription_id = ?1 AND out_of_order AND lease IS NULL AND priority = ?2 AND ready_at <= ?3
  AND (expires_at IS NULL OR expires_at > ?4)
ORDER BY ready_at, event_id";

/// By primary key. `ready_at` is not compared with the current time: these rows were ready when they were published, even
/// if the clock was set back since.
const IN_ORDER: &str = "
SELECT ready_at, event_id, lane_id FROM event_queue
WHERE subscription_id = ?1 AND event_id > ?2 AND event_id <= ?3 AND lease IS NULL AND NOT out_of_order
  AND (expires_at IS NULL OR expires_at > ?4)
ORDER BY event_id";

/// The streams of one subscription.
struct Streams<'a> {
    conn: &'a Connection,
    subscription_id: i64,
    /// The lanes that are wanted, sorted; `None`: all.
    lanes: Option<&'a [i64]>,
    time: ClaimTime,
}

impl Streams<'_> {
    fn choose(&self, after_event: i64, wanted: usize) -> Result<Vec<Candidate>> {
        let mut chosen = Vec::new();
        self.add_by_deadline(wanted, &mut chosen)?;
        let mut below = None;
        while chosen.len() < wanted {
            let out_of_order = next_priority(self.conn, self.subscription_id, below)?;
            // The in-order rows have priority 0, which may have no others.
            let in_order = below.is_none_or(|below| below > 0).then_some(0);
            let Some(priority) = out_of_order.max(in_order) else { break };
            self.add_by_readiness(priority, after_event, wanted, &mut chosen)?;
            below = Some(priority);
        }
        Ok(chosen)
    }

    fn add_by_deadline(&self, wanted: usize, chosen: &mut Vec<Candidate>) -> Result<()> {
        let mut select = self.conn.prepare_cached(BY_DEADLINE)?;
        let rows = select.query((self.subscription_id, self.time.now, self.time.horizon))?;
        let mut stream = Stream::new(rows, self.lanes);
        while chosen.len() < wanted
            && let Some(Found { event_id, lane_id, .. }) = stream.next()?
        {
            chosen.push(Candidate { event_id, lane_id, place: StreamPosition::Deadline });
        }
        Ok(())
    }

    /// Merges the out-of-order rows of a priority and, for priority 0, the in-order rows.
    fn add_by_readiness(
        &self,
        priority: i16,
        after_event: i64,
        wanted: usize,
        chosen: &mut Vec<Candidate>,
    ) -> Result<()> {
        let (id, ClaimTime { now, horizon }) = (self.subscription_id, self.time);
        let mut by_event = self.conn.prepare_cached(IN_ORDER)?;
        let mut by_readiness = self.conn.prepare_cached(OUT_OF_ORDER)?;
        // Rows of other priorities are never in order.
        let newest = if priority == 0 { i64::MAX } else { i64::MIN };
        let mut in_order = Stream::new(by_event.query((id, after_event, newest, horizon))?, self.lanes);
        let mut out_of_order = Stream::new(by_readiness.query((id, priority, now, horizon))?, self.lanes);
        while chosen.len() < wanted {
            let (found, place) = match (in_order.peek()?, out_of_order.peek()?) {
                (Some(published), other) if other.is_none_or(|other| published < other) => {
                    in_order.next()?;
                    (published, StreamPosition::InOrder { event_id: published.event_id })
                }
                (_, Some(other)) => {
                    out_of_order.next()?;
                    let position = (from_micros(other.at), other.event_id);
                    (other, StreamPosition::OutOfOrder { priority, position })
                }
                _ => break,
            };
            chosen.push(Candidate { event_id: found.event_id, lane_id: found.lane_id, place });
        }
        Ok(())
    }
}

/// A row of a stream. Ordered by time, then by event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    at: i64,
    event_id: i64,
    lane_id: i64,
}

/// The rows of a statement that are in wanted lanes, read one by one as they are needed.
struct Stream<'a> {
    rows: Rows<'a>,
    lanes: Option<&'a [i64]>,
    head: Option<Found>,
}

impl<'a> Stream<'a> {
    fn new(rows: Rows<'a>, lanes: Option<&'a [i64]>) -> Stream<'a> {
        Stream { rows, lanes, head: None }
    }

    fn next(&mut self) -> Result<Option<Found>> {
        self.peek()?;
        Ok(self.head.take())
    }

    fn peek(&mut self) -> Result<Option<Found>> {
        while self.head.is_none()
            && let Some(row) = self.rows.next()?
        {
            let found = Found { at: row.get(0)?, event_id: row.get(1)?, lane_id: row.get(2)? };
            let wanted = self.lanes.is_none_or(|lanes| lanes.binary_search(&found.lane_id).is_ok());
            self.head = wanted.then_some(found);
        }
        Ok(self.head)
    }
}
