//! Checks a history against the guarantees of `docs/ordering.md`.
//!
//! The history says between which times something was done, not when. So the check reports only what is wrong wherever
//! between them it was done.

mod entries;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use self::entries::{Entry, entries};
use super::history::{Ended, Handling, History, Time};

/// How far the database's clock may be off the test's, over the length of a lease or a delay.
const CLOCKS_DIFFER: Time = 5_000;

/// A guarantee that was not kept. Events and claims are named by their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Two claims held deliveries of one group at the same time.
    Overlap { subscription: usize, events: [usize; 2], claims: [usize; 2] },
    /// `later` was claimed while `earlier` was not finished, in another claim or in front of it.
    ClaimedTooEarly { subscription: usize, earlier: usize, later: usize },
    /// `later` was completed before `earlier` was finished.
    CompletedTooEarly { subscription: usize, earlier: usize, later: usize },
    /// It was delivered after it had been completed, or had become a dead letter.
    HandledAfterItsEnd { subscription: usize, event: usize },
    /// It is committed, and neither completed nor a dead letter.
    NotFinished { subscription: usize, event: usize },
    /// It was rolled back, and delivered.
    NotCommitted { subscription: usize, event: usize },
    /// It was committed before the subscription was created, and delivered to it.
    FromBefore { subscription: usize, event: usize },
    /// A report was refused although the lease was valid.
    LostWithoutCause { subscription: usize, event: usize, claim: usize },
}

impl Violation {
    /// What was recorded of it.
    pub fn describe(&self, history: &History) -> String {
        let events = match self {
            Violation::Overlap { events, .. } => events.to_vec(),
            Violation::ClaimedTooEarly { earlier, later, .. } | Violation::CompletedTooEarly { earlier, later, .. } => {
                vec![*earlier, *later]
            }
            Violation::HandledAfterItsEnd { event, .. }
            | Violation::NotFinished { event, .. }
            | Violation::NotCommitted { event, .. }
            | Violation::FromBefore { event, .. } => vec![*event],
            Violation::LostWithoutCause { claim, .. } => {
                let of_claim = history.handlings.iter().filter(|handling| handling.claim == *claim);
                of_claim.map(|handling| handling.event).collect()
            }
        };
        let events: Vec<String> = events.into_iter().map(|event| history.of_event(event)).collect();
        format!("{self:?}\n{}", events.join("\n"))
    }
}

/// All guarantees that were not kept.
pub fn check(history: &History) -> Vec<Violation> {
    let check = Check::new(history);
    let mut violations = check.visibility();
    violations.extend(check.lost_leases());
    for subscription in 0..history.subscriptions.len() {
        violations.extend(check.overlaps(subscription));
        let mut by_group: BTreeMap<usize, Vec<Entry<'_>>> = BTreeMap::new();
        for event in 0..history.events.len() {
            for entry in entries(&check, subscription, event, &mut violations) {
                by_group.entry(entry.group).or_default().push(entry);
            }
        }
        for entries in by_group.values() {
            violations.extend(check.order(subscription, entries));
        }
    }
    violations
}

/// A history, and its handlings by what they are looked up by.
struct Check<'a> {
    history: &'a History,
    /// By subscription and event, in the order in which they were claimed.
    by_event: HashMap<(usize, usize), Vec<&'a Handling>>,
    /// By claim and group: runs, and single deliveries.
    runs: HashMap<(usize, usize), Vec<&'a Handling>>,
}

