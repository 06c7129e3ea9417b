//! Schedules whose next tick was computed while the clock was ahead.

use rusqlite::{Connection, Row};

use super::row;
use crate::clock::from_micros;
use crate::error::Result;
use crate::store::{AheadSchedule, Rescheduled, SchedulesAhead};

// By the index of names, which no tick changes.
const AHEAD: &str = "
SELECT schedule_id, name, cron, timezone, next_at, updated_at FROM schedules
WHERE namespace = ?1 AND name > ?2 AND active AND runner = 'windlass' AND updated_at > ?4 ORDER BY name LIMIT ?3";

pub(super) fn ahead(conn: &Connection, namespace: &str, after: &str, limit: usize, now: i64) -> Result<SchedulesAhead> {
    let schedule = |row: &Row| {
        Ok(AheadSchedule {
            schedule_id: row.get(0)?,
            name: row.get(1)?,
            cron: row.get(2)?,
            timezone: row.get(3)?,
            next_at: row::instant_if_any(row, 4)?,
            updated_at: row::instant(row, 5)?,
        })
    };
    let mut select = conn.prepare_cached(AHEAD)?;
    let schedules = select.query_map((namespace, after, limit as i64, now), schedule)?;
    Ok(SchedulesAhead { now: from_micros(now), schedules: schedules.collect::<rusqlite::Result<_>>()? })
}

const MOVE_BACK: &str = "
UPDATE schedules SET next_at = ?4, updated_at = max(?5, updated_at + 1)
WHERE schedule_id = ?2 AND namespace = ?1 AND updated_at = ?3";

pub(super) fn move_back(conn: &Connection, namespace: &str, schedules: &[Rescheduled], now: i64) -> Result<usize> {
    let mut update = conn.prepare_cached(MOVE_BACK)?;
    let mut moved = 0;
    for schedule in schedules {
        let (updated_at, next_at) = (schedule.updated_at.timestamp_micros(), schedule.next_at.timestamp_micros());
        moved += update.execute((namespace, &schedule.schedule_id, updated_at, next_at, now))?;
    }
    Ok(moved)
}
