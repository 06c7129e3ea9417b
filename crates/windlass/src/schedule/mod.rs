//! Schedules: cron rules that publish events.
//!
//! This module creates, changes and lists schedules. `cron` computes ticks, `fire` fires them, and the store keeps
//! them. The loop that calls `fire` is in `maintenance/`. Start at [`Queue::add_schedule`].

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::event::names;
use crate::observe::inspect::{Page, check_page};
use crate::policy::limits::Limits;
use crate::queue::Queue;
use crate::queue::wake::lock;
use crate::store::{PreparedSchedule, PutOutcome};

mod cron;
mod failing;
mod fire;
mod id;
#[cfg(feature = "postgres")]
pub(crate) mod pg_cron;
mod plan;
mod reschedule;
mod template;
mod ticks;
mod view;

pub(crate) use cron::Rule;
pub(crate) use failing::FailingSchedules;
pub use fire::FireReport;
pub(crate) use id::checked_id;
use id::new_id;
pub use view::{ScheduleFilter, ScheduleFire, ScheduleRunner, ScheduleView};

/// The most ticks in one preview.
pub const PREVIEW_MAX: usize = 100;

/// How far a preview searches: some rules tick only once in many years.
const PREVIEW_AHEAD: TimeDelta = TimeDelta::days(100 * 366);

/// What happens to missed ticks: those more than a minute late because no process ran or the database was unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MissedPolicy {
    /// Missed ticks are skipped.
    Skip,
    /// One event is published for all missed ticks, that of the latest. None is published if a tick that was not missed
    /// fires as well.
    #[default]
    Once,
    /// Every missed tick is fired, but at most the latest `missed_ticks_max` of [`Limits`].
    All,
}

impl MissedPolicy {
    /// The policy's name in JSON and in the CLI.
    pub fn as_str(self) -> &'static str {
        match self {
            MissedPolicy::Skip => "skip",
            MissedPolicy::Once => "once",
            MissedPolicy::All => "all",
        }
    }
}

impl std::str::FromStr for MissedPolicy {
    type Err = Error;

    fn from_str(name: &str) -> Result<MissedPolicy> {
        let all = [MissedPolicy::Skip, MissedPolicy::Once, MissedPolicy::All];
        let found = all.into_iter().find(|missed| missed.as_str() == name);
        found.ok_or_else(|| Error::invalid("missed", format!("'{name}' is not one of skip, once, all")))
    }
}

/// The definition of a schedule to create or replace.
///
/// ```
/// use windlass::{MissedPolicy, NewEvent, NewSchedule};
///
/// let event = NewEvent::new("report.due").payload(&serde_json::json!({ "day": "{{tick.date}}" }))?;
/// let report = NewSchedule::new("daily report", "0 6 * * MON-FRI", event)
///     .timezone("Europe/Berlin")
///     .missed(MissedPolicy::Skip);
/// # Ok::<(), windlass::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct NewSchedule(PreparedSchedule);

impl NewSchedule {
    /// A schedule that publishes this event at each tick of a cron expression: minute, hour, day of the month, month
    /// and day of the week, preceded by the second if there are six fields. By default it uses UTC, is active, and has
    /// [`MissedPolicy::Once`].
    pub fn new(name: impl Into<String>, cron: impl Into<String>, event: NewEvent) -> NewSchedule {
        NewSchedule(PreparedSchedule {
            schedule_id: String::new(),
            name: name.into(),
            cron: cron.into(),
            timezone: "UTC".to_owned(),
            event,
            missed: MissedPolicy::default(),
            active: true,
            next_at: None,
        })
    }

    /// Sets the IANA time zone of the expression.
    pub fn timezone(mut self, timezone: impl Into<String>) -> NewSchedule {
        self.0.timezone = timezone.into();
        self
    }

    /// Sets the policy for missed ticks.
    pub fn missed(mut self, missed: MissedPolicy) -> NewSchedule {
        self.0.missed = missed;
        self
    }

    /// Creates the schedule paused: it does not fire until it is resumed.
    pub fn paused(mut self) -> NewSchedule {
        self.0.active = false;
        self
    }

    /// Validates the schedule and computes its first tick.
    fn prepare(self, schedule_id: &str, limits: &Limits, now: Timestamp) -> Result<PreparedSchedule> {
        let NewSchedule(mut new) = self;
        new.schedule_id = schedule_id.to_owned();
        names::check("name", &new.name)?;
        let rule = Rule::parse(&new.cron, &new.timezone)?;
        check_template(&new)?;
        template::check(&new.event)?;
        let next_at = rule.after(now);
        let values = template::TickValues { rule: &rule, tick: next_at.unwrap_or(now), schedule_id, name: &new.name };
        let mut event = new.event.clone();
        template::fill(&mut event, &values)?;
        event.check(limits, now)?;
        new.next_at = next_at.filter(|_| new.active);
        Ok(new)
    }
}