impl<'a> Check<'a> {
    fn new(history: &'a History) -> Check<'a> {
        let (mut by_event, mut runs) = (HashMap::<_, Vec<&Handling>>::new(), HashMap::<_, Vec<&Handling>>::new());
        for handling in &history.handlings {
            by_event.entry((handling.subscription, handling.event)).or_default().push(handling);
            runs.entry((handling.claim, history.events[handling.event].group)).or_default().push(handling);
        }
        by_event.values_mut().for_each(|handlings| handlings.sort_by_key(|handling| handling.claimed));
        Check { history, by_event, runs }
    }

    fn run_of(&self, handling: &Handling) -> &[&'a Handling] {
        &self.runs[&(handling.claim, self.history.events[handling.event].group)]
    }

    /// Until when the worker held the delivery at least, from when it was claimed. `None`: perhaps not at all.
    fn held_until(&self, handling: &Handling) -> Option<Time> {
        if let Some(end) = handling.end.filter(|end| end.result != Ended::Lost) {
            return Some(end.called);
        }
        let mut until = handling.asked + self.history.lease - CLOCKS_DIFFER;
        until = until.min(handling.end.map_or(Time::MAX, |end| end.called));
        until = until.min(self.taken_away(handling).map_or(Time::MAX, |(called, _)| called));
        (until > handling.claimed).then_some(until)
    }

    /// The first call that may have released the delivery, if any: a reset, or a report of another one of its run.
    fn taken_away(&self, handling: &Handling) -> Option<(Time, Time)> {
        let run = self.run_of(handling);
        let resets = self.history.resets.iter().filter(|reset| {
            let concerns = |other: &&Handling| (other.subscription, other.event) == (reset.subscription, reset.event);
            reset.returned > handling.asked && run.iter().any(concerns)
        });
        let resets = resets.map(|reset| (reset.called, reset.returned));
        let others = run.iter().filter(|other| other.event != handling.event).filter_map(|other| other.end);
        let stops = others.filter(|end| !matches!(end.result, Ended::Completed | Ended::Lost));
        resets.chain(stops.map(|end| (end.called, end.returned))).min()
    }

    /// Only what is committed is delivered, and only to subscriptions that were there.
    fn visibility(&self) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (subscription, event) in self.by_event.keys().copied() {
            let created = &self.history.subscriptions[subscription];
            match self.history.events[event].committed {
                None => violations.push(Violation::NotCommitted { subscription, event }),
                Some(committed) if committed < created.creating => {
                    violations.push(Violation::FromBefore { subscription, event });
                }
                Some(_) => {}
            }
        }
        violations
    }

    /// A lease is lost when it expires, or is taken away, and not otherwise.
    fn lost_leases(&self) -> Vec<Violation> {
        let lost = self.history.handlings.iter().filter(|handling| {
            let Some(end) = handling.end.filter(|end| end.result == Ended::Lost) else { return false };
            let expired = end.returned >= handling.asked + self.history.lease - CLOCKS_DIFFER;
            !expired && self.taken_away(handling).is_none_or(|(called, _)| called > end.returned)
        });
        lost.map(|Handling { subscription, event, claim, .. }| Violation::LostWithoutCause {
            subscription: *subscription,
            event: *event,
            claim: *claim,
        })
        .collect()
    }

    /// One claim at a time has deliveries of a group.
    fn overlaps(&self, subscription: usize) -> Vec<Violation> {
        let mut by_group: BTreeMap<usize, Vec<(Time, Time, &Handling)>> = BTreeMap::new();
        for handling in self.history.handlings.iter().filter(|handling| handling.subscription == subscription) {
            if let Some(until) = self.held_until(handling) {
                let group = self.history.events[handling.event].group;
                by_group.entry(group).or_default().push((handling.claimed, until, handling));
            }
        }
        let mut violations = Vec::new();
        for mut held in by_group.into_values() {
            held.sort_by_key(|(from, ..)| *from);
            for (at, (_, until, first)) in held.iter().enumerate() {
                let during = held[at + 1..].iter().take_while(|(from, ..)| from < until);
                for (.., second) in during.filter(|(.., second)| second.claim != first.claim) {
                    violations.push(Violation::Overlap {
                        subscription,
                        events: [first.event, second.event],
                        claims: [first.claim, second.claim],
                    });
                }
            }
        }
        violations
    }

    /// What precedes another entry of its group is finished before the other one is claimed, or comes before it in the same
    /// run, and is finished before the other one is completed.
    fn order(&self, subscription: usize, entries: &[Entry<'_>]) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (first, second) in entries.iter().flat_map(|first| entries.iter().map(move |second| (first, second))) {
            if !first.precedes(second) {
                continue;
            }
            let (earlier, later) = (first.event, second.event);
            let unfinished_at = |time: Time| first.closed.is_none_or(|closed| closed.called > time);
            let too_early =
                |handling: &&Handling| match self.run_of(handling).iter().find(|other| other.event == earlier) {
                    Some(of_run) => of_run.position > handling.position,
                    None => unfinished_at(handling.claimed),
                };
            if second.handlings.iter().any(too_early) {
                violations.push(Violation::ClaimedTooEarly { subscription, earlier, later });
            }
            if second.completed().is_some_and(unfinished_at) {
                violations.push(Violation::CompletedTooEarly { subscription, earlier, later });
            }
        }
        violations
    }
}
