//! Choosing the deliveries of a claim from single lanes: a merge of one ordered stream per lane.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rusqlite::{Connection, Row, Statement};

use super::choose::{Candidate, ClaimTime, has_deadline};
use crate::clock::from_micros;
use crate::error::Result;
use crate::store::{LaneSource, StreamPosition};

/// The deliveries to claim, in claim order.
pub(super) fn choose(
    conn: &Connection,
    subscription_id: i64,
    lanes: &[LaneSource],
    time: ClaimTime,
    wanted: usize,
) -> Result<Vec<Candidate>> {
    let mut chosen = Vec::new();
    let mut lanes: Vec<&LaneSource> = lanes.iter().collect();
    // Most subscriptions have no deadlines. Then one query saves a query for each lane.
    if has_deadline(conn, subscription_id, time)? {
        merge(conn, Order::Deadline, &lanes, time, wanted, &mut chosen)?;
    }
    lanes.sort_by_key(|lane| Reverse(lane.priority));
    for equal in lanes.chunk_by(|a, b| a.priority == b.priority) {
        merge(conn, Order::Readiness, equal, time, wanted, &mut chosen)?;
    }
    Ok(chosen)
}

/// Adds deliveries of all lanes in one order until `wanted` are chosen. Each lane is first read for its share only:
/// reading `wanted` rows of each would read far more than needed.
fn merge(
    conn: &Connection,
    order: Order,
    lanes: &[&LaneSource],
    time: ClaimTime,
    wanted: usize,
    chosen: &mut Vec<Candidate>,
) -> Result<()> {
    let missing = wanted.saturating_sub(chosen.len());
    if missing == 0 {
        return Ok(());
    }
    let mut select = conn.prepare_cached(order.sql())?;
    let (mut streams, mut heads) = (Vec::with_capacity(lanes.len()), BinaryHeap::with_capacity(lanes.len()));
    for (index, lane) in lanes.iter().enumerate() {
        let mut stream = LaneStream::new(order, lane.lane_id, time, missing.div_ceil(lanes.len()));
        heads.extend(stream.next(&mut select)?.map(|head| Reverse((head, index))));
        streams.push(stream);
    }
    while chosen.len() < wanted
        && let Some(Reverse(((at, event_id), index))) = heads.pop()
    {
        let stream: &mut LaneStream = &mut streams[index];
        let lane_id = stream.lane_id;
        let place = match order {
            Order::Deadline => StreamPosition::Deadline,
            Order::Readiness => StreamPosition::Lane { lane_id, position: (from_micros(at), event_id) },
        };
        chosen.push(Candidate { event_id, lane_id, place });
        heads.extend(stream.next(&mut select)?.map(|head| Reverse((head, index))));
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Deadlines within the horizon, earliest first.
    Deadline,
    /// All others, earliest ready first.
    Readiness,
}

const BY_DEADLINE: &str = "
SELECT expires_at, event_id FROM event_queue INDEXED BY event_queue_lane_deadline
WHERE lane_id = ?1 AND lease IS NULL AND (expires_at, event_id) > (?2, ?3) AND expires_at <= ?6 AND ready_at <= ?5
ORDER BY expires_at, event_id LIMIT ?4";

const BY_READINESS: &str = "
SELECT ready_at, event_id FROM event_queue INDEXED BY event_queue_lane
WHERE lane_id = ?1 AND lease IS NULL AND (ready_at, event_id) > (?2, ?3) AND ready_at <= ?5
  AND (expires_at IS NULL OR expires_at > ?6)
ORDER BY ready_at, event_id LIMIT ?4";

impl Order {
    fn sql(self) -> &'static str {
        match self {
            Order::Deadline => BY_DEADLINE,
            Order::Readiness => BY_READINESS,
        }
    }
}

/// The claimable deliveries of one lane, read in pages.
struct LaneStream {
    lane_id: i64,
    time: ClaimTime,
    page: VecDeque<(i64, i64)>,
    /// Where the next page begins; `None` after the last one.
    after: Option<(i64, i64)>,
    page_size: usize,
}

impl LaneStream {
    fn new(order: Order, lane_id: i64, time: ClaimTime, page_size: usize) -> LaneStream {
        let start = match order {
            Order::Deadline => (time.now, i64::MAX),
            Order::Readiness => (i64::MIN, i64::MIN),
        };
        LaneStream { lane_id, time, page: VecDeque::new(), after: Some(start), page_size }
    }

    fn next(&mut self, select: &mut Statement<'_>) -> Result<Option<(i64, i64)>> {
        if self.page.is_empty()
            && let Some((at, event_id)) = self.after
        {
            let ClaimTime { now, horizon } = self.time;
            let values = (self.lane_id, at, event_id, self.page_size as i64, now, horizon);
            let rows = select.query_map(values, |row: &Row| Ok((row.get(0)?, row.get(1)?)))?;
            self.page = rows.collect::<rusqlite::Result<_>>()?;
            self.after = self.page.back().filter(|_| self.page.len() >= self.page_size).copied();
            // A lane that has used up its share may hold most of the work.
            self.page_size *= 4;
        }
        Ok(self.page.pop_front())
    }
}
