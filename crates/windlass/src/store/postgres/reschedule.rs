//! Schedules that were written while the clock was ahead.

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::enqueue::column;
use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use super::row::get;
use super::schedules::changed_at;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::store::{AheadSchedule, RescheduleStore, Rescheduled, SchedulesAhead};

const NOW: &str = "SELECT coalesce($1, now())";

// Uses the index on names, which ticks do not change.
const AHEAD: &str = "
SELECT s.schedule_id::text AS schedule_id, s.name, s.cron, s.timezone, s.next_at, s.updated_at
FROM windlass.schedules s
WHERE s.namespace = $1 AND s.name > $2 AND s.active AND s.runner = 'windlass' AND s.updated_at > $4
ORDER BY s.name LIMIT $3";

const MOVE_BACK: &str = concat!(
    "
UPDATE windlass.schedules s SET next_at = i.next_at, updated_at = ",
    changed_at!("$2"),
    "
FROM unnest($3::text[], $4::timestamptz[], $5::timestamptz[]) AS i(schedule_id, updated_at, next_at)
WHERE s.schedule_id = i.schedule_id::uuid AND s.namespace = $1 AND s.updated_at = i.updated_at"
);

#[async_trait]
impl RescheduleStore for PgStore {
    async fn schedules_from_the_future(
        &self,
        namespace: &str,
        after: &str,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<SchedulesAhead> {
        let mut connection = self.maintenance.get().await?;
        let now = sqlx::query_scalar(NOW).bind(now);
        let now: Timestamp = now.fetch_one(&mut *connection).await.map_err(from_sqlx)?;
        let ahead = sqlx::query(AHEAD).bind(namespace).bind(after).bind(limit as i64).bind(now);
        let rows = ahead.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let schedule = |row: &PgRow| {
            Ok(AheadSchedule {
                schedule_id: get(row, "schedule_id")?,
                name: get(row, "name")?,
                cron: get(row, "cron")?,
                timezone: get(row, "timezone")?,
                next_at: get(row, "next_at")?,
                updated_at: get(row, "updated_at")?,
            })
        };
        Ok(SchedulesAhead { now, schedules: rows.iter().map(schedule).collect::<Result<_>>()? })
    }

    async fn reschedule(&self, namespace: &str, schedules: &[Rescheduled], now: Option<Timestamp>) -> Result<usize> {
        retry_deadlocks!(async {
            let mut connection = self.maintenance.get().await?;
            let update = sqlx::query(MOVE_BACK)
                .bind(namespace)
                .bind(now)
                .bind(column(schedules, |schedule| schedule.schedule_id.as_str()))
                .bind(column(schedules, |schedule| schedule.updated_at))
                .bind(column(schedules, |schedule| schedule.next_at));
            let moved = update.execute(&mut *connection).await.map_err(from_sqlx)?.rows_affected();
            connection.done();
            Ok(moved as usize)
        })
    }
}
