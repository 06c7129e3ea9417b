//! Entries of an event in its group. An entry lasts from when the event enters the group until it leaves it.
//!
//! An event enters its group when it is published, and again when it is redriven. Under the policy `continue`, it
//! leaves the group when it fails and enters it again for its retry.

use super::{CLOCK_SKEW_MAX, Check, Violation};
use crate::group_order::history::{Attempt, AttemptEnd, AttemptResult, Event, Redrive, Time};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Published { transaction: usize },
    Redriven { call: usize },
    Retried,
}

#[derive(Debug)]
pub struct GroupEntry<'a> {
    pub event: usize,
    pub group: usize,
    origin: Origin,
    /// Its index in its transaction.
    position: usize,
    delay: Time,
    /// Before the call by which it entered the group.
    called: Time,
    /// After the call: from here on, the entry is certainly committed.
    committed: Time,
    /// The earliest and the latest due time. The group may move it later.
    due: (Time, Time),
    /// The attempts that certainly held a lease.
    pub attempts: Vec<&'a Attempt>,
    /// The report with which it left the group.
    pub end: Option<AttemptEnd>,
}

impl<'a> GroupEntry<'a> {
    fn published(event: usize, of: &Event, committed: Time) -> GroupEntry<'a> {
        GroupEntry {
            event,
            group: of.group,
            origin: Origin::Published { transaction: of.transaction },
            position: of.position,
            delay: of.delay,
            called: of.called,
            committed,
            due: (of.called.max(of.begun + of.delay), latest_due(committed, of.delay)),
            attempts: Vec::new(),
            end: None,
        }
    }

    fn redriven(event: usize, group: usize, redrive: &Redrive) -> GroupEntry<'a> {
        let Redrive { call, position, called, returned, .. } = *redrive;
        let origin = Origin::Redriven { call };
        let due = (called, returned);
        let (attempts, end) = (Vec::new(), None);
        GroupEntry { event, group, origin, position, delay: 0, called, committed: returned, due, attempts, end }
    }

    fn retried(event: usize, group: usize, failed: AttemptEnd, delay: Time) -> GroupEntry<'a> {
        GroupEntry {
            event,
            group,
            origin: Origin::Retried,
            position: 0,
            delay,
            called: failed.called,
            committed: failed.returned,
            due: (failed.called + delay, latest_due(failed.returned, delay)),
            attempts: Vec::new(),
            end: None,
        }
    }

    /// Whether this entry must be handled before another entry of the same group.
    pub fn precedes(&self, other: &GroupEntry<'_>) -> bool {
        if self.event == other.event {
            return false;
        }
        match (self.origin, other.origin) {
            (of, same) if of == same && of != Origin::Retried => {
                // Delays count from each publish, by clocks that may differ: on SQLite, the clock of SQL has
                // milliseconds.
                let is_due_later = self.delay == 0 || self.delay + CLOCK_SKEW_MAX <= other.delay;
                self.position < other.position && is_due_later
            }
            // The event may not be routed yet when the retry is due.
            (Origin::Published { .. }, Origin::Retried) => false,
            _ => self.committed < other.called && self.due.1 <= other.due.0,
        }
    }

    /// The time after the completion.
    pub fn completed(&self) -> Option<Time> {
        self.end.filter(|end| end.result == AttemptResult::Completed).map(|end| end.returned)
    }

    fn is_finished(&self) -> bool {
        self.end.is_some_and(|end| matches!(end.result, AttemptResult::Completed | AttemptResult::Dead))
    }
}

fn latest_due(committed: Time, delay: Time) -> Time {
    if delay == 0 { committed } else { committed + delay + CLOCK_SKEW_MAX }
}

/// The entries of an event, in order. Reports attempts that belong to no entry, and an event that is not finished.
pub(super) fn group_entries<'a>(
    check: &Check<'a>,
    subscription: usize,
    event: usize,
    violations: &mut Vec<Violation>,
) -> Vec<GroupEntry<'a>> {
    let (history, published) = (check.history, &check.history.events[event]);
    let Some(committed) = published.committed else { return Vec::new() };
    let attempts = check.by_event.get(&(subscription, event)).map(Vec::as_slice).unwrap_or_default();
    let is_required = published.committing > history.subscriptions[subscription].created;
    if attempts.is_empty() && !is_required {
        return Vec::new();
    }
    let of_event = |redrive: &&Redrive| (redrive.subscription, redrive.event) == (subscription, event);
    let mut redrives = history.redrives.iter().filter(of_event).peekable();
    let (mut all, mut current) = (Vec::new(), GroupEntry::published(event, published, committed));
    for attempt in attempts.iter().filter(|attempt| check.leased_until(attempt).is_some()) {
        if current.is_finished() {
            match redrives.next_if(|redrive| redrive.called < attempt.claimed) {
                Some(redrive) => {
                    all.push(std::mem::replace(&mut current, GroupEntry::redriven(event, published.group, redrive)));
                }
                None => violations.push(Violation::DeliveredAfterFinish { subscription, event }),
            }
        }
        current.attempts.push(attempt);
        let Some(end) = attempt.end else { continue };
        match end.result {
            AttemptResult::Completed | AttemptResult::Dead => current.end = Some(end),
            AttemptResult::Delayed(delay) if history.continues => {
                current.end = Some(end);
                all.push(std::mem::replace(&mut current, GroupEntry::retried(event, published.group, end, delay)));
            }
            AttemptResult::Delayed(_) | AttemptResult::Released | AttemptResult::Lost => {}
        }
    }
    for redrive in redrives {
        all.push(std::mem::replace(&mut current, GroupEntry::redriven(event, published.group, redrive)));
    }
    if !current.is_finished() {
        violations.push(Violation::NotFinished { subscription, event });
    }
    all.push(current);
    all
}
