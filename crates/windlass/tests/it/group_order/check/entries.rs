//! The times that an event is in its group: from when it enters it until it is finished.
//!
//! An event enters its group when it is published, and again when it is redriven. If the policy is `continue`, it leaves the
//! group when it fails and enters it again for its retry.

use super::{CLOCKS_DIFFER, Check, Violation};
use crate::group_order::history::{End, Ended, Event, Handling, Redrive, Time};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Published { transaction: usize },
    Redriven { call: usize },
    Retried,
}

#[derive(Debug)]
pub struct Entry<'a> {
    pub event: usize,
    pub group: usize,
    origin: Origin,
    /// Its place in its transaction.
    position: usize,
    delay: Time,
    /// Before the call by which it entered the group.
    called: Time,
    /// From when on it was known to be committed.
    known: Time,
    /// When it is due at the earliest, and at the latest unless others of the group are due later.
    due: (Time, Time),
    /// The claims that certainly held it.
    pub handlings: Vec<&'a Handling>,
    /// How it left the group.
    pub closed: Option<End>,
}

impl<'a> Entry<'a> {
    fn published(event: usize, of: &Event, committed: Time) -> Entry<'a> {
        Entry {
            event,
            group: of.group,
            origin: Origin::Published { transaction: of.transaction },
            position: of.position,
            delay: of.delay,
            called: of.called,
            known: committed,
            due: (of.called.max(of.begun + of.delay), latest(committed, of.delay)),
            handlings: Vec::new(),
            closed: None,
        }
    }

    fn redriven(event: usize, group: usize, redrive: &Redrive) -> Entry<'a> {
        let Redrive { call, position, called, returned, .. } = *redrive;
        let origin = Origin::Redriven { call };
        let due = (called, returned);
        let (handlings, closed) = (Vec::new(), None);
        Entry { event, group, origin, position, delay: 0, called, known: returned, due, handlings, closed }
    }

    fn retried(event: usize, group: usize, failed: End, delay: Time) -> Entry<'a> {
        Entry {
            event,
            group,
            origin: Origin::Retried,
            position: 0,
            delay,
            called: failed.called,
            known: failed.returned,
            due: (failed.called + delay, latest(failed.returned, delay)),
            handlings: Vec::new(),
            closed: None,
        }
    }

    /// Whether it must be handled before this one of the same group.
    pub fn precedes(&self, other: &Entry<'_>) -> bool {
        if self.event == other.event {
            return false;
        }
        match (self.origin, other.origin) {
            (of, same) if of == same && of != Origin::Retried => {
                // Each event of a transaction is delayed from when it was published, by clocks that may differ: that of SQL
                // has milliseconds on SQLite.
                let is_due_later = self.delay == 0 || self.delay + CLOCKS_DIFFER <= other.delay;
                self.position < other.position && is_due_later
            }
            // The event may not be routed yet when the retry is due.
            (Origin::Published { .. }, Origin::Retried) => false,
            _ => self.known < other.called && self.due.1 <= other.due.0,
        }
    }

    /// After it was completed.
    pub fn completed(&self) -> Option<Time> {
        self.closed.filter(|closed| closed.result == Ended::Completed).map(|closed| closed.returned)
    }

    fn is_finished(&self) -> bool {
        self.closed.is_some_and(|closed| matches!(closed.result, Ended::Completed | Ended::Dead))
    }
}

fn latest(known: Time, delay: Time) -> Time {
    if delay == 0 { known } else { known + delay + CLOCKS_DIFFER }
}

/// The entries of an event, the first one first. Reports what cannot be assigned to one, and an event that is not finished.
pub(super) fn entries<'a>(
    check: &Check<'a>,
    subscription: usize,
    event: usize,
    violations: &mut Vec<Violation>,
) -> Vec<Entry<'a>> {
    let (history, published) = (check.history, &check.history.events[event]);
    let Some(committed) = published.committed else { return Vec::new() };
    let handlings = check.by_event.get(&(subscription, event)).map(Vec::as_slice).unwrap_or_default();
    let is_required = published.committing > history.subscriptions[subscription].created;
    if handlings.is_empty() && !is_required {
        return Vec::new();
    }
    let of_event = |redrive: &&Redrive| (redrive.subscription, redrive.event) == (subscription, event);
    let mut redrives = history.redrives.iter().filter(of_event).peekable();
    let (mut all, mut current) = (Vec::new(), Entry::published(event, published, committed));
    for handling in handlings.iter().filter(|handling| check.held_until(handling).is_some()) {
        if current.is_finished() {
            match redrives.next_if(|redrive| redrive.called < handling.claimed) {
                Some(redrive) => {
                    all.push(std::mem::replace(&mut current, Entry::redriven(event, published.group, redrive)));
                }
                None => violations.push(Violation::HandledAfterItsEnd { subscription, event }),
            }
        }
        current.handlings.push(handling);
        let Some(end) = handling.end else { continue };
        match end.result {
            Ended::Completed | Ended::Dead => current.closed = Some(end),
            Ended::Delayed(delay) if history.continues => {
                current.closed = Some(end);
                all.push(std::mem::replace(&mut current, Entry::retried(event, published.group, end, delay)));
            }
            Ended::Delayed(_) | Ended::Released | Ended::Lost => {}
        }
    }
    for redrive in redrives {
        all.push(std::mem::replace(&mut current, Entry::redriven(event, published.group, redrive)));
    }
    if !current.is_finished() {
        violations.push(Violation::NotFinished { subscription, event });
    }
    all.push(current);
    all
}