/// Rejects event fields that a schedule sets itself.
fn check_template(new: &PreparedSchedule) -> Result<()> {
    let event = &new.event;
    let refused = [
        ("run_at", event.run_at.is_some(), "the schedule says when it is published"),
        ("delay_ms", event.delay.is_some(), "the schedule says when it is published"),
        ("expires_at", event.expires_at.is_some(), "use expires_in"),
        ("key", event.key.is_some(), "each tick happens once without one"),
        ("producer", event.producer.is_some(), "it is always 'scheduler'"),
    ];
    if let Some((field, _, why)) = refused.into_iter().find(|(_, given, _)| *given) {
        return Err(Error::invalid(field, format!("the event of a schedule cannot have one: {why}")));
    }
    Ok(())
}

impl Queue {
    /// Creates a schedule. From now on each tick of its expression publishes one event, regardless of the number of
    /// processes. At least one server or node must be running.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] if the name is in use, and [`Error::Invalid`] if the definition is invalid. An expression that
    /// never ticks, such as the 30th of February, is invalid.
    pub async fn add_schedule(&self, new: NewSchedule) -> Result<ScheduleView> {
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let new = new.prepare(&new_id()?, self.limits(), now)?;
        self.check_schedule_limit().await?;
        let put = self.store().add_schedule(self.namespace(), &new, self.now()).await?;
        self.put_result(put, &new, now)
    }

    /// Creates a schedule, or replaces the definition of the schedule with that name. Programs can declare their
    /// schedules at every start: each schedule exists once, even if several processes start concurrently, and due ticks
    /// are kept.
    ///
    /// A paused schedule stays paused until [`Queue::resume_schedule`] is called.
    pub async fn declare_schedule(&self, new: NewSchedule) -> Result<ScheduleView> {
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let new = new.prepare(&new_id()?, self.limits(), now)?;
        if let Err(limit_reached) = self.check_schedule_limit().await {
            let filter = ScheduleFilter { name: Some(new.name.clone()), limit: 1, ..ScheduleFilter::default() };
            if self.store().schedules(self.namespace(), &filter).await?.items.is_empty() {
                return Err(limit_reached);
            }
        }
        let put = self.store().declare_schedule(self.namespace(), &new, self.now()).await?;
        self.put_result(put, &new, now)
    }

    /// Replaces the definition of a schedule. With a different expression or time zone, the next tick is computed from
    /// now; otherwise a due tick stays due. The record of fired ticks is kept.
    pub async fn put_schedule(&self, id: &str, new: NewSchedule) -> Result<ScheduleView> {
        let id = checked_id(id)?;
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let new = new.prepare(&id, self.limits(), now)?;
        let put = self.store().put_schedule(self.namespace(), &new, self.now()).await?;
        self.put_result(put, &new, now)
    }

    fn put_result(&self, put: PutOutcome, new: &PreparedSchedule, now: Timestamp) -> Result<ScheduleView> {
        match put {
            PutOutcome::Done(view) => {
                self.core().schedules_changed.send_replace(());
                Ok(view.with_next_runs(now))
            }
            PutOutcome::NameTaken => Err(Error::Exists { what: "schedule", name: new.name.clone() }),
            PutOutcome::NotFound => Err(self.schedule_not_found(&new.schedule_id)),
        }
    }

    /// Fails if the namespace has the maximum number of schedules. Counting is slow with many schedules, so the result
    /// of one count covers several new ones.
    async fn check_schedule_limit(&self) -> Result<()> {
        let allowed = lock(&self.core().schedules_allowed).get(self.namespace()).copied().unwrap_or(0);
        let allowed = if allowed > 0 { allowed } else { self.count_allowed_schedules().await? };
        lock(&self.core().schedules_allowed).insert(self.namespace().to_owned(), allowed - 1);
        Ok(())
    }

    /// How many schedules may be created before they are counted again.
    async fn count_allowed_schedules(&self) -> Result<usize> {
        let max = self.limits().schedules_max;
        let count = self.store().count_schedules(self.namespace()).await? as usize;
        match max.saturating_sub(count) {
            0 => Err(Error::invalid("name", format!("a namespace has at most {max} schedules"))),
            // Other processes create schedules, too: use only a part of what is left.
            remaining => Ok((remaining / 8).clamp(1, 1_000)),
        }
    }

    /// One schedule.
    pub async fn schedule(&self, id: &str) -> Result<ScheduleView> {
        let now = self.store().now(self.now()).await?;
        self.find_schedule(&checked_id(id)?).await.map(|view| view.with_next_runs(now))
    }

    async fn find_schedule(&self, id: &str) -> Result<ScheduleView> {
        self.topology().await?;
        let found = self.store().schedule(self.namespace(), id).await?;
        found.ok_or_else(|| self.schedule_not_found(id))
    }

