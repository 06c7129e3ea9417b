//! Schedules that were written while the clock was ahead.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;

/// Schedules that were written while the clock was ahead.
#[derive(Debug, Clone)]
pub(crate) struct SchedulesAhead {
    /// By the database's clock.
    pub now: Timestamp,
    pub schedules: Vec<AheadSchedule>,
}

/// The fields of a schedule that determine its ticks.
#[derive(Debug, Clone)]
pub(crate) struct AheadSchedule {
    pub schedule_id: String,
    pub name: String,
    pub cron: String,
    pub timezone: String,
    pub next_at: Option<Timestamp>,
    pub updated_at: Timestamp,
}

/// A new next tick for a schedule, unless the schedule has changed since it was read.
#[derive(Debug, Clone)]
pub(crate) struct Rescheduled {
    pub schedule_id: String,
    pub updated_at: Timestamp,
    pub next_at: Timestamp,
}

#[async_trait]
pub(crate) trait RescheduleStore {
    /// The active schedules run by Windlass whose last change is in the future, which happens only if the clock was set
    /// back. Ordered by name, at most `limit` after the name `after`.
    async fn schedules_from_the_future(
        &self,
        namespace: &str,
        after: &str,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<SchedulesAhead>;

    /// Sets the next ticks of those schedules that have not changed since they were read. Returns how many.
    async fn reschedule(&self, namespace: &str, schedules: &[Rescheduled], now: Option<Timestamp>) -> Result<usize>;
}
