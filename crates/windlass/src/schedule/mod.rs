//! Schedules: cron rules that publish events.

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
mod fire;
mod id;
mod left;
#[cfg(feature = "postgres")]
pub(crate) mod pg_cron;
mod plan;
mod reschedule;
mod template;
mod ticks;
mod view;

pub(crate) use cron::Rule;
pub use fire::FireReport;
pub(crate) use id::checked_id;
use id::new_id;
pub(crate) use left::Left;
pub use view::{ScheduleFilter, ScheduleFire, ScheduleRunner, ScheduleView};

/// The most ticks that one preview shows.
pub const PREVIEW_MAX: usize = 100;

/// A preview does not look further ahead: rules may tick once in many years.
const PREVIEW_AHEAD: TimeDelta = TimeDelta::days(100 * 366);

/// What becomes of ticks that were missed, because nothing ran or the database was away. One that is late by no more
/// than a minute was not missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MissedPolicy {
    /// They are passed over.
    Skip,
    /// One event is published for all of them, that of the latest; none where ticks that were not missed make up for
    /// them.
    #[default]
    Once,
    /// Each is made up for; only the latest where there are more than `missed_ticks_max` of [`Limits`].
    All,
}

impl MissedPolicy {
    /// The word for it.
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

    fn from_str(word: &str) -> Result<MissedPolicy> {
        let all = [MissedPolicy::Skip, MissedPolicy::Once, MissedPolicy::All];
        let found = all.into_iter().find(|missed| missed.as_str() == word);
        found.ok_or_else(|| Error::invalid("missed", format!("'{word}' is not one of skip, once, all")))
    }
}

/// A schedule to create, or what one is to be replaced by.
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
    /// One of this name, which publishes this event at each tick of a cron expression: minute, hour, day of the
    /// month, month and day of the week, with the second before them if there are six. It goes by UTC, is active, and
    /// makes up for what was missed with one event.
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

    /// The zone of the IANA database that the expression goes by.
    pub fn timezone(mut self, timezone: impl Into<String>) -> NewSchedule {
        self.0.timezone = timezone.into();
        self
    }

    /// What becomes of ticks that were missed.
    pub fn missed(mut self, missed: MissedPolicy) -> NewSchedule {
        self.0.missed = missed;
        self
    }

    /// It does not fire until it is resumed.
    pub fn paused(mut self) -> NewSchedule {
        self.0.active = false;
        self
    }

    /// Refuses what could not be fired, and computes the first tick.
    fn prepare(self, schedule_id: &str, limits: &Limits, now: Timestamp) -> Result<PreparedSchedule> {
        let NewSchedule(mut new) = self;
        new.schedule_id = schedule_id.to_owned();
        names::check("name", &new.name)?;
        let rule = Rule::parse(&new.cron, &new.timezone)?;
        check_template(&new)?;
        template::check(&new.event)?;
        let next_at = rule.after(now);
        let of_tick = template::Values { rule: &rule, tick: next_at.unwrap_or(now), schedule_id, name: &new.name };
        let mut event = new.event.clone();
        template::fill(&mut event, &of_tick)?;
        event.check(limits, now)?;
        new.next_at = next_at.filter(|_| new.active);
        Ok(new)
    }
}

