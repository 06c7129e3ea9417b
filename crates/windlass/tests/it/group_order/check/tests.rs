//! Tests of the check: correct histories, and histories that violate one guarantee.

use super::{Violation, check};
use crate::group_order::history::{
    Attempt, AttemptEnd, AttemptResult, Event, History, Redrive, Reset, Subscription, Time,
};

const LEASE: Time = 400_000;
const COMPLETED: AttemptResult = AttemptResult::Completed;

/// Writes a history step by step. Every step takes ten milliseconds.
struct Script {
    now: Time,
    history: History,
}

impl Script {
    fn new() -> Script {
        let mut script = Script { now: 1_000_000, history: History { lease: LEASE, ..History::default() } };
        script.history.subscriptions.push(Subscription { creating: 0, created: 0 });
        script
    }

    fn step(&mut self) -> Time {
        self.now += 10_000;
        self.now
    }

    /// Publishes an event in a transaction of its own.
    fn publish(&mut self, delay: Time) -> usize {
        self.publish_all(&[delay])[0]
    }

    /// Publishes events with these delays in one transaction.
    fn publish_all(&mut self, delays: &[Time]) -> Vec<usize> {
        let (called, committing, committed) = (self.step(), self.step(), self.step());
        let first = self.history.events.len();
        for (position, delay) in delays.iter().copied().enumerate() {
            let (transaction, begun, committed) = (first, called, Some(committed));
            self.history.events.push(Event {
                group: 0,
                transaction,
                position,
                delay,
                begun,
                called,
                committing,
                committed,
            });
        }
        (first..first + delays.len()).collect()
    }

    /// Claims events in one run, and returns their attempts.
    fn claim(&mut self, events: &[usize]) -> Vec<usize> {
        let (claim_called, claimed) = (self.step(), self.step());
        let first = self.history.attempts.len();
        for (position, event) in events.iter().copied().enumerate() {
            let attempt = Attempt { subscription: 0, event, claim: first, position, claim_called, claimed, end: None };
            self.history.attempts.push(attempt);
        }
        (first..first + events.len()).collect()
    }

    fn end(&mut self, attempt: usize, result: AttemptResult) {
        let (called, returned) = (self.step(), self.step());
        self.history.attempts[attempt].end = Some(AttemptEnd { called, returned, result });
    }

    fn handle(&mut self, event: usize, result: AttemptResult) {
        let attempt = self.claim(&[event])[0];
        self.end(attempt, result);
    }

    fn redrive(&mut self, event: usize) {
        let (called, returned) = (self.step(), self.step());
        let call = called as usize;
        self.history.redrives.push(Redrive { subscription: 0, event, call, position: 0, called, returned });
    }

    fn violations(&self) -> Vec<Violation> {
        check(&self.history)
    }
}

fn claimed_too_early(earlier: usize, later: usize) -> Violation {
    Violation::ClaimedTooEarly { subscription: 0, earlier, later }
}

fn completed_too_early(earlier: usize, later: usize) -> Violation {
    Violation::CompletedTooEarly { subscription: 0, earlier, later }
}

fn not_finished(event: usize) -> Violation {
    Violation::NotFinished { subscription: 0, event }
}

#[test]
fn correct_history_has_no_violations() {
    let mut script = Script::new();
    let events = script.publish_all(&[0, 0, 0]);
    let late = script.publish(0);
    script.handle(events[0], AttemptResult::Delayed(1));
    script.handle(events[0], COMPLETED);
    let run = script.claim(&[events[1], events[2], late]);
    script.end(run[0], COMPLETED);
    script.end(run[1], AttemptResult::Released);
    script.end(run[2], AttemptResult::Lost);
    script.handle(events[2], AttemptResult::Dead);
    script.handle(late, COMPLETED);
    script.redrive(events[2]);
    script.handle(events[2], COMPLETED);
    assert_eq!(script.violations(), []);
}

#[test]
fn two_swapped_events_are_found() {
    let mut script = Script::new();
    let (first, second) = (script.publish(0), script.publish(0));
    script.handle(second, COMPLETED);
    script.handle(first, COMPLETED);
    assert_eq!(script.violations(), [claimed_too_early(first, second), completed_too_early(first, second)]);
}

