//! Checks a history against the guarantees of `docs/ordering.md`.
//!
//! A history has the times before and after each call, not the time of its effect. The check reports a violation only
//! if it is one for every possible time in between.

mod entries;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use self::entries::{GroupEntry, group_entries};
use super::history::{Attempt, AttemptResult, History, Time};

/// The largest assumed difference between the clocks of the database and the test, over a lease or a delay.
const CLOCK_SKEW_MAX: Time = 5_000;

/// A violated guarantee. Events and claims are given by their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Two claims held deliveries of one group at the same time.
    Overlap { subscription: usize, events: [usize; 2], claims: [usize; 2] },
    /// `later` was claimed while `earlier` was not finished, in another claim or in front of it.
    ClaimedTooEarly { subscription: usize, earlier: usize, later: usize },
    /// `later` was completed before `earlier` was finished.
    CompletedTooEarly { subscription: usize, earlier: usize, later: usize },
    /// The event was delivered after it had been completed or had become a dead letter.
    DeliveredAfterFinish { subscription: usize, event: usize },
    /// The event was committed, and is neither completed nor a dead letter.
    NotFinished { subscription: usize, event: usize },
    /// The event was rolled back, and delivered.
    RolledBackButDelivered { subscription: usize, event: usize },
    /// The event was committed before the subscription was created, and delivered to it.
    OlderThanSubscription { subscription: usize, event: usize },
    /// A report was refused although the lease was valid.
    LeaseLostWithoutCause { subscription: usize, event: usize, claim: usize },
}

impl Violation {
    /// The violation with all records of its events.
    pub fn describe(&self, history: &History) -> String {
        let events = match self {
            Violation::Overlap { events, .. } => events.to_vec(),
            Violation::ClaimedTooEarly { earlier, later, .. } | Violation::CompletedTooEarly { earlier, later, .. } => {
                vec![*earlier, *later]
            }
            Violation::DeliveredAfterFinish { event, .. }
            | Violation::NotFinished { event, .. }
            | Violation::RolledBackButDelivered { event, .. }
            | Violation::OlderThanSubscription { event, .. } => vec![*event],
            Violation::LeaseLostWithoutCause { claim, .. } => {
                let of_claim = history.attempts.iter().filter(|attempt| attempt.claim == *claim);
                of_claim.map(|attempt| attempt.event).collect()
            }
        };
        let events: Vec<String> = events.into_iter().map(|event| history.of_event(event)).collect();
        format!("{self:?}\n{}", events.join("\n"))
    }
}

/// Returns all violations.
pub fn check(history: &History) -> Vec<Violation> {
    let check = Check::new(history);
    let mut violations = check.visibility();
    violations.extend(check.lost_leases());
    for subscription in 0..history.subscriptions.len() {
        violations.extend(check.overlaps(subscription));
        let mut by_group: BTreeMap<usize, Vec<GroupEntry<'_>>> = BTreeMap::new();
        for event in 0..history.events.len() {
            for entry in group_entries(&check, subscription, event, &mut violations) {
                by_group.entry(entry.group).or_default().push(entry);
            }
        }
        for entries in by_group.values() {
            violations.extend(check.order(subscription, entries));
        }
    }
    violations
}

/// A history with its attempts, indexed by event and by run.
struct Check<'a> {
    history: &'a History,
    /// The attempts of each (subscription, event), in the order of their claims.
    by_event: HashMap<(usize, usize), Vec<&'a Attempt>>,
    /// The attempts of each (claim, group): runs and single deliveries.
    runs: HashMap<(usize, usize), Vec<&'a Attempt>>,
}

