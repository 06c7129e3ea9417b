//! Firing: ticks that are due publish their events. Any process may see to it, and several at once: each tick
//! happens once.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::plan::{Part, Plan, Rules, firing, flat};
use super::{ScheduleView, checked_id};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::queue::Queue;
use crate::queue::publish::{self, Published, ROUNDS_MAX};
use crate::queue::wake::lock;
use crate::store::{DueSchedules, FireOutcome, FireOutcomes, PreparedEvent, Tick};

/// How many schedules are read at once.
const SCHEDULES: usize = 1_000;

/// No transaction stores more events than this, …
const EVENTS: usize = 1_000;

/// … nor, but for the last of them, more bytes of payload; nor are more read at once.
const BYTES: usize = 16 << 20;

/// After so many reads the caller gets a say, though more may be due.
const READS_MAX: usize = 100;

/// When to look again where all that is due is being seen to by others.
const BY_OTHERS: Duration = Duration::from_millis(100);

/// When to look again where what is left cannot be fired here.
const LEFT: Duration = Duration::from_secs(1);

/// Where so many fail one after the other that did not before, it is not their fault.
const FAILURES_MAX: usize = 3;

/// Of those that were blocked the last time, so many may be waited for in one call.
const BLOCKED_MAX: usize = 5;

/// What firing came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FireReport {
    /// How many events were published.
    pub fired: usize,
    /// How long until the next tick, by the database's clock, or until it is time to look again for what could not be
    /// fired; `None` where none will come.
    pub next_in: Option<Duration>,
}

/// What one call came to so far.
#[derive(Default)]
struct Progress {
    fired: usize,
    /// When to look again for what was left.
    again_in: Option<Duration>,
    /// How many failed since one did not, but for those that failed before.
    failures: usize,
    /// Groups that another transaction has locked for long.
    blocked_groups: HashSet<String>,
    /// How often somebody was waited for in vain.
    waits: usize,
}

/// What came of a transaction.
enum Submitted {
    /// What became of each part, and their events in order.
    Done(Vec<Option<FireOutcome>>, Vec<PreparedEvent>),
    /// Somebody else holds the group of one of them.
    Blocked(Error),
}

impl Queue {
    /// Publishes the events of all ticks of this namespace that are due. `windlass serve` and every running
    /// [`Node`](crate::Node) do this by themselves. A schedule that cannot be fired, or not here, is left as it is, and
    /// keeps no other from its ticks.
    pub async fn fire_schedules_once(&self) -> Result<FireReport> {
        self.topology().await?;
        let (mut progress, mut place) = (Progress::default(), None);
        for _ in 0..READS_MAX {
            let (namespace, after) = (self.namespace(), place.as_ref());
            let due = self.store().due_schedules(namespace, after, SCHEDULES, BYTES, self.now()).await?;
            // What is left is behind this place, and what was fired is due no more.
            let Some(last) = due.last.clone() else {
                let next_in = due.next_at.map(|next_at| (next_at - due.now).to_std().unwrap_or_default());
                let next_in = [next_in, progress.again_in].into_iter().flatten().min();
                return Ok(FireReport { fired: progress.fired, next_in });
            };
            place = Some(last);
            self.fire_due(due, &mut progress).await?;
        }
        let next_in = progress.again_in.filter(|_| progress.fired == 0).unwrap_or_default();
        Ok(FireReport { fired: progress.fired, next_in: Some(next_in) })
    }

    async fn fire_due(&self, due: DueSchedules, progress: &mut Progress) -> Result<()> {
        for (id, error) in &due.unreadable {
            self.leave_to_others(id, error, progress);
        }
        let (mut rules, max) = (Rules::default(), self.limits().missed_ticks_max);
        let (mut plans, mut apart) = (VecDeque::new(), Vec::new());
        for view in due.schedules {
            let is_apart = lock(&self.core().schedules_left).is_apart(&view.id);
            match rules.of(&view) {
                Ok(rule) if is_apart => apart.push(Plan::new(view, rule, due.now, max)),
                Ok(rule) => plans.push_back(Plan::new(view, rule, due.now, max)),
                Err(error) => self.leave_to_others(&view.id, &error, progress),
            }
        }
        self.fire_plans(plans, due.now, progress).await?;
        // In any order, so that none of them always waits behind the same others.
        fastrand::shuffle(&mut apart);
        for plan in apart {
            if progress.waits < BLOCKED_MAX {
                self.fire_plans(VecDeque::from([plan]), due.now, progress).await?;
            } else {
                progress.look_again(LEFT);
            }
        }
        Ok(())
    }

