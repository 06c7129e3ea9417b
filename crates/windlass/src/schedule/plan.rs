//! Plans which ticks of a due schedule to fire, and how they are split into transactions. No I/O.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::ticks::{self, DueTicks};
use super::{Rule, ScheduleView};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::NewEvent;
use crate::queue::publish;
use crate::store::{Firing, PreparedEvent, Tick};

/// The ticks of one schedule that are still to be fired or recorded.
pub(super) struct SchedulePlan {
    pub view: ScheduleView,
    pub rule: Arc<Rule>,
    pub ticks: VecDeque<PlannedTick>,
    /// The first tick after these.
    pub next_at: Option<Timestamp>,
}

pub(super) struct PlannedTick {
    pub at: Timestamp,
    /// How many ticks before this one are skipped.
    pub skipped: u32,
    /// `false`: the tick is only recorded.
    pub publishes: bool,
}

/// The ticks of a plan that go into one transaction.
pub(super) struct PlanSlice {
    pub firing: Firing,
    /// The events of the ticks.
    pub events: Vec<NewEvent>,
    /// The plan without these ticks.
    pub rest: SchedulePlan,
}

/// Parsed rules. Many schedules have the same rule, and parsing is slow.
#[derive(Default)]
pub(super) struct RuleCache(HashMap<(String, String), Result<Arc<Rule>>>);

impl RuleCache {
    pub fn get(&mut self, view: &ScheduleView) -> Result<Arc<Rule>> {
        let rule = self.0.entry((view.cron.clone(), view.timezone.clone()));
        rule.or_insert_with(|| view.rule().map(Arc::new)).clone()
    }
}

impl SchedulePlan {
    /// Plans all ticks up to `now`, with at most `max` backfilled ticks.
    pub fn new(view: ScheduleView, rule: Arc<Rule>, now: Timestamp, max: usize) -> SchedulePlan {
        let due = ticks::due_ticks(&rule, view.missed, view.next_at.unwrap_or(now), now, max);
        SchedulePlan { view, rule, ticks: planned_ticks(&due), next_at: due.next_at }
    }
}

fn planned_ticks(due: &DueTicks) -> VecDeque<PlannedTick> {
    let fired = due.fire.iter().map(|at| PlannedTick { at: *at, skipped: 0, publishes: true });
    let recorded = due.last_skipped.map(|at| PlannedTick { at, skipped: 0, publishes: false });
    let mut planned: VecDeque<PlannedTick> = fired.chain(recorded).collect();
    if let Some(first) = planned.front_mut() {
        first.skipped = due.skipped;
    }
    planned
}

pub(super) fn firing(view: &ScheduleView, ticks: Vec<Tick>, then_at: Option<Timestamp>) -> Firing {
    Firing { schedule_id: view.id.clone(), next_at: view.next_at, updated_at: view.updated_at, ticks, then_at }
}

/// All events in one list, and the firings with indexes into it.
pub(super) fn flatten(slices: &[PlanSlice]) -> (Vec<Firing>, Vec<PreparedEvent>) {
    let (mut firings, mut events) = (Vec::with_capacity(slices.len()), Vec::new());
    for slice in slices {
        let mut firing = slice.firing.clone();
        for tick in &mut firing.ticks {
            tick.event = tick.event.map(|index| index + events.len());
        }
        events.extend(slice.events.iter().cloned().map(publish::unrouted));
        firings.push(firing);
    }
    (firings, events)
}
