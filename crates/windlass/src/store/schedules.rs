//! What stores do for schedules. Which ticks happen is not theirs to tell.

use std::time::Duration;

use async_trait::async_trait;

use super::{PreparedEvent, PublishOutcome};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::observe::inspect::Page;
use crate::schedule::{MissedPolicy, ScheduleFilter, ScheduleFire, ScheduleView};

/// A schedule with everything resolved, ready to be stored.
#[derive(Debug, Clone)]
pub(crate) struct PreparedSchedule {
    pub schedule_id: String,
    pub name: String,
    pub cron: String,
    pub timezone: String,
    /// What is published at each tick, before its values are filled in.
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

/// What became of a new schedule, or of a change of one.
#[derive(Debug, Clone)]
pub(crate) enum PutOutcome {
    Done(Box<ScheduleView>),
    /// There is another of that name.
    NameTaken,
    /// There is none of that id.
    NotFound,
}

/// The schedules that are due.
#[derive(Debug, Clone)]
pub(crate) struct DueSchedules {
    /// As the database's clock says.
    pub now: Timestamp,
    /// The first tick after the place that was asked for, whether or not it is due.
    pub next_at: Option<Timestamp>,
    pub schedules: Vec<ScheduleView>,
    /// The ids of those that cannot be read, and why: a newer version may have written them.
    pub unreadable: Vec<(String, Error)>,
    /// The place of the last of all these; `None` where none is due.
    pub last: Option<SchedulePosition>,
}

/// A place among schedules in the order of their next ticks.
#[derive(Debug, Clone)]
pub(crate) struct SchedulePosition {
    pub next_at: Timestamp,
    pub schedule_id: String,
}

/// Schedules that were written while the clock was ahead.
#[derive(Debug, Clone)]
pub(crate) struct SchedulesAhead {
    /// As the database's clock says.
    pub now: Timestamp,
    pub schedules: Vec<AheadSchedule>,
}

/// As much of a schedule as it takes to compute its ticks.
#[derive(Debug, Clone)]
pub(crate) struct AheadSchedule {
    pub schedule_id: String,
    pub name: String,
    pub cron: String,
    pub timezone: String,
    pub next_at: Option<Timestamp>,
    pub updated_at: Timestamp,
}

/// A schedule that is to have another next tick, if it still is as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Rescheduled {
    pub schedule_id: String,
    pub updated_at: Timestamp,
    pub next_at: Timestamp,
}

/// What is to happen with a schedule, if it still is as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Firing {
    pub schedule_id: String,
    /// As they were read: whoever changes a schedule changes one of them.
    pub next_at: Option<Timestamp>,
    pub updated_at: Timestamp,
    /// In order.
    pub ticks: Vec<Tick>,
    /// The new `next_at`.
    pub then_at: Option<Timestamp>,
}

/// A tick to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tick {
    pub at: Timestamp,
    /// So many before it were passed over.
    pub skipped: u32,
    /// The place of its event among those that were given; `None`: it is passed over.
    pub event: Option<usize>,
    /// Why it cannot have one.
    pub error: Option<String>,
}

/// What became of a firing.
#[derive(Debug, Clone)]
pub(crate) struct FireOutcome {
    /// The events that were stored, by their place. A tick that is on record has no other.
    pub stored: Vec<(usize, PublishOutcome)>,
    /// When it changed.
    pub updated_at: Timestamp,
}

/// What became of several firings.
#[derive(Debug)]
pub(crate) enum FireOutcomes {
    /// Of each; `None` for one that is not as it was read, or that somebody else works on.
    Done(Vec<Option<FireOutcome>>),
    /// Nothing was changed: somebody else holds what one of them needs, and did not let go of it soon. SQLite has no
    /// locks on rows.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code))]
    Blocked(Error),
    /// Nothing was changed: the version is not the namespace's.
    OtherVersion,
}

/// Schedules, and what they fire.
#[async_trait]
pub(crate) trait ScheduleStore {
    async fn count_schedules(&self, namespace: &str) -> Result<u64>;

    async fn add_schedule(&self, namespace: &str, new: &PreparedSchedule, now: Option<Timestamp>)
    -> Result<PutOutcome>;

    /// Replaces all that `new` says; one that is not run by us gets no next tick. Where neither the rule nor whether it
    /// is active changes, the next tick stays, unless that of `new` comes earlier.
    async fn put_schedule(&self, namespace: &str, new: &PreparedSchedule, now: Option<Timestamp>)
    -> Result<PutOutcome>;

    /// The same with the one of that name, which keeps its id, and stays inactive if it is; adds it where there is none.
    async fn declare_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome>;

    /// Makes it inactive, without a next tick. Says whether there is one.
    async fn pause_schedule(&self, namespace: &str, schedule_id: &str, now: Option<Timestamp>) -> Result<bool>;

    /// Makes it active with this next tick, if it is not, and was not changed since `updated_at`; whether it was so. One
    /// that is not run by us gets no next tick.
    async fn resume_schedule(
        &self,
        namespace: &str,
        schedule_id: &str,
        updated_at: Timestamp,
        next_at: Option<Timestamp>,
        now: Option<Timestamp>,
    ) -> Result<bool>;

    /// Says whether there was one. What it fired stays on record.
    async fn remove_schedule(&self, namespace: &str, schedule_id: &str) -> Result<bool>;

    async fn schedule(&self, namespace: &str, schedule_id: &str) -> Result<Option<ScheduleView>>;

    /// By name.
    async fn schedules(&self, namespace: &str, filter: &ScheduleFilter) -> Result<Page<ScheduleView>>;

    /// Its ticks before `before` that are on record, the latest first.
    async fn schedule_fires(
        &self,
        namespace: &str,
        schedule_id: &str,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<ScheduleFire>>;

    /// The namespaces that have schedules with a tick to come, and how long until it comes.
    async fn next_ticks(&self, now: Option<Timestamp>) -> Result<Vec<(String, Duration)>>;

    /// Those after this place whose next tick has come, the earliest first: at most `limit`, and no more than so many
    /// bytes of payload, but at least one.
    async fn due_schedules(
        &self,
        namespace: &str,
        after: Option<&SchedulePosition>,
        limit: usize,
        bytes: usize,
        now: Option<Timestamp>,
    ) -> Result<DueSchedules>;

    /// The active schedules run by us that were last written later than now, which is so only where the clock was put
    /// back; by name, at most `limit` after the name `after`.
    async fn schedules_from_the_future(
        &self,
        namespace: &str,
        after: &str,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<SchedulesAhead>;

    /// Gives those the next tick that were not changed since they were read; how many.
    async fn reschedule(&self, namespace: &str, schedules: &[Rescheduled], now: Option<Timestamp>) -> Result<usize>;

    /// Records the ticks of each schedule that still is as it was read, stores the events of those that are not on
    /// record yet, and moves it on. A schedule that somebody else works on at this moment is passed over, or, where
    /// `manual`, waited for. For anything else that somebody holds only those who are `manual` wait long.
    async fn fire(
        &self,
        namespace: &str,
        version: i64,
        firings: &[Firing],
        events: &[PreparedEvent],
        manual: bool,
        now: Option<Timestamp>,
    ) -> Result<FireOutcomes>;
}