    pub(crate) fn schedule_not_found(&self, id: &str) -> Error {
        Error::ScheduleNotFound { namespace: self.namespace().to_owned(), schedule_id: id.to_owned() }
    }

    /// The schedules of this namespace, ordered by name.
    pub async fn schedules(&self, mut filter: ScheduleFilter) -> Result<Page<ScheduleView>> {
        check_page(&mut filter.limit, filter.offset, self.limits())?;
        for (field, name) in [("name", &filter.name), ("type", &filter.event_type)] {
            if let Some(name) = name {
                names::check(field, name)?;
            }
        }
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let page = self.store().schedules(self.namespace(), &filter).await?;
        let items = page.items.into_iter().map(|view| view.with_next_runs(now)).collect();
        Ok(Page { items, ..page })
    }

    /// Pauses a schedule: it does not fire until it is resumed.
    pub async fn pause_schedule(&self, id: &str) -> Result<ScheduleView> {
        let id = checked_id(id)?;
        self.topology().await?;
        if !self.store().pause_schedule(self.namespace(), &id, self.now()).await? {
            return Err(self.schedule_not_found(&id));
        }
        self.schedule(&id).await
    }

    /// Resumes a schedule from its next tick on. Ticks during the pause do not count as missed.
    pub async fn resume_schedule(&self, id: &str) -> Result<ScheduleView> {
        let id = checked_id(id)?;
        loop {
            let found = self.find_schedule(&id).await?;
            let now = self.store().now(self.now()).await?;
            if found.active {
                return Ok(found.with_next_runs(now));
            }
            let next_at = found.rule()?.after(now);
            // This has no effect if the schedule was changed meanwhile: `next_at` may be wrong for the new rule.
            let (namespace, updated_at) = (self.namespace(), found.updated_at);
            if self.store().resume_schedule(namespace, &id, updated_at, next_at, self.now()).await? {
                self.core().schedules_changed.send_replace(());
            }
        }
    }

    /// Removes a schedule. Its events stay.
    pub async fn remove_schedule(&self, id: &str) -> Result<()> {
        let id = checked_id(id)?;
        self.topology().await?;
        if !self.store().remove_schedule(self.namespace(), &id).await? {
            return Err(self.schedule_not_found(&id));
        }
        lock(&self.core().schedules_allowed).remove(self.namespace());
        self.core().schedules_changed.send_replace(());
        Ok(())
    }

    /// The recorded ticks of a schedule before `before`, newest first. A `limit` of 0 means 20. Ticks are kept for a
    /// week.
    pub async fn schedule_fires(
        &self,
        id: &str,
        before: Option<Timestamp>,
        mut limit: usize,
    ) -> Result<Vec<ScheduleFire>> {
        let id = checked_id(id)?;
        check_page(&mut limit, 0, self.limits())?;
        self.find_schedule(&id).await?;
        self.store().schedule_fires(self.namespace(), &id, before, limit).await
    }

    /// The first `count` ticks of a rule after `from`, or after now if `from` is `None`. At most [`PREVIEW_MAX`]. The
    /// search ends after a hundred years, so a rule that rarely ticks may return fewer.
    pub async fn preview_schedule(
        &self,
        cron: &str,
        timezone: &str,
        from: Option<Timestamp>,
        count: usize,
    ) -> Result<Vec<Timestamp>> {
        if count > PREVIEW_MAX {
            return Err(Error::invalid("count", format!("must be at most {PREVIEW_MAX}")));
        }
        let rule = Rule::parse(cron, timezone)?;
        let from = match from {
            Some(from) => from,
            None => self.store().now(self.now()).await?,
        };
        let next = |tick: &Timestamp| rule.after(*tick).filter(|next| *next - from < PREVIEW_AHEAD);
        Ok(std::iter::successors(rule.after(from), next).take(count).collect())
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn schedule_changes_notify_the_firing_loop() {
        let queue = Queue::open("sqlite::memory:").await.unwrap();
        let mut changes = queue.core().schedules_changed.subscribe();
        let mut is_notified =
            || std::mem::replace(&mut changes, queue.core().schedules_changed.subscribe()).has_changed();
        let new = || NewSchedule::new("a", "@daily", NewEvent::new("t"));
        let id = queue.add_schedule(new()).await.unwrap().id;
        assert_eq!(is_notified().ok(), Some(true));
        queue.put_schedule(&id, new().paused()).await.unwrap();
        assert_eq!(is_notified().ok(), Some(true));
        queue.resume_schedule(&id).await.unwrap();
        assert_eq!(is_notified().ok(), Some(true));
        queue.resume_schedule(&id).await.unwrap();
        assert_eq!(is_notified().ok(), Some(false));
        queue.remove_schedule(&id).await.unwrap();
        assert_eq!(is_notified().ok(), Some(true));
    }
}