impl<'a> Check<'a> {
    fn new(history: &'a History) -> Check<'a> {
        let (mut by_event, mut runs) = (HashMap::<_, Vec<&Attempt>>::new(), HashMap::<_, Vec<&Attempt>>::new());
        for attempt in &history.attempts {
            by_event.entry((attempt.subscription, attempt.event)).or_default().push(attempt);
            runs.entry((attempt.claim, history.events[attempt.event].group)).or_default().push(attempt);
        }
        by_event.values_mut().for_each(|attempts| attempts.sort_by_key(|attempt| attempt.claimed));
        Check { history, by_event, runs }
    }

    fn run_of(&self, attempt: &Attempt) -> &[&'a Attempt] {
        &self.runs[&(attempt.claim, self.history.events[attempt.event].group)]
    }

    /// The time until which the lease was certainly valid. `None`: it may have ended before the claim returned.
    fn leased_until(&self, attempt: &Attempt) -> Option<Time> {
        if let Some(end) = attempt.end.filter(|end| end.result != AttemptResult::Lost) {
            return Some(end.called);
        }
        let mut until = attempt.claim_called + self.history.lease - CLOCK_SKEW_MAX;
        until = until.min(attempt.end.map_or(Time::MAX, |end| end.called));
        until = until.min(self.first_release(attempt).map_or(Time::MAX, |(called, _)| called));
        (until > attempt.claimed).then_some(until)
    }

    /// The start and end of the first call that may have released the delivery: a reset, or a report of another
    /// delivery of its run.
    fn first_release(&self, attempt: &Attempt) -> Option<(Time, Time)> {
        let run = self.run_of(attempt);
        let resets = self.history.resets.iter().filter(|reset| {
            let concerns = |other: &&Attempt| (other.subscription, other.event) == (reset.subscription, reset.event);
            reset.returned > attempt.claim_called && run.iter().any(concerns)
        });
        let resets = resets.map(|reset| (reset.called, reset.returned));
        let others = run.iter().filter(|other| other.event != attempt.event).filter_map(|other| other.end);
        let stops = others.filter(|end| !matches!(end.result, AttemptResult::Completed | AttemptResult::Lost));
        resets.chain(stops.map(|end| (end.called, end.returned))).min()
    }

    /// Only committed events are delivered, and only to subscriptions that existed at their commit.
    fn visibility(&self) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (subscription, event) in self.by_event.keys().copied() {
            let created = &self.history.subscriptions[subscription];
            match self.history.events[event].committed {
                None => violations.push(Violation::RolledBackButDelivered { subscription, event }),
                Some(committed) if committed < created.creating => {
                    violations.push(Violation::OlderThanSubscription { subscription, event });
                }
                Some(_) => {}
            }
        }
        violations
    }

    /// A lease is lost only if it expired or the delivery was released.
    fn lost_leases(&self) -> Vec<Violation> {
        let lost = self.history.attempts.iter().filter(|attempt| {
            let Some(end) = attempt.end.filter(|end| end.result == AttemptResult::Lost) else { return false };
            let expired = end.returned >= attempt.claim_called + self.history.lease - CLOCK_SKEW_MAX;
            !expired && self.first_release(attempt).is_none_or(|(called, _)| called > end.returned)
        });
        lost.map(|Attempt { subscription, event, claim, .. }| Violation::LeaseLostWithoutCause {
            subscription: *subscription,
            event: *event,
            claim: *claim,
        })
        .collect()
    }

    /// The deliveries of a group are leased to one claim at a time.
    fn overlaps(&self, subscription: usize) -> Vec<Violation> {
        let mut by_group: BTreeMap<usize, Vec<(Time, Time, &Attempt)>> = BTreeMap::new();
        for attempt in self.history.attempts.iter().filter(|attempt| attempt.subscription == subscription) {
            if let Some(until) = self.leased_until(attempt) {
                let group = self.history.events[attempt.event].group;
                by_group.entry(group).or_default().push((attempt.claimed, until, attempt));
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

    /// If one entry of a group precedes another, it is finished before the other one is claimed, or is ahead of it in
    /// the same run. It is finished before the other one is completed.
    fn order(&self, subscription: usize, entries: &[GroupEntry<'_>]) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (first, second) in entries.iter().flat_map(|first| entries.iter().map(move |second| (first, second))) {
            if !first.precedes(second) {
                continue;
            }
            let (earlier, later) = (first.event, second.event);
            let unfinished_at = |time: Time| first.end.is_none_or(|end| end.called > time);
            let too_early = |attempt: &&Attempt| match self.run_of(attempt).iter().find(|other| other.event == earlier)
            {
                Some(of_run) => of_run.position > attempt.position,
                None => unfinished_at(attempt.claimed),
            };
            if second.attempts.iter().any(too_early) {
                violations.push(Violation::ClaimedTooEarly { subscription, earlier, later });
            }
            if second.completed().is_some_and(unfinished_at) {
                violations.push(Violation::CompletedTooEarly { subscription, earlier, later });
            }
        }
        violations
    }
}
