//! Firing: ticks that are due publish their events. Any process may see to it, and several at once: each tick
//! happens once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::ticks::{self, Due};
use super::{Rule, ScheduleView, checked_id};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::publish::{self, Published, ROUNDS_MAX};
use crate::queue::Queue;
use crate::store::{DueSchedules, Firing, Moved, Prepared, Tick};

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

/// When to look again where what is left has a rule that only others know.
const UNKNOWN_RULES: Duration = Duration::from_secs(1);

/// What firing came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fired {
    /// How many events were published.
    pub fired: usize,
    /// How long until the next tick, by the database's clock; `None` where none will come.
    pub next_in: Option<Duration>,
}

/// What is still to be done for one schedule.
struct Plan {
    view: ScheduleView,
    rule: Arc<Rule>,
    ticks: VecDeque<Planned>,
    /// The first tick after these.
    next_at: Option<Timestamp>,
}

struct Planned {
    at: Timestamp,
    skipped: u32,
    happens: bool,
}

/// A part of a plan that one transaction can see to.
struct Part {
    firing: Firing,
    /// Of its ticks.
    events: Vec<NewEvent>,
    rest: Plan,
}

/// What came of a batch.
#[derive(Default)]
struct Progress {
    fired: usize,
    moved: usize,
    /// All of them have a rule that is not known here.
    unknown: bool,
    /// The first thing that went wrong with a schedule that was left as it is.
    error: Option<Error>,
}

impl Queue {
    /// Publishes the events of all ticks of this namespace that are due. `windlass serve` and every running
    /// [`Node`](crate::Node) do this by themselves.
    pub async fn fire_schedules_once(&self) -> Result<Fired> {
        self.topology().await?;
        let mut fired = 0;
        for _ in 0..READS_MAX {
            let due = self.store().due_schedules(self.namespace(), SCHEDULES, BYTES, self.now()).await?;
            if due.schedules.is_empty() {
                let next_in = due.next_at.map(|next_at| (next_at - due.now).to_std().unwrap_or_default());
                return Ok(Fired { fired, next_in });
            }
            let progress = self.fire_due(due).await?;
            fired += progress.fired;
            match (progress.moved, progress.error) {
                (0, Some(error)) => return Err(error),
                (0, None) => {
                    let next_in = if progress.unknown { UNKNOWN_RULES } else { BY_OTHERS };
                    return Ok(Fired { fired, next_in: Some(next_in) });
                }
                _ => {}
            }
        }
        Ok(Fired { fired, next_in: Some(Duration::ZERO) })
    }

    async fn fire_due(&self, due: DueSchedules) -> Result<Progress> {
        let mut rules = HashMap::new();
        let max = self.limits().missed_ticks_max;
        let plans = due.schedules.into_iter().filter_map(|view| plan(view, &mut rules, due.now, max));
        let mut plans: VecDeque<Plan> = plans.collect();
        let mut progress = Progress { unknown: plans.is_empty(), ..Progress::default() };
        while !plans.is_empty() {
            let batch = self.next_batch(&mut plans, due.now);
            self.fire_batch(batch, &mut plans, &mut progress).await?;
        }
        Ok(progress)
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
                let event = if planned.happens { self.event_of(&plan, planned.at, now) } else { None };
                bytes += event.as_ref().map_or(0, |event| event.payload.get().len());
                events += 1;
                ticks.push(Tick {
                    at: planned.at,
                    skipped: planned.skipped,
                    event: event.as_ref().map(|_| of_plan.len()),
                });
                of_plan.extend(event);
            }
            let then_at = plan.ticks.front().map_or(plan.next_at, |next| Some(next.at));
            batch.push(Part { firing: firing(&plan.view, ticks, then_at), events: of_plan, rest: plan });
        }
        batch
    }

    /// The event of a tick. One that can no longer be published is passed over, so that nobody waits for it.
    fn event_of(&self, plan: &Plan, tick: Timestamp, now: Timestamp) -> Option<NewEvent> {
        let made = plan.view.event(&plan.rule, tick, now, self.limits());
        made.map_err(|error| self.passed_over(&plan.view, &error)).ok()
    }

    fn passed_over(&self, schedule: &ScheduleView, error: &Error) {
        let (namespace, id, name) = (self.namespace(), &schedule.id, &schedule.name);
        tracing::warn!(namespace, id, name, %error, "the event of a schedule cannot be published; its tick is passed over");
    }

    /// Stores the batch. Where it is refused because of one schedule, the others are stored without that.
    async fn fire_batch(&self, batch: Vec<Part>, plans: &mut VecDeque<Plan>, progress: &mut Progress) -> Result<()> {
        let mut batches = vec![batch];
        while let Some(mut batch) = batches.pop() {
            match self.submit(&batch, false).await {
                Ok((moved, _)) => {
                    for (part, moved) in batch.into_iter().zip(moved) {
                        progress.count(part, moved, plans);
                    }
                }
                Err(error) if !is_about_one(&error) => return Err(error),
                Err(_) if batch.len() > 1 => {
                    batches.push(batch.split_off(batch.len() / 2));
                    batches.push(batch);
                }
                Err(Error::Database { detail }) => {
                    let error = Error::Database { detail };
                    tracing::warn!(namespace = self.namespace(), id = firing_id(&batch), %error, "a schedule cannot be fired");
                    progress.error.get_or_insert(error);
                }
                Err(error) if batch.iter().all(|part| part.events.is_empty()) => return Err(error),
                Err(error) => {
                    for part in &mut batch {
                        self.passed_over(&part.rest.view, &error);
                        part.events.clear();
                        part.firing.ticks.iter_mut().for_each(|tick| tick.event = None);
                    }
                    batches.push(batch);
                }
            }
        }
        Ok(())
    }

    /// Stores the parts in one transaction; what became of each, and their events in order.
    async fn submit(&self, parts: &[Part], manual: bool) -> Result<(Vec<Option<Moved>>, Vec<Prepared>)> {
        let (core, namespace) = (self.core(), self.namespace());
        let (firings, mut events) = flat(parts);
        for _ in 0..ROUNDS_MAX {
            let topology = publish::route_all(core, namespace, &mut events).await?;
            let moved = core.store.fire(namespace, topology.version, &firings, &events, manual, self.now()).await?;
            match moved {
                Some(moved) => {
                    let stored = moved.iter().flatten().flat_map(|moved| &moved.stored);
                    core.count_published(namespace, stored.clone().map(|(place, stored)| (&events[*place], stored)));
                    let deliveries = stored.flat_map(|(place, _)| &events[*place].deliveries);
                    let lanes: HashSet<i64> = deliveries.map(|delivery| delivery.lane_id).collect();
                    if !lanes.is_empty() {
                        core.wakes.ring(namespace, &lanes.into_iter().collect::<Vec<_>>());
                    }
                    return Ok((moved, events));
                }
                None => drop(core.reload(namespace).await?),
            }
        }
        Err(Error::DatabaseLocked { detail: publish::keeps_changing(namespace).to_string() })
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
            let firing = firing(&view, vec![Tick { at, skipped: 0, event: Some(0) }], next_at);
            let rest = Plan { view, rule, ticks: VecDeque::new(), next_at };
            let (moved, mut events) = self.submit(&[Part { firing, events: vec![event], rest }], true).await?;
            let stored = moved.into_iter().flatten().flat_map(|moved| moved.stored).next();
            if let (Some((_, stored)), Some(event)) = (stored, events.pop()) {
                return Ok(publish::finish(event, stored, self.namespace()));
            }
        }
        Err(Error::DatabaseLocked { detail: format!("schedule '{id}' keeps changing; try again") })
    }
}

