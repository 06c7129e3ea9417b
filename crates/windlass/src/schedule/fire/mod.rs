//! Fires due ticks: publishes their events and records them.
//!
//! Any number of processes may do this concurrently; each tick fires once. Start at [`Queue::fire_schedules_once`].
//! `ticks` decides which ticks fire, and `plan` splits them into transactions.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::plan::{PlanSlice, RuleCache, SchedulePlan, firing, flatten};
use super::{ScheduleView, checked_id};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::queue::Queue;
use crate::queue::publish::{self, Published, TOPOLOGY_RETRIES_MAX};
use crate::queue::wake::lock;
use crate::store::{DueSchedules, FireOutcome, FireOutcomes, PreparedEvent, Tick};

/// How many schedules one statement reads.
const SCHEDULES_PER_READ: usize = 1_000;

/// The most events in one transaction.
const BATCH_EVENTS_MAX: usize = 1_000;

/// The most payload bytes in one transaction, not counting its last event, and in one read.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// After this many reads a call returns, although more schedules may be due.
const READS_MAX: usize = 100;

/// How long to wait before the next call if other processes are firing the due schedules.
const CONTENDED_DELAY: Duration = Duration::from_millis(100);

/// How long to wait before the next call if the remaining schedules cannot be fired by this process.
const FAILING_DELAY: Duration = Duration::from_secs(1);

/// If this many schedules in a row start to fail, the cause is not the schedules: the call fails.
const NEW_FAILURES_MAX: usize = 3;

/// How many lock timeouts on isolated schedules one call accepts.
const LOCK_TIMEOUTS_MAX: usize = 5;

/// The result of one call of [`Queue::fire_schedules_once`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FireReport {
    /// How many events were published.
    pub fired: usize,
    /// How long until the next tick by the database clock, or until schedules that could not be fired should be
    /// retried. `None` if there is no next tick.
    pub next_in: Option<Duration>,
}

/// The progress of one call.
#[derive(Default)]
struct FireProgress {
    fired: usize,
    /// When to retry the schedules that were not fired.
    retry_in: Option<Duration>,
    /// How many schedules in a row failed that did not fail before.
    new_failures: usize,
    /// Groups that another transaction keeps locked.
    blocked_groups: HashSet<String>,
    /// How many lock timeouts occurred.
    lock_timeouts: usize,
}

/// The result of a transaction.
enum SubmitOutcome {
    /// The outcome of each slice, and all events in order.
    Done(Vec<Option<FireOutcome>>, Vec<PreparedEvent>),
    /// Another transaction has locked the group of one of the events.
    Blocked(Error),
}

impl Queue {
    /// Publishes the events of all due ticks of this namespace. `windlass serve` and every running
    /// [`Node`](crate::Node) do this automatically. A schedule that this process cannot fire stays unchanged and does
    /// not block the others.
    pub async fn fire_schedules_once(&self) -> Result<FireReport> {
        self.topology().await?;
        let (mut progress, mut position) = (FireProgress::default(), None);
        for _ in 0..READS_MAX {
            let (namespace, after) = (self.namespace(), position.as_ref());
            let due =
                self.store().due_schedules(namespace, after, SCHEDULES_PER_READ, BATCH_BYTES_MAX, self.now()).await?;
            // Schedules that could not be fired are before this position; fired ones are no longer due.
            let Some(last) = due.last.clone() else {
                let next_in = due.next_at.map(|next_at| (next_at - due.now).to_std().unwrap_or_default());
                let next_in = [next_in, progress.retry_in].into_iter().flatten().min();
                return Ok(FireReport { fired: progress.fired, next_in });
            };
            position = Some(last);
            self.fire_due(due, &mut progress).await?;
        }
        let next_in = progress.retry_in.filter(|_| progress.fired == 0).unwrap_or_default();
        Ok(FireReport { fired: progress.fired, next_in: Some(next_in) })
    }

    async fn fire_due(&self, due: DueSchedules, progress: &mut FireProgress) -> Result<()> {
        for (id, error) in &due.unreadable {
            self.skip_unreadable(id, error, progress);
        }
        let (mut rules, max) = (RuleCache::default(), self.limits().missed_ticks_max);
        let (mut plans, mut isolated) = (VecDeque::new(), Vec::new());
        for view in due.schedules {
            let is_isolated = lock(&self.core().failing_schedules).is_isolated(&view.id);
            match rules.get(&view) {
                Ok(rule) if is_isolated => isolated.push(SchedulePlan::new(view, rule, due.now, max)),
                Ok(rule) => plans.push_back(SchedulePlan::new(view, rule, due.now, max)),
                Err(error) => self.skip_unreadable(&view.id, &error, progress),
            }
        }
        self.fire_plans(plans, due.now, progress).await?;
        // Shuffled, so that no schedule always waits behind the same others.
        fastrand::shuffle(&mut isolated);
        for plan in isolated {
            if progress.lock_timeouts < LOCK_TIMEOUTS_MAX {
                self.fire_plans(VecDeque::from([plan]), due.now, progress).await?;
            } else {
                progress.retry_after(FAILING_DELAY);
            }
        }
        Ok(())
    }