    async fn fire_plans(&self, mut plans: VecDeque<Plan>, now: Timestamp, progress: &mut Progress) -> Result<()> {
        while !plans.is_empty() {
            let batch = self.next_batch(&mut plans, now);
            self.fire_batch(batch, &mut plans, progress).await?;
        }
        Ok(())
    }

    /// As much as one transaction should hold.
    fn next_batch(&self, plans: &mut VecDeque<Plan>, now: Timestamp) -> Vec<Part> {
        let (mut batch, mut events, mut bytes) = (Vec::new(), 0, 0);
        while events < EVENTS && bytes < BYTES {
            let Some(mut plan) = plans.pop_front() else { break };
            let (mut ticks, mut of_plan) = (Vec::new(), Vec::new());
            while events < EVENTS
                && bytes < BYTES
                && let Some(planned) = plan.ticks.pop_front()
            {
                let mut tick = Tick { at: planned.at, skipped: planned.skipped, event: None, error: None };
                if planned.happens {
                    match plan.view.event(&plan.rule, planned.at, now, self.limits()) {
                        Ok(event) => {
                            tick.event = Some(of_plan.len());
                            bytes += event.payload.get().len();
                            of_plan.push(event);
                        }
                        // Passed over, so that nobody waits for it.
                        Err(error) => tick.error = Some(self.passed_over(&plan.view, &error)),
                    }
                }
                events += 1;
                ticks.push(tick);
            }
            let then_at = plan.ticks.front().map_or(plan.next_at, |next| Some(next.at));
            batch.push(Part { firing: firing(&plan.view, ticks, then_at), events: of_plan, rest: plan });
        }
        batch
    }

    /// Tells of it, and what is to be on record.
    fn passed_over(&self, schedule: &ScheduleView, error: &Error) -> String {
        let (namespace, id, name) = (self.namespace(), &schedule.id, &schedule.name);
        tracing::warn!(namespace, id, name, %error, "the event of a schedule cannot be published; its tick is passed over");
        error.in_item().to_string()
    }

    /// One that is not understood here. Others may know more zones, or be newer.
    fn leave_to_others(&self, id: &str, error: &Error, progress: &mut Progress) {
        progress.look_again(LEFT);
        if lock(&self.core().schedules_left).is_news(id) {
            let namespace = self.namespace();
            tracing::warn!(namespace, id, %error, "a schedule is left to others: it is not understood here");
        }
    }

    /// Stores the batch. Where it is refused because of one schedule, the others are stored without that.
    async fn fire_batch(&self, batch: Vec<Part>, plans: &mut VecDeque<Plan>, progress: &mut Progress) -> Result<()> {
        let mut batches = vec![batch];
        while let Some(mut batch) = batches.pop() {
            batch.retain(|part| !self.is_blocked(part, progress));
            if batch.is_empty() {
                continue;
            }
            let (error, is_blocked) = match self.submit(&batch, false).await {
                Ok(Submitted::Done(moved, _)) => {
                    progress.failures = 0;
                    for (part, moved) in batch.into_iter().zip(moved) {
                        self.count(part, moved, plans, progress);
                    }
                    continue;
                }
                Ok(Submitted::Blocked(error)) => (error, true),
                Err(error) if !is_about_one(&error) => return Err(error),
                Err(error) => (error, false),
            };
            if batch.len() > 1 {
                batches.push(batch.split_off(batch.len() / 2));
                batches.push(batch);
            } else if let Some(part) = batch.first_mut() {
                if is_blocked || matches!(error, Error::Database { .. } | Error::DataRefused { .. }) {
                    self.set_apart(part, error, is_blocked, progress)?;
                } else if part.events.is_empty() {
                    return Err(error);
                } else {
                    let why = self.passed_over(&part.rest.view, &error);
                    part.events.clear();
                    for tick in part.firing.ticks.iter_mut().filter(|tick| tick.event.is_some()) {
                        (tick.event, tick.error) = (None, Some(why.clone()));
                    }
                    batches.push(batch);
                }
            }
        }
        Ok(())
    }

    /// What is left of the part's plan goes on from how the schedule is now.
    fn count(&self, part: Part, moved: Option<FireOutcome>, plans: &mut VecDeque<Plan>, progress: &mut Progress) {
        let Some(moved) = moved else { return progress.look_again(BY_OTHERS) };
        lock(&self.core().schedules_left).forget(&part.firing.schedule_id);
        progress.fired += moved.stored.len();
        let mut rest = part.rest;
        if !rest.ticks.is_empty() {
            (rest.view.next_at, rest.view.updated_at) = (part.firing.then_at, moved.updated_at);
            plans.push_front(rest);
        }
    }

