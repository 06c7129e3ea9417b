//! What an empty claim may have missed.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::row;
use crate::error::{Error, Result};
use crate::store::Look;

const LANES: &str = "SELECT count(*) FROM lanes WHERE namespace = ?1";

pub(super) fn look(conn: &Connection, namespace: &str, lanes: &[i64], now: i64) -> Result<Look> {
    let unknown = || Error::NamespaceNotFound { namespace: namespace.to_owned() };
    let version = row::version(conn, namespace)?.ok_or_else(unknown)?;
    let known = conn.prepare_cached(LANES)?.query_row([namespace], |row| row::count(row, 0))?;
    let mut look = Look { version, lanes: known as usize, claimable: false, run_out: false, next_ready_in: None };
    let mut next_ready_at: Option<i64> = None;
    for lane_id in lanes {
        look.claimable = look.claimable || finds(conn, CLAIMABLE, *lane_id, now)?;
        look.run_out = look.run_out || finds(conn, RUN_OUT, *lane_id, now)?;
        let of_lane = next_of_lane(conn, *lane_id, now)?;
        next_ready_at = next_ready_at.into_iter().chain(of_lane).min();
    }
    look.next_ready_in = next_ready_at.map(|at| Duration::from_micros((at - now).unsigned_abs()));
    Ok(look)
}

const CLAIMABLE: &str = "
SELECT 1 FROM event_queue INDEXED BY event_queue_free
WHERE lane_id = ?1 AND lease IS NULL AND ready_at <= ?2 AND (expires_at IS NULL OR expires_at > ?2) LIMIT 1";
const RUN_OUT: &str = "
SELECT 1 FROM event_queue INDEXED BY event_queue_held
WHERE lane_id = ?1 AND lease IS NOT NULL AND lease_expires_at <= ?2 LIMIT 1";

fn finds(conn: &Connection, sql: &str, lane_id: i64, now: i64) -> Result<bool> {
    Ok(conn.prepare_cached(sql)?.query_row((lane_id, now), |_| Ok(())).optional()?.is_some())
}

const NEXT: &str = "
SELECT ready_at FROM event_queue INDEXED BY event_queue_free
WHERE lane_id = ?1 AND lease IS NULL AND ready_at > ?2 AND ready_at < 9223372036854775807
ORDER BY ready_at LIMIT 1";

fn next_of_lane(conn: &Connection, lane_id: i64, now: i64) -> Result<Option<i64>> {
    Ok(conn.prepare_cached(NEXT)?.query_row((lane_id, now), |row| row.get(0)).optional()?)
}