    async fn fire_plans(
        &self,
        mut plans: VecDeque<SchedulePlan>,
        now: Timestamp,
        progress: &mut FireProgress,
    ) -> Result<()> {
        while !plans.is_empty() {
            let batch = self.next_batch(&mut plans, now);
            self.fire_batch(batch, &mut plans, progress).await?;
        }
        Ok(())
    }

    /// Takes ticks from the plans for one transaction, up to the limits.
    fn next_batch(&self, plans: &mut VecDeque<SchedulePlan>, now: Timestamp) -> Vec<PlanSlice> {
        let (mut batch, mut events, mut bytes) = (Vec::new(), 0, 0);
        while events < BATCH_EVENTS_MAX && bytes < BATCH_BYTES_MAX {
            let Some(mut plan) = plans.pop_front() else { break };
            let (mut ticks, mut plan_events) = (Vec::new(), Vec::new());
            while events < BATCH_EVENTS_MAX
                && bytes < BATCH_BYTES_MAX
                && let Some(planned) = plan.ticks.pop_front()
            {
                let mut tick = Tick { at: planned.at, skipped: planned.skipped, event: None, error: None };
                if planned.publishes {
                    match plan.view.event(&plan.rule, planned.at, now, self.limits()) {
                        Ok(event) => {
                            tick.event = Some(plan_events.len());
                            bytes += event.payload.get().len();
                            plan_events.push(event);
                        }
                        // Skipped, so that it does not block the following ticks.
                        Err(error) => tick.error = Some(self.log_skipped(&plan.view, &error)),
                    }
                }
                events += 1;
                ticks.push(tick);
            }
            let then_at = plan.ticks.front().map_or(plan.next_at, |next| Some(next.at));
            batch.push(PlanSlice { firing: firing(&plan.view, ticks, then_at), events: plan_events, rest: plan });
        }
        batch
    }

    /// Logs a tick whose event cannot be published. Returns the error to record.
    fn log_skipped(&self, schedule: &ScheduleView, error: &Error) -> String {
        let (namespace, id, name) = (self.namespace(), &schedule.id, &schedule.name);
        tracing::warn!(namespace, id, name, %error, "cannot publish the event of a schedule; skipping the tick");
        error.in_item().to_string()
    }

    /// Skips a schedule that this process cannot read. A newer version may have written it.
    fn skip_unreadable(&self, id: &str, error: &Error, progress: &mut FireProgress) {
        progress.retry_after(FAILING_DELAY);
        if lock(&self.core().failing_schedules).should_log(id) {
            let namespace = self.namespace();
            tracing::warn!(namespace, id, %error, "cannot read a schedule; leaving it to other processes");
        }
    }

    /// Stores the batch. If one schedule makes it fail, the batch is split until the others are stored without it.
    async fn fire_batch(
        &self,
        batch: Vec<PlanSlice>,
        plans: &mut VecDeque<SchedulePlan>,
        progress: &mut FireProgress,
    ) -> Result<()> {
        let mut batches = vec![batch];
        while let Some(mut batch) = batches.pop() {
            batch.retain(|slice| !self.is_blocked(slice, progress));
            if batch.is_empty() {
                continue;
            }
            let (error, is_blocked) = match self.submit(&batch, false).await {
                Ok(SubmitOutcome::Done(outcomes, _)) => {
                    progress.new_failures = 0;
                    for (slice, outcome) in batch.into_iter().zip(outcomes) {
                        self.apply_outcome(slice, outcome, plans, progress);
                    }
                    continue;
                }
                Ok(SubmitOutcome::Blocked(error)) => (error, true),
                Err(error) if !may_concern_one_schedule(&error) => return Err(error),
                Err(error) => (error, false),
            };
            if batch.len() > 1 {
                batches.push(batch.split_off(batch.len() / 2));
                batches.push(batch);
            } else if let Some(slice) = batch.first_mut() {
                if is_blocked || matches!(error, Error::Database { .. } | Error::DataRefused { .. }) {
                    self.isolate(slice, error, is_blocked, progress)?;
                } else if slice.events.is_empty() {
                    return Err(error);
                } else {
                    let why = self.log_skipped(&slice.rest.view, &error);
                    slice.events.clear();
                    for tick in slice.firing.ticks.iter_mut().filter(|tick| tick.event.is_some()) {
                        (tick.event, tick.error) = (None, Some(why.clone()));
                    }
                    batches.push(batch);
                }
            }
        }
        Ok(())
    }

    /// Puts the rest of a fired slice's plan back, with the new state of the schedule. Without an outcome another
    /// process has changed or fired the schedule.
    fn apply_outcome(
        &self,
        slice: PlanSlice,
        outcome: Option<FireOutcome>,
        plans: &mut VecDeque<SchedulePlan>,
        progress: &mut FireProgress,
    ) {
        let Some(outcome) = outcome else { return progress.retry_after(CONTENDED_DELAY) };
        lock(&self.core().failing_schedules).remove(&slice.firing.schedule_id);
        progress.fired += outcome.stored.len();
        let mut rest = slice.rest;
        if !rest.ticks.is_empty() {
            (rest.view.next_at, rest.view.updated_at) = (slice.firing.then_at, outcome.updated_at);
            plans.push_front(rest);
        }
    }

