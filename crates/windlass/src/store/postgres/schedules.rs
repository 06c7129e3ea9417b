//! How this store keeps schedules: each call goes to the file of its verb.

use std::time::Duration;

use async_trait::async_trait;

use super::again::despite_deadlocks;
use super::{PgStore, fire, reschedule, schedule};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::observe::inspect::Page;
use crate::schedule::{ScheduleFilter, ScheduleFire, ScheduleView};
use crate::store::{
    DueSchedules, FireOutcomes, Firing, PreparedEvent, PreparedSchedule, PutOutcome, Rescheduled, SchedulePosition,
    ScheduleStore, SchedulesAhead,
};

#[async_trait]
impl ScheduleStore for PgStore {
    async fn count_schedules(&self, namespace: &str) -> Result<u64> {
        schedule::count_all(self, namespace).await
    }

    async fn add_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        schedule::add(self, namespace, new, now).await
    }

    async fn put_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        despite_deadlocks!(schedule::replace(self, namespace, new, now))
    }

    async fn declare_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        despite_deadlocks!(schedule::declare(self, namespace, new, now))
    }

    async fn pause_schedule(&self, namespace: &str, schedule_id: &str, now: Option<Timestamp>) -> Result<bool> {
        despite_deadlocks!(schedule::pause(self, namespace, schedule_id, now))
    }

    async fn resume_schedule(
        &self,
        namespace: &str,
        schedule_id: &str,
        updated_at: Timestamp,
        next_at: Option<Timestamp>,
        now: Option<Timestamp>,
    ) -> Result<bool> {
        despite_deadlocks!(schedule::resume(self, namespace, schedule_id, updated_at, next_at, now))
    }

    async fn remove_schedule(&self, namespace: &str, schedule_id: &str) -> Result<bool> {
        despite_deadlocks!(schedule::remove(self, namespace, schedule_id))
    }

    async fn schedule(&self, namespace: &str, schedule_id: &str) -> Result<Option<ScheduleView>> {
        schedule::one(self, namespace, schedule_id).await
    }

    async fn schedules(&self, namespace: &str, filter: &ScheduleFilter) -> Result<Page<ScheduleView>> {
        schedule::list(self, namespace, filter).await
    }

    async fn schedule_fires(
        &self,
        namespace: &str,
        schedule_id: &str,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<ScheduleFire>> {
        schedule::fires(self, namespace, schedule_id, before, limit).await
    }

    async fn next_ticks(&self, now: Option<Timestamp>) -> Result<Vec<(String, Duration)>> {
        schedule::next_ticks(self, now).await
    }

    async fn due_schedules(
        &self,
        namespace: &str,
        after: Option<&SchedulePosition>,
        limit: usize,
        bytes: usize,
        now: Option<Timestamp>,
    ) -> Result<DueSchedules> {
        schedule::due(self, namespace, after, limit, bytes, now).await
    }

    async fn schedules_from_the_future(
        &self,
        namespace: &str,
        after: &str,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<SchedulesAhead> {
        reschedule::ahead(self, namespace, after, limit, now).await
    }

    async fn reschedule(&self, namespace: &str, schedules: &[Rescheduled], now: Option<Timestamp>) -> Result<usize> {
        despite_deadlocks!(reschedule::move_back(self, namespace, schedules, now))
    }

    async fn fire(
        &self,
        namespace: &str,
        version: i64,
        firings: &[Firing],
        events: &[PreparedEvent],
        manual: bool,
        now: Option<Timestamp>,
    ) -> Result<FireOutcomes> {
        if manual {
            return despite_deadlocks!(fire::fire(self, namespace, version, firings, events, manual, now));
        }
        // Here others are not to wait for one: neither for a lock, nor for the second try after a deadlock.
        match fire::fire(self, namespace, version, firings, events, manual, now).await {
            Err(error @ Error::DatabaseLocked { .. }) => Ok(FireOutcomes::Blocked(error)),
            fired => fired,
        }
    }
}