    /// Once a group was waited for in vain, other schedules of the group do not wait for it.
    fn is_blocked(&self, part: &Part, progress: &mut Progress) -> bool {
        let group_id = part.rest.view.group_id.as_ref();
        let blocked = group_id.is_some_and(|group| progress.blocked_groups.contains(group));
        if blocked {
            lock(&self.core().schedules_left).set_apart(&part.firing.schedule_id);
            progress.look_again(LEFT);
        }
        blocked
    }

    /// One that failed is left as it is, and tried alone the next time. Where it seems that all would fail, that is the
    /// answer.
    fn set_apart(&self, part: &Part, error: Error, is_blocked: bool, progress: &mut Progress) -> Result<()> {
        let (id, view) = (&part.firing.schedule_id, &part.rest.view);
        progress.look_again(LEFT);
        progress.waits += usize::from(is_blocked);
        if is_blocked {
            progress.blocked_groups.extend(view.group_id.clone());
        }
        let (is_new, is_news) = {
            let mut left = lock(&self.core().schedules_left);
            (left.set_apart(id), left.is_news(id))
        };
        if is_news {
            tracing::warn!(namespace = self.namespace(), id, %error, "a schedule cannot be fired");
        }
        progress.failures += usize::from(is_new);
        if is_new && progress.failures >= FAILURES_MAX { Err(error) } else { Ok(()) }
    }

    /// Stores the parts in one transaction.
    async fn submit(&self, parts: &[Part], manual: bool) -> Result<Submitted> {
        let (core, namespace) = (self.core(), self.namespace());
        let (firings, mut events) = flat(parts);
        for _ in 0..ROUNDS_MAX {
            let topology = publish::route_all(core, namespace, &mut events).await?;
            let fired = core.store.fire(namespace, topology.version, &firings, &events, manual, self.now()).await?;
            match fired {
                FireOutcomes::Done(moved) => {
                    let stored = moved.iter().flatten().flat_map(|moved| &moved.stored);
                    publish::announce(core, namespace, stored.map(|(place, stored)| (&events[*place], stored)));
                    return Ok(Submitted::Done(moved, events));
                }
                FireOutcomes::Blocked(error) => return Ok(Submitted::Blocked(error)),
                FireOutcomes::OtherVersion => drop(core.reload(namespace).await?),
            }
        }
        Err(publish::keeps_changing(namespace))
    }

    /// Publishes the event of a schedule now, whether or not it is active. Its ticks come as before.
    pub async fn run_schedule(&self, id: &str) -> Result<Published> {
        let id = checked_id(id)?;
        for round in 0..ROUNDS_MAX {
            let view = self.find_schedule(&id).await?;
            let now = self.store().now(self.now()).await?;
            // Two at the same instant are two.
            let apart = if round == 0 { 0 } else { fastrand::i64(1..1_000) };
            let at = now + chrono::TimeDelta::microseconds(apart);
            let rule = Arc::new(view.rule()?);
            let event = view.event(&rule, at, now, self.limits())?;
            let next_at = view.next_at;
            let firing = firing(&view, vec![Tick { at, skipped: 0, event: Some(0), error: None }], next_at);
            let rest = Plan { view, rule, ticks: VecDeque::new(), next_at };
            let (moved, mut events) = match self.submit(&[Part { firing, events: vec![event], rest }], true).await? {
                Submitted::Done(moved, events) => (moved, events),
                Submitted::Blocked(error) => return Err(error),
            };
            let stored = moved.into_iter().flatten().flat_map(|moved| moved.stored).next();
            if let (Some((_, stored)), Some(event)) = (stored, events.pop()) {
                return Ok(publish::finish(event, stored, self.namespace()));
            }
        }
        Err(Error::Database { detail: format!("schedule '{id}' keeps changing; try again") })
    }
}

impl Progress {
    fn look_again(&mut self, after: Duration) {
        self.again_in = self.again_in.into_iter().chain([after]).min();
    }
}

/// Whether it may be the fault of one of several schedules, and not of the database as a whole.
fn is_about_one(error: &Error) -> bool {
    matches!(
        error.in_item(),
        Error::Invalid { .. } | Error::TooLarge { .. } | Error::Database { .. } | Error::DataRefused { .. }
    )
}

#[cfg(test)]
mod tests;