    /// Whether the slice's group is already known to be locked. If so, the schedule is isolated without waiting for the
    /// lock again.
    fn is_blocked(&self, slice: &PlanSlice, progress: &mut FireProgress) -> bool {
        let group_id = slice.rest.view.group_id.as_ref();
        let blocked = group_id.is_some_and(|group| progress.blocked_groups.contains(group));
        if blocked {
            lock(&self.core().failing_schedules).isolate(&slice.firing.schedule_id);
            progress.retry_after(FAILING_DELAY);
        }
        blocked
    }

    /// Leaves a failed schedule unchanged; the next call fires it alone. Returns the error if all schedules seem to
    /// fail.
    fn isolate(&self, slice: &PlanSlice, error: Error, is_blocked: bool, progress: &mut FireProgress) -> Result<()> {
        let (id, view) = (&slice.firing.schedule_id, &slice.rest.view);
        progress.retry_after(FAILING_DELAY);
        progress.lock_timeouts += usize::from(is_blocked);
        if is_blocked {
            progress.blocked_groups.extend(view.group_id.clone());
        }
        let (is_new, should_log) = {
            let mut failing = lock(&self.core().failing_schedules);
            (failing.isolate(id), failing.should_log(id))
        };
        if should_log {
            tracing::warn!(namespace = self.namespace(), id, %error, "could not fire a schedule");
        }
        progress.new_failures += usize::from(is_new);
        if is_new && progress.new_failures >= NEW_FAILURES_MAX { Err(error) } else { Ok(()) }
    }

    /// Stores the slices in one transaction.
    async fn submit(&self, slices: &[PlanSlice], manual: bool) -> Result<SubmitOutcome> {
        let (core, namespace) = (self.core(), self.namespace());
        let (firings, events) = flatten(slices);
        let mut events = Arc::new(events);
        for _ in 0..TOPOLOGY_RETRIES_MAX {
            let topology = publish::route_all(core, namespace, Arc::make_mut(&mut events).as_mut_slice()).await?;
            let fired =
                core.store.fire(namespace, topology.version, &firings, events.clone(), manual, self.now()).await?;
            match fired {
                FireOutcomes::Done(outcomes) => {
                    let stored = outcomes.iter().flatten().flat_map(|outcome| &outcome.stored);
                    publish::announce(core, namespace, stored.map(|(index, stored)| (&events[*index], stored)));
                    return Ok(SubmitOutcome::Done(outcomes, Arc::unwrap_or_clone(events)));
                }
                FireOutcomes::Blocked(error) => return Ok(SubmitOutcome::Blocked(error)),
                FireOutcomes::OtherVersion => drop(core.reload(namespace).await?),
            }
        }
        Err(publish::keeps_changing(namespace))
    }

    /// Publishes the event of a schedule now, even if the schedule is paused. Its planned ticks do not change.
    pub async fn run_schedule(&self, id: &str) -> Result<Published> {
        let id = checked_id(id)?;
        for round in 0..TOPOLOGY_RETRIES_MAX {
            let view = self.find_schedule(&id).await?;
            let now = self.store().now(self.now()).await?;
            // Another manual run may have the same timestamp: the retry uses a slightly later one.
            let offset = if round == 0 { 0 } else { fastrand::i64(1..1_000) };
            let at = now + chrono::TimeDelta::microseconds(offset);
            let rule = Arc::new(view.rule()?);
            let event = view.event(&rule, at, now, self.limits())?;
            let next_at = view.next_at;
            let firing = firing(&view, vec![Tick { at, skipped: 0, event: Some(0), error: None }], next_at);
            let rest = SchedulePlan { view, rule, ticks: VecDeque::new(), next_at };
            let (outcomes, mut events) =
                match self.submit(&[PlanSlice { firing, events: vec![event], rest }], true).await? {
                    SubmitOutcome::Done(outcomes, events) => (outcomes, events),
                    SubmitOutcome::Blocked(error) => return Err(error),
                };
            let stored = outcomes.into_iter().flatten().flat_map(|outcome| outcome.stored).next();
            if let (Some((_, stored)), Some(event)) = (stored, events.pop()) {
                return Ok(publish::to_published(event, stored, self.namespace()));
            }
        }
        Err(Error::Database { detail: format!("schedule '{id}' keeps changing; try again") })
    }
}

impl FireProgress {
    fn retry_after(&mut self, after: Duration) {
        self.retry_in = self.retry_in.into_iter().chain([after]).min();
    }
}

/// Whether one of several schedules may be the cause, rather than the database as a whole.
fn may_concern_one_schedule(error: &Error) -> bool {
    matches!(
        error.in_item(),
        Error::Invalid { .. } | Error::TooLarge { .. } | Error::Database { .. } | Error::DataRefused { .. }
    )
}

#[cfg(test)]
mod tests;
