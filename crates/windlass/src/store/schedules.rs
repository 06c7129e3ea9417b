//! Stored schedules. The caller decides which ticks there are.

use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::observe::inspect::Page;
use crate::schedule::{MissedPolicy, ScheduleFilter, ScheduleFire, ScheduleView};

/// A validated schedule, ready to be stored.
#[derive(Debug, Clone)]
pub(crate) struct PreparedSchedule {
    pub schedule_id: String,
    pub name: String,
    pub cron: String,
    pub timezone: String,
    /// The event of each tick, before its placeholders are filled in.
    pub event: NewEvent,
    pub missed: MissedPolicy,
    pub active: bool,
    /// Its next tick; `None` while it is not active.
    pub next_at: Option<Timestamp>,
}

impl PreparedSchedule {
    pub fn expires_in_ms(&self) -> Option<i64> {
        self.event.expires_in.map(|span| i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
    }
}

/// The result of storing a schedule.
#[derive(Debug, Clone)]
pub(crate) enum PutOutcome {
    Done(Box<ScheduleView>),
    /// Another schedule has this name.
    NameTaken,
    /// There is no schedule with this id.
    NotFound,
}

/// The schedules that are due.
#[derive(Debug, Clone)]
pub(crate) struct DueSchedules {
    /// By the database's clock.
    pub now: Timestamp,
    /// The first tick after the requested position, due or not.
    pub next_at: Option<Timestamp>,
    pub schedules: Vec<ScheduleView>,
    /// The ids of schedules that cannot be read, and why: a newer version may have written them.
    pub unreadable: Vec<(String, Error)>,
    /// The position of the last of these schedules; `None` if none is due.
    pub last: Option<SchedulePosition>,
}

/// A position among schedules in the order of their next ticks.
#[derive(Debug, Clone)]
pub(crate) struct SchedulePosition {
    pub next_at: Timestamp,
    pub schedule_id: String,
}

#[async_trait]
pub(crate) trait ScheduleStore {
    async fn count_schedules(&self, namespace: &str) -> Result<u64>;

    async fn add_schedule(&self, namespace: &str, new: &PreparedSchedule, now: Option<Timestamp>)
    -> Result<PutOutcome>;

    /// Replaces the schedule. It gets a next tick only if Windlass runs it. If neither the cron rule nor the active
    /// state changes, the next tick stays, unless that of `new` is earlier.
    async fn put_schedule(&self, namespace: &str, new: &PreparedSchedule, now: Option<Timestamp>)
    -> Result<PutOutcome>;

    /// Replaces the schedule of that name, which keeps its id and stays paused if it is paused; or adds it.
    async fn declare_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome>;

    /// Pauses the schedule and removes its next tick. Returns whether it exists.
    async fn pause_schedule(&self, namespace: &str, schedule_id: &str, now: Option<Timestamp>) -> Result<bool>;

    /// Resumes a paused schedule with this next tick, unless it has changed since `updated_at`. Returns whether it did.
    /// Only schedules run by Windlass get a next tick.
    async fn resume_schedule(
        &self,
        namespace: &str,
        schedule_id: &str,
        updated_at: Timestamp,
        next_at: Option<Timestamp>,
        now: Option<Timestamp>,
    ) -> Result<bool>;

    /// Returns whether the schedule existed. Its recorded ticks stay.
    async fn remove_schedule(&self, namespace: &str, schedule_id: &str) -> Result<bool>;

    async fn schedule(&self, namespace: &str, schedule_id: &str) -> Result<Option<ScheduleView>>;

    /// Ordered by name.
    async fn schedules(&self, namespace: &str, filter: &ScheduleFilter) -> Result<Page<ScheduleView>>;

    /// The recorded ticks before `before`, latest first.
    async fn schedule_fires(
        &self,
        namespace: &str,
        schedule_id: &str,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<ScheduleFire>>;

    /// The namespaces with a next tick, and how long until it is due.
    async fn next_ticks(&self, now: Option<Timestamp>) -> Result<Vec<(String, Duration)>>;

    /// Due schedules after this position, earliest next tick first: up to `limit`, and up to this many bytes of
    /// payload, but at least one.
    async fn due_schedules(
        &self,
        namespace: &str,
        after: Option<&SchedulePosition>,
        limit: usize,
        bytes: usize,
        now: Option<Timestamp>,
    ) -> Result<DueSchedules>;
}
