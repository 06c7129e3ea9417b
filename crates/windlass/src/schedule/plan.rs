//! What is to be done for each schedule that is due, and how it goes into transactions. Pure.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::ticks::{self, Due};
use super::{Rule, ScheduleView};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::NewEvent;
use crate::queue::publish;
use crate::store::{Firing, PreparedEvent, Tick};

/// What is still to be done for one schedule.
pub(super) struct Plan {
    pub view: ScheduleView,
    pub rule: Arc<Rule>,
    pub ticks: VecDeque<Planned>,
    /// The first tick after these.
    pub next_at: Option<Timestamp>,
}

pub(super) struct Planned {
    pub at: Timestamp,
    pub skipped: u32,
    pub happens: bool,
}

/// A part of a plan that one transaction can see to.
pub(super) struct Part {
    pub firing: Firing,
    /// Of its ticks.
    pub events: Vec<NewEvent>,
    pub rest: Plan,
}

/// Many schedules have the same rule, and reading one takes a while.
#[derive(Default)]
pub(super) struct Rules(HashMap<(String, String), Result<Arc<Rule>>>);

impl Rules {
    pub fn of(&mut self, view: &ScheduleView) -> Result<Arc<Rule>> {
        let rule = self.0.entry((view.cron.clone(), view.timezone.clone()));
        rule.or_insert_with(|| view.rule().map(Arc::new)).clone()
    }
}

impl Plan {
    /// All ticks up to `now`; `max`: the most that are made up for.
    pub fn new(view: ScheduleView, rule: Arc<Rule>, now: Timestamp, max: usize) -> Plan {
        let due = ticks::due(&rule, view.missed, view.next_at.unwrap_or(now), now, max);
        Plan { view, rule, ticks: planned(&due), next_at: due.next_at }
    }
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

pub(super) fn firing(view: &ScheduleView, ticks: Vec<Tick>, then_at: Option<Timestamp>) -> Firing {
    Firing { schedule_id: view.id.clone(), next_at: view.next_at, updated_at: view.updated_at, ticks, then_at }
}

/// All events in one list, and the firings that point into it.
pub(super) fn flat(parts: &[Part]) -> (Vec<Firing>, Vec<PreparedEvent>) {
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