#[test]
fn swapped_events_of_one_transaction_are_found() {
    let mut script = Script::new();
    let events = script.publish_all(&[0, 0]);
    script.handle(events[1], COMPLETED);
    script.handle(events[0], COMPLETED);
    let (first, second) = (events[0], events[1]);
    assert_eq!(script.violations(), [claimed_too_early(first, second), completed_too_early(first, second)]);
}

#[test]
fn delayed_events_of_one_transaction_are_ordered_by_due_time() {
    for (delays, are_ordered) in [([50_000, 50_000], false), ([50_000, 40_000], false), ([50_000, 90_000], true)] {
        let mut script = Script::new();
        let events = script.publish_all(&delays);
        script.now += 100_000;
        script.handle(events[1], COMPLETED);
        script.handle(events[0], COMPLETED);
        assert_eq!(!script.violations().is_empty(), are_ordered, "{delays:?}");
    }
}

#[test]
fn run_claimed_in_wrong_order_is_found() {
    let mut script = Script::new();
    let (first, second) = (script.publish(0), script.publish(0));
    let run = script.claim(&[second, first]);
    script.end(run[1], COMPLETED);
    script.end(run[0], COMPLETED);
    assert_eq!(script.violations(), [claimed_too_early(first, second)]);
}

#[test]
fn worker_that_reverses_a_run_is_found() {
    let mut script = Script::new();
    let (first, second) = (script.publish(0), script.publish(0));
    let run = script.claim(&[first, second]);
    script.end(run[1], COMPLETED);
    script.end(run[0], COMPLETED);
    assert_eq!(script.violations(), [completed_too_early(first, second)]);
}

#[test]
fn concurrent_publishes_have_no_order() {
    let mut script = Script::new();
    let (first, second) = (script.publish(0), script.publish(0));
    // The first event was committed after the publish of the second one had been called.
    script.history.events[first].committed = Some(script.history.events[second].called + 1);
    script.handle(second, COMPLETED);
    script.handle(first, COMPLETED);
    assert_eq!(script.violations(), []);
}

#[test]
fn delays_change_the_order() {
    let mut script = Script::new();
    let (delayed, second) = (script.publish(300_000), script.publish(0));
    script.handle(second, COMPLETED);
    script.handle(delayed, COMPLETED);
    assert_eq!(script.violations(), []);

    let mut script = Script::new();
    let events = script.publish_all(&[300_000, 0, 300_000]);
    for event in [events[1], events[0], events[2]] {
        script.handle(event, COMPLETED);
    }
    assert_eq!(script.violations(), []);
}

#[test]
fn overtaken_delayed_event_is_found_once_due() {
    let mut script = Script::new();
    let delayed = script.publish(50_000);
    script.now += 100_000;
    let second = script.publish(0);
    script.handle(second, COMPLETED);
    script.handle(delayed, COMPLETED);
    assert_eq!(script.violations(), [claimed_too_early(delayed, second), completed_too_early(delayed, second)]);
}

#[test]
fn concurrent_claims_of_a_group_are_found() {
    let mut script = Script::new();
    let (first, second) = (script.publish(0), script.publish(0));
    script.history.events[second].called = script.history.events[first].called;
    let (one, two) = (script.claim(&[first])[0], script.claim(&[second])[0]);
    script.end(one, COMPLETED);
    script.end(two, COMPLETED);
    let expected = Violation::Overlap { subscription: 0, events: [first, second], claims: [one, two] };
    assert_eq!(script.violations(), [expected]);
}

#[test]
fn redelivery_before_lease_expiry_is_found() {
    let mut script = Script::new();
    let event = script.publish(0);
    let abandoned = script.claim(&[event])[0];
    script.now += LEASE / 2;
    let again = script.claim(&[event])[0];
    script.end(again, COMPLETED);
    let expected = Violation::Overlap { subscription: 0, events: [event, event], claims: [abandoned, again] };
    assert_eq!(script.violations(), [expected]);
}

#[test]
fn redelivery_after_lease_expiry_is_allowed() {
    let mut script = Script::new();
    let event = script.publish(0);
    let abandoned = script.claim(&[event])[0];
    script.now += LEASE;
    script.handle(event, COMPLETED);
    script.end(abandoned, AttemptResult::Lost);
    assert_eq!(script.violations(), []);
    // The same report must not be accepted.
    script.history.attempts[abandoned].end.as_mut().unwrap().result = COMPLETED;
    assert!(script.violations().iter().any(|found| matches!(found, Violation::Overlap { .. })));
}

