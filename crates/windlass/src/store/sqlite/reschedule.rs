//! Schedules that were written while the clock was ahead.

use async_trait::async_trait;
use rusqlite::Row;

use super::{SqliteStore, row};
use crate::clock::{Timestamp, from_micros};
use crate::error::Result;
use crate::store::{AheadSchedule, RescheduleStore, Rescheduled, SchedulesAhead};

const MOVE_BACK: &str = "
UPDATE schedules SET next_at = ?4, updated_at = max(?5, updated_at + 1)
WHERE schedule_id = ?2 AND namespace = ?1 AND updated_at = ?3";

// Uses the index on names, which ticks do not change.
const AHEAD: &str = "
SELECT schedule_id, name, cron, timezone, next_at, updated_at FROM schedules
WHERE namespace = ?1 AND name > ?2 AND active AND runner = 'windlass' AND updated_at > ?4 ORDER BY name LIMIT ?3";

#[async_trait]
impl RescheduleStore for SqliteStore {
    async fn schedules_from_the_future(
        &self,
        namespace: &str,
        after: &str,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<SchedulesAhead> {
        let (namespace, after, now) = (namespace.to_owned(), after.to_owned(), SqliteStore::now(self, now));
        self.read(move |conn| {
            let schedule = |row: &Row| {
                Ok(AheadSchedule {
                    schedule_id: row.get(0)?,
                    name: row.get(1)?,
                    cron: row.get(2)?,
                    timezone: row.get(3)?,
                    next_at: row::timestamp_or_null(row, 4)?,
                    updated_at: row::timestamp(row, 5)?,
                })
            };
            let mut select = conn.prepare_cached(AHEAD)?;
            let schedules = select.query_map((&namespace, &after, limit as i64, now), schedule)?;
            Ok(SchedulesAhead { now: from_micros(now), schedules: schedules.collect::<rusqlite::Result<_>>()? })
        })
        .await
    }

    async fn reschedule(&self, namespace: &str, schedules: &[Rescheduled], now: Option<Timestamp>) -> Result<usize> {
        let (namespace, schedules) = (namespace.to_owned(), schedules.to_vec());
        self.write(now, move |conn, now| {
            let mut update = conn.prepare_cached(MOVE_BACK)?;
            let mut moved = 0;
            for schedule in &schedules {
                let (updated_at, next_at) =
                    (schedule.updated_at.timestamp_micros(), schedule.next_at.timestamp_micros());
                moved += update.execute((&namespace, &schedule.schedule_id, updated_at, next_at, now))?;
            }
            Ok(moved)
        })
        .await
    }
}