impl Progress {
    /// What is left of the part's plan goes on from how the schedule is now.
    fn count(&mut self, part: Part, moved: Option<Moved>, plans: &mut VecDeque<Plan>) {
        let Some(moved) = moved else { return };
        self.moved += 1;
        self.fired += moved.stored.len();
        let mut rest = part.rest;
        if !rest.ticks.is_empty() {
            (rest.view.next_at, rest.view.updated_at) = (part.firing.then_at, moved.updated_at);
            plans.push_front(rest);
        }
    }
}

/// Many schedules have the same rule, and reading one takes a while.
type Rules = HashMap<(String, String), Option<Arc<Rule>>>;

/// What to do about a schedule. One whose rule is not known here is left to others: they may know more zones.
fn plan(view: ScheduleView, rules: &mut Rules, now: Timestamp, max: usize) -> Option<Plan> {
    let known = rules.entry((view.cron.clone(), view.timezone.clone()));
    let Some(rule) = known.or_insert_with(|| view.rule().map(Arc::new).ok()).clone() else {
        let ScheduleView { id, cron, timezone, .. } = &view;
        tracing::warn!(id, cron, timezone, "a schedule is left to others: its rule is not known here");
        return None;
    };
    let due = ticks::due(&rule, view.missed, view.next_at.unwrap_or(now), now, max);
    Some(Plan { view, rule, ticks: planned(&due), next_at: due.next_at })
}

fn planned(due: &Due) -> VecDeque<Planned> {
    let happen = due.happen.iter().map(|at| Planned { at: *at, skipped: 0, happens: true });
    let passed = due.passed.map(|at| Planned { at, skipped: 0, happens: false });
    let mut planned: VecDeque<Planned> = happen.chain(passed).collect();
    if let Some(first) = planned.front_mut() {
        first.skipped = due.skipped;
    }
    planned
}

fn firing(view: &ScheduleView, ticks: Vec<Tick>, then_at: Option<Timestamp>) -> Firing {
    Firing { schedule_id: view.id.clone(), next_at: view.next_at, updated_at: view.updated_at, ticks, then_at }
}

fn firing_id(batch: &[Part]) -> Option<&str> {
    batch.first().map(|part| part.firing.schedule_id.as_str())
}

/// All events in one list, and the firings that point into it.
fn flat(parts: &[Part]) -> (Vec<Firing>, Vec<Prepared>) {
    let (mut firings, mut events) = (Vec::with_capacity(parts.len()), Vec::new());
    for part in parts {
        let mut firing = part.firing.clone();
        for tick in &mut firing.ticks {
            tick.event = tick.event.map(|place| place + events.len());
        }
        events.extend(part.events.iter().cloned().map(publish::unrouted));
        firings.push(firing);
    }
    (firings, events)
}

/// Whether it may be the fault of one of several schedules, and not of the database as a whole.
fn is_about_one(error: &Error) -> bool {
    matches!(error.in_item(), Error::Invalid { .. } | Error::TooLarge { .. } | Error::Database { .. })
}
