//! How much there is of everything that is not live.

use rusqlite::{Connection, OptionalExtension};

use super::row;
use super::topology::to_json;
use crate::clock::from_micros;
use crate::error::Result;
use crate::observe::overview::{Counts, DeadCount, Reasons};

const DEAD: &str = "
SELECT d.subscription, d.event_type,
       CASE WHEN d.reason IN (SELECT value FROM json_each(?2)) THEN d.reason
            WHEN substr(d.reason, 1, length(?3)) = ?3 THEN ?3 ELSE '' END AS reason,
       count(*)
FROM dead_letters d
WHERE d.namespace = ?1 GROUP BY 1, 2, 3";

const NEXT_TICK: &str = "SELECT min(next_at) FROM schedules WHERE namespace = ?1 AND next_at IS NOT NULL";

const OLDEST_ARRIVAL: &str = "
SELECT e.created_at FROM arrivals a CROSS JOIN events e ON e.id = a.event_id
WHERE a.namespace = ?1 ORDER BY a.event_id LIMIT 1";

pub(super) fn counts(conn: &Connection, namespace: &str, reasons: &Reasons, now: i64) -> Result<Counts> {
    let mut dead = conn.prepare_cached(DEAD)?;
    let dead = dead.query_map((namespace, to_json(&reasons.known)?, reasons.beginning), |row| {
        let (subscription, event_type) = (row.get(0)?, row.get(1)?);
        Ok(DeadCount { subscription, event_type, reason: row.get(2)?, count: row::count(row, 3)? })
    })?;
    let dead = dead.collect::<rusqlite::Result<_>>()?;
    let next_tick = conn.prepare_cached(NEXT_TICK)?.query_row([namespace], |row| row::instant_if_any(row, 0))?;
    let mut oldest_arrival = conn.prepare_cached(OLDEST_ARRIVAL)?;
    let oldest_arrival = oldest_arrival.query_row([namespace], |row| row::instant(row, 0)).optional()?;
    Ok(Counts { at: from_micros(now), dead, next_tick, oldest_arrival })
}
