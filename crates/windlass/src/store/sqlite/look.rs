//! What an empty claim may have missed.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::row;
use crate::error::{Error, Result};
use crate::store::{LaneLook, Look};

const LANES: &str = "SELECT count(*) FROM lanes WHERE namespace = ?1";

pub(super) fn look(conn: &Connection, namespace: &str, lanes: &[i64], now: i64) -> Result<Look> {
    let unknown = || Error::NamespaceNotFound { namespace: namespace.to_owned() };
    let version = row::version(conn, namespace)?.ok_or_else(unknown)?;
    let known = conn.prepare_cached(LANES)?.query_row([namespace], |row| row::count(row, 0))?;
    let mut found: BTreeMap<i64, LaneLook> = BTreeMap::new();
    for lane_id in present(conn, NEXT_FREE, lanes)? {
        let next_ready_at = next_of_lane(conn, lane_id, now)?;
        let lane = found.entry(lane_id).or_insert_with(|| LaneLook { lane_id, ..LaneLook::default() });
        lane.claimable = finds(conn, CLAIMABLE, lane_id, now)?;
        lane.next_ready_in = next_ready_at.map(|at| Duration::from_micros((at - now).unsigned_abs()));
    }
    for lane_id in present(conn, NEXT_HELD, lanes)? {
        let lane = found.entry(lane_id).or_insert_with(|| LaneLook { lane_id, ..LaneLook::default() });
        lane.run_out = finds(conn, RUN_OUT, lane_id, now)?;
    }
    Ok(Look { version, lanes: known as usize, found: found.into_values().collect() })
}

const NEXT_FREE: &str = "
SELECT lane_id FROM event_queue INDEXED BY event_queue_free
WHERE lane_id >= ?1 AND lease IS NULL ORDER BY lane_id LIMIT 1";
const NEXT_HELD: &str = "
SELECT lane_id FROM event_queue INDEXED BY event_queue_held
WHERE lane_id >= ?1 AND lease IS NOT NULL ORDER BY lane_id LIMIT 1";

/// Those of the lanes that have such deliveries: from each lane wanted to the next one present, and from
/// there to the next one wanted.
fn present(conn: &Connection, next: &str, mut wanted: &[i64]) -> Result<Vec<i64>> {
    let mut select = conn.prepare_cached(next)?;
    let mut present = Vec::new();
    while let Some(first) = wanted.first()
        && let Some(lane_id) = select.query_row([first], |row| row.get::<_, i64>(0)).optional()?
    {
        wanted = &wanted[wanted.partition_point(|wanted| *wanted < lane_id)..];
        if let Some(rest) = wanted.strip_prefix(&[lane_id]) {
            present.push(lane_id);
            wanted = rest;
        }
    }
    Ok(present)
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
