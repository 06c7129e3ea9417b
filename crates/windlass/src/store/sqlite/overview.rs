//! How much there is of everything.

use rusqlite::{Connection, Row};

use super::row::{self, INFINITY};
use super::topology::to_json;
use crate::clock::{from_micros, micros};
use crate::error::Result;
use crate::overview::{Counts, DeadCount, LiveCount, PROCESSING_AGES, Reasons};

// Lanes without deliveries are told, too: what is empty now is not gone.
const FREE: &str = "
SELECT l.subscription, l.event_type, count(*) FILTER (WHERE q.ready_at <= ?2),
       count(*) FILTER (WHERE q.ready_at > ?2 AND q.ready_at < ?3), count(*) FILTER (WHERE q.ready_at = ?3),
       min(q.ready_at) FILTER (WHERE q.ready_at <= ?2), 0, 0, 0, 0, 0
FROM lanes l LEFT JOIN event_queue q INDEXED BY event_queue_free ON q.lane_id = l.lane_id AND q.lease IS NULL
WHERE l.namespace = ?1
GROUP BY l.subscription, l.event_type";

const HELD: &str = "
SELECT l.subscription, l.event_type, 0, 0, 0, NULL,
       count(*) FILTER (WHERE q.picked_at > ?2 - ?3),
       count(*) FILTER (WHERE q.picked_at <= ?2 - ?3 AND q.picked_at > ?2 - ?4),
       count(*) FILTER (WHERE q.picked_at <= ?2 - ?4 AND q.picked_at > ?2 - ?5),
       count(*) FILTER (WHERE q.picked_at <= ?2 - ?5 AND q.picked_at > ?2 - ?6),
       count(*) FILTER (WHERE q.picked_at <= ?2 - ?6)
FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_held
WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NOT NULL
GROUP BY l.subscription, l.event_type";

// A lane goes only with its dead letters.
const DEAD: &str = "
SELECT d.subscription, l.event_type,
       CASE WHEN d.reason IN (SELECT value FROM json_each(?2)) THEN d.reason
            WHEN substr(d.reason, 1, length(?3)) = ?3 THEN ?3 ELSE '' END AS reason,
       count(*)
FROM dead_letters d JOIN lanes l ON l.lane_id = d.lane_id
WHERE d.namespace = ?1 GROUP BY 1, 2, 3";

const NEXT_TICK: &str = "SELECT min(next_at) FROM schedules WHERE namespace = ?1 AND next_at IS NOT NULL";

pub(super) fn counts(conn: &Connection, namespace: &str, reasons: &Reasons, now: i64) -> Result<Counts> {
    let mut free = conn.prepare_cached(FREE)?;
    let free = free.query_map((namespace, now, INFINITY), live_count)?;
    let mut live: Vec<LiveCount> = free.collect::<rusqlite::Result<_>>()?;
    let ages = PROCESSING_AGES.map(micros);
    let mut held = conn.prepare_cached(HELD)?;
    for count in held.query_map((namespace, now, ages[0], ages[1], ages[2], ages[3]), live_count)? {
        live.push(count?);
    }
    let mut dead = conn.prepare_cached(DEAD)?;
    let dead = dead.query_map((namespace, to_json(&reasons.known)?, reasons.beginning), |row| {
        let (subscription, event_type) = (row.get(0)?, row.get(1)?);
        Ok(DeadCount { subscription, event_type, reason: row.get(2)?, count: row::count(row, 3)? })
    })?;
    let dead = dead.collect::<rusqlite::Result<_>>()?;
    let next_tick = conn.prepare_cached(NEXT_TICK)?.query_row([namespace], |row| row::instant_if_any(row, 0))?;
    Ok(Counts { at: from_micros(now), live, dead, next_tick })
}

/// From the columns of `FREE` and `HELD`.
fn live_count(row: &Row) -> rusqlite::Result<LiveCount> {
    let mut processing_ages = [0; 5];
    for (place, age) in processing_ages.iter_mut().enumerate() {
        *age = row::count(row, 6 + place)?;
    }
    Ok(LiveCount {
        subscription: row.get(0)?,
        event_type: row.get(1)?,
        ready: row::count(row, 2)?,
        delayed: row::count(row, 3)?,
        waiting_for_group: row::count(row, 4)?,
        processing_ages,
        ready_since: row::instant_if_any(row, 5)?,
    })
}