#[test]
fn lease_lost_without_cause_is_found() {
    let mut script = Script::new();
    let event = script.publish(0);
    let claim = script.claim(&[event])[0];
    script.end(claim, AttemptResult::Lost);
    script.handle(event, COMPLETED);
    assert_eq!(script.violations(), [Violation::LeaseLostWithoutCause { subscription: 0, event, claim }]);
    let (called, returned) = (script.history.attempts[claim].claimed + 1, script.history.attempts[claim].claimed + 2);
    script.history.resets.push(Reset { subscription: 0, event, called, returned });
    assert_eq!(script.violations(), []);
}

#[test]
fn lost_event_is_found() {
    let mut script = Script::new();
    let (first, second) = (script.publish(0), script.publish(0));
    script.handle(first, COMPLETED);
    assert_eq!(script.violations(), [not_finished(second)]);
    // The event blocks its group until it is finished.
    let third = script.publish(0);
    script.handle(third, COMPLETED);
    let blocked = [claimed_too_early(second, third), completed_too_early(second, third)];
    assert_eq!(script.violations(), [&[not_finished(second)], &blocked[..]].concat());
}

#[test]
fn lost_redriven_event_is_found() {
    let mut script = Script::new();
    let event = script.publish(0);
    script.handle(event, AttemptResult::Dead);
    assert_eq!(script.violations(), []);
    script.redrive(event);
    assert_eq!(script.violations(), [not_finished(event)]);
}

#[test]
fn redriven_event_is_ordered_behind_earlier_events() {
    let mut script = Script::new();
    let (first, second) = (script.publish(0), script.publish(0));
    script.handle(first, AttemptResult::Dead);
    script.redrive(first);
    let third = script.publish(0);
    for event in [second, first, third] {
        script.handle(event, COMPLETED);
    }
    assert_eq!(script.violations(), []);
    let attempts = &mut script.history.attempts;
    (attempts[1].event, attempts[2].event) = (first, second);
    assert_eq!(script.violations(), [claimed_too_early(second, first), completed_too_early(second, first)]);
}

#[test]
fn delivery_after_finish_is_found() {
    for result in [COMPLETED, AttemptResult::Dead] {
        let mut script = Script::new();
        let event = script.publish(0);
        script.handle(event, result);
        script.handle(event, COMPLETED);
        assert_eq!(script.violations(), [Violation::DeliveredAfterFinish { subscription: 0, event }]);
    }
}

#[test]
fn delivered_rolled_back_event_is_found() {
    let mut script = Script::new();
    let event = script.publish(0);
    script.history.events[event].committed = None;
    assert_eq!(script.violations(), []);
    script.handle(event, COMPLETED);
    assert_eq!(script.violations(), [Violation::RolledBackButDelivered { subscription: 0, event }]);
}

#[test]
fn new_subscription_gets_only_later_commits() {
    let mut script = Script::new();
    let (before, after) = (script.publish(0), script.publish(0));
    let created = script.history.events[after].called;
    script.history.subscriptions[0] = Subscription { creating: created - 1, created };
    assert_eq!(script.violations(), [not_finished(after)]);
    script.handle(before, COMPLETED);
    script.handle(after, COMPLETED);
    assert_eq!(script.violations(), [Violation::OlderThanSubscription { subscription: 0, event: before }]);
    // An event committed during the creation may be delivered or not.
    script.history.events[before].committed = Some(created);
    assert_eq!(script.violations(), []);
}

#[test]
fn failed_event_is_passed_under_policy_continue() {
    let mut script = Script::new();
    let (first, second) = (script.publish(0), script.publish(0));
    script.handle(first, AttemptResult::Delayed(50_000));
    script.handle(second, COMPLETED);
    script.now += 100_000;
    let third = script.publish(0);
    script.handle(first, COMPLETED);
    script.handle(third, COMPLETED);
    assert_eq!(script.violations(), [claimed_too_early(first, second), completed_too_early(first, second)]);
    script.history.continues = true;
    assert_eq!(script.violations(), []);
    // The retry was due before the third event was published.
    let attempts = &mut script.history.attempts;
    (attempts[2].event, attempts[3].event) = (third, first);
    assert_eq!(script.violations(), [claimed_too_early(first, third), completed_too_early(first, third)]);
}