/// What belongs to a tick, and not to all of them.
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
    /// Creates a schedule. From now on, each tick of its expression publishes an event, once, however many processes
    /// there are; a server or a node has to run.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] where there is one of that name, and [`Error::Invalid`] for what is not acceptable; an
    /// expression that never comes, such as the 30th of February, is not.
    pub async fn add_schedule(&self, new: NewSchedule) -> Result<ScheduleView> {
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let new = new.prepare(&new_id()?, self.limits(), now)?;
        self.make_room().await?;
        let put = self.store().add_schedule(self.namespace(), &new, self.now()).await?;
        self.done(put, &new, now)
    }

    /// Adds a schedule, or replaces all that can be said of the one of that name. A program that declares its schedules
    /// whenever it starts has each of them once, however many processes do so at once, and misses no tick that is due
    /// then.
    ///
    /// One that somebody paused stays paused: whoever paused it resumes it.
    pub async fn declare_schedule(&self, new: NewSchedule) -> Result<ScheduleView> {
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let new = new.prepare(&new_id()?, self.limits(), now)?;
        if let Err(full) = self.make_room().await {
            let filter = ScheduleFilter { name: Some(new.name.clone()), limit: 1, ..ScheduleFilter::default() };
            if self.store().schedules(self.namespace(), &filter).await?.items.is_empty() {
                return Err(full);
            }
        }
        let put = self.store().declare_schedule(self.namespace(), &new, self.now()).await?;
        self.done(put, &new, now)
    }

    /// Replaces all that can be said of a schedule. With another expression or zone it goes on with the next tick from
    /// now on; else a tick that is due stays so. What it fired is kept.
    pub async fn put_schedule(&self, id: &str, new: NewSchedule) -> Result<ScheduleView> {
        let id = checked_id(id)?;
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let new = new.prepare(&id, self.limits(), now)?;
        let put = self.store().put_schedule(self.namespace(), &new, self.now()).await?;
        self.done(put, &new, now)
    }

    fn done(&self, put: PutOutcome, new: &PreparedSchedule, now: Timestamp) -> Result<ScheduleView> {
        match put {
            PutOutcome::Done(view) => {
                self.core().schedules_changed.send_replace(());
                Ok(view.with_next_runs(now))
            }
            PutOutcome::NameTaken => Err(Error::Exists { what: "schedule", name: new.name.clone() }),
            PutOutcome::NotFound => Err(self.no_schedule(&new.schedule_id)),
        }
    }

    /// Counting takes a while where there are many, so that is not done for each.
    async fn make_room(&self) -> Result<()> {
        let room = lock(&self.core().schedules_room).get(self.namespace()).copied().unwrap_or(0);
        let room = if room > 0 { room } else { self.counted_room().await? };
        lock(&self.core().schedules_room).insert(self.namespace().to_owned(), room - 1);
        Ok(())
    }

    async fn counted_room(&self) -> Result<usize> {
        let max = self.limits().schedules_max;
        let count = self.store().count_schedules(self.namespace()).await? as usize;
        match max.saturating_sub(count) {
            0 => Err(Error::invalid("name", format!("a namespace has at most {max} schedules"))),
            room => Ok((room / 8).clamp(1, 1_000)),
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
        found.ok_or_else(|| self.no_schedule(id))
    }

    pub(crate) fn no_schedule(&self, id: &str) -> Error {
        Error::ScheduleNotFound { namespace: self.namespace().to_owned(), schedule_id: id.to_owned() }
    }

    /// The schedules of this namespace, by name.
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

    /// Lets a schedule fire no more until it is resumed.
    pub async fn pause_schedule(&self, id: &str) -> Result<ScheduleView> {
        let id = checked_id(id)?;
        self.topology().await?;
        if !self.store().pause_schedule(self.namespace(), &id, self.now()).await? {
            return Err(self.no_schedule(&id));
        }
        self.schedule(&id).await
    }

    /// Lets a schedule fire again, from its next tick on. What came while it was paused was not missed.
    pub async fn resume_schedule(&self, id: &str) -> Result<ScheduleView> {
        let id = checked_id(id)?;
        loop {
            let found = self.find_schedule(&id).await?;
            let now = self.store().now(self.now()).await?;
            if found.active {
                return Ok(found.with_next_runs(now));
            }
            let next_at = found.rule()?.after(now);
            // Where somebody changed it meanwhile, the rule may be another.
            let (namespace, changed) = (self.namespace(), found.updated_at);
            if self.store().resume_schedule(namespace, &id, changed, next_at, self.now()).await? {
                self.core().schedules_changed.send_replace(());
            }
        }
    }

    /// Removes a schedule. Its events stay.
    pub async fn remove_schedule(&self, id: &str) -> Result<()> {
        let id = checked_id(id)?;
        self.topology().await?;
        if !self.store().remove_schedule(self.namespace(), &id).await? {
            return Err(self.no_schedule(&id));
        }
        lock(&self.core().schedules_room).remove(self.namespace());
        self.core().schedules_changed.send_replace(());
        Ok(())
    }

    /// The ticks of a schedule that are on record, the latest first: `limit` of them, 20 if 0, earlier than `before`.
    /// They are kept for a week.
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

    /// The first `count` ticks, [`PREVIEW_MAX`] at most, that such a schedule would have after `from`; after now if
    /// that is `None`. Of rules that tick once in many years there may be fewer: only a hundred years are looked through.
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
    async fn whoever_fires_is_told_of_changes() {
        let queue = Queue::open("sqlite::memory:").await.unwrap();
        let mut changes = queue.core().schedules_changed.subscribe();
        let mut told = || std::mem::replace(&mut changes, queue.core().schedules_changed.subscribe()).has_changed();
        let new = || NewSchedule::new("a", "@daily", NewEvent::new("t"));
        let id = queue.add_schedule(new()).await.unwrap().id;
        assert_eq!(told().ok(), Some(true));
        queue.put_schedule(&id, new().paused()).await.unwrap();
        assert_eq!(told().ok(), Some(true));
        queue.resume_schedule(&id).await.unwrap();
        assert_eq!(told().ok(), Some(true));
        queue.resume_schedule(&id).await.unwrap();
        assert_eq!(told().ok(), Some(false));
        queue.remove_schedule(&id).await.unwrap();
        assert_eq!(told().ok(), Some(true));
    }
}
