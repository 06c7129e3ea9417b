//! What is counted of one event type, in one span of time.

use chrono::TimeDelta;

use super::histogram::Histogram;
use crate::clock::Timestamp;
use crate::event::delivery::{Delivery, Status};
use crate::queue::decide::Transition;
use crate::queue::outcome::Action;
use crate::store::DeliveryChange;
use crate::topology::Subscription;

/// Counts, which add up, and what was seen of the live queue, of which the most is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counter {
    /// Events.
    pub published: u64,
    /// From here on: deliveries.
    pub completed: u64,
    pub failed: u64,
    pub retried: u64,
    pub expired: u64,
    pub cancelled: u64,
    /// The most live deliveries at once; `None` where nobody looked.
    pub depth: Option<u64>,
    /// How long a delivery that was ready had been so, at most; `None` where nobody looked.
    pub oldest_ms: Option<u64>,
    /// From when it could be taken to its first claim.
    pub wait: Histogram,
    /// From a claim to the report that ended it.
    pub run: Histogram,
}

/// Something that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noted {
    Published,
    /// For the first time, after so long.
    Claimed {
        wait_us: u64,
    },
    Ended(End, Option<u64>),
}

/// What became of a delivery, or of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Failed,
    Retried,
    Expired,
    Cancelled,
}

impl Counter {
    pub fn note(&mut self, noted: Noted) {
        match noted {
            Noted::Published => self.published += 1,
            Noted::Claimed { wait_us } => self.wait.note(wait_us),
            Noted::Ended(end, run_us) => {
                *self.of(end) += 1;
                if let Some(run_us) = run_us {
                    self.run.note(run_us);
                }
            }
        }
    }

    fn of(&mut self, end: End) -> &mut u64 {
        match end {
            End::Completed => &mut self.completed,
            End::Failed => &mut self.failed,
            End::Retried => &mut self.retried,
            End::Expired => &mut self.expired,
            End::Cancelled => &mut self.cancelled,
        }
    }

    pub fn add(&mut self, other: &Counter) {
        self.published += other.published;
        self.completed += other.completed;
        self.failed += other.failed;
        self.retried += other.retried;
        self.expired += other.expired;
        self.cancelled += other.cancelled;
        self.depth = self.depth.max(other.depth);
        self.oldest_ms = self.oldest_ms.max(other.oldest_ms);
        self.wait.add(&other.wait);
        self.run.add(&other.run);
    }
}

/// How a change that was applied is counted. What was put back without a failure is not: nothing has ended.
pub(crate) fn end_of(change: &DeliveryChange) -> Option<End> {
    match &change.transition {
        Transition::End { .. } if change.action == Action::Cancelled => Some(End::Cancelled),
        Transition::End { .. } => Some(End::Completed),
        Transition::Requeue { failed: true, .. } => Some(End::Retried),
        Transition::Requeue { failed: false, .. } => None,
        Transition::Bury { status: Status::Expired, .. } => Some(End::Expired),
        Transition::Bury { .. } => Some(End::Failed),
    }
}

/// How long a worker had it who reported its end; nobody reports what was expired, called off or abandoned.
pub(crate) fn run_of(change: &DeliveryChange, finished_at: Timestamp) -> Option<u64> {
    let reported = matches!(change.action, Action::Completed | Action::CompletedWithErrors | Action::Failed);
    change.live.picked_at.filter(|_| reported).map(|picked_at| span_us(picked_at, finished_at))
}

/// How long it waited for its first claim; `None` for a later one, and for the past that a subscription was given:
/// nobody could have taken that before.
pub(crate) fn first_wait(delivery: &Delivery, subscription: &Subscription) -> Option<u64> {
    let event = &delivery.event;
    let from = event.run_at.map_or(event.created_at, |run_at| run_at.max(event.created_at));
    let is_past = subscription.starts_at < subscription.created_at && from < subscription.created_at;
    (delivery.attempts == 1 && !is_past).then(|| span_us(from, delivery.picked_at))
}

/// From one instant to another, in microseconds; nothing where a clock went back.
pub(crate) fn span_us(from: Timestamp, to: Timestamp) -> u64 {
    let span: TimeDelta = to - from;
    span.num_microseconds().map_or(0, |us| u64::try_from(us).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::from_micros;
    use crate::event::delivery::{Lease, LiveDelivery};
    use crate::queue::decide::When;
    use crate::store::{AttemptRecord, ChangeGuard};

    fn change(action: Action, transition: Transition) -> DeliveryChange {
        let live = LiveDelivery {
            event_id: 1,
            subscription_id: 1,
            lane_id: 1,
            event_type: "t".into(),
            lease: Some(Lease(1)),
            attempts: 1,
            attempts_limit: 9,
            retry_count: 0,
            max_retries: None,
            subscription: "main".into(),
            group_id: None,
            picked_at: Some(from_micros(1_000)),
        };
        let (guard, record) = (ChangeGuard::Lease(Lease(1)), AttemptRecord::default());
        DeliveryChange { live, guard, action, transition, record, results: Vec::new(), succeeded: true }
    }

    #[test]
    fn every_change_is_counted_for_what_it_is() {
        let requeue =
            |failed| Transition::Requeue { when: When::After(Duration::ZERO), failed, free: false, pass_group: false };
        let bury = |status| Transition::Bury { status, reason: String::new(), failed: true };
        let end = |forget| Transition::End { forget };
        let ran = Some(500);
        let table = [
            (Action::Completed, end(false), Some(End::Completed), ran),
            (Action::Completed, end(true), Some(End::Completed), ran),
            (Action::CompletedWithErrors, end(false), Some(End::Completed), ran),
            (Action::Cancelled, end(false), Some(End::Cancelled), None),
            (Action::Failed, requeue(true), Some(End::Retried), ran),
            (Action::Failed, bury(Status::Failed), Some(End::Failed), ran),
            (Action::Abandoned, bury(Status::Failed), Some(End::Failed), None),
            (Action::Expired, bury(Status::Expired), Some(End::Expired), None),
            (Action::Snoozed, requeue(false), None, None),
            (Action::Released, requeue(false), None, None),
            (Action::Abandoned, requeue(false), None, None),
            (Action::Reset, requeue(false), None, None),
        ];
        for (action, transition, expected, run) in table {
            let change = change(action, transition);
            assert_eq!((end_of(&change), run_of(&change, from_micros(1_500))), (expected, run), "{change:?}");
        }
    }

    #[test]
    fn a_clock_that_goes_back_makes_nothing_negative() {
        assert_eq!(span_us(from_micros(5), from_micros(3)), 0);
        assert_eq!(span_us(from_micros(3), from_micros(5)), 2);
    }

    #[test]
    fn counts_add_up_and_the_most_of_what_was_seen_is_kept() {
        let mut a = Counter { depth: Some(5), oldest_ms: Some(1), ..Counter::default() };
        a.note(Noted::Published);
        a.note(Noted::Ended(End::Completed, Some(2_000)));
        let mut b = Counter { depth: Some(3), oldest_ms: Some(7), ..Counter::default() };
        for end in [End::Failed, End::Retried, End::Expired, End::Cancelled, End::Completed] {
            b.note(Noted::Ended(end, None));
        }
        b.note(Noted::Claimed { wait_us: 9 });
        a.add(&b);
        assert_eq!((a.published, a.completed, a.failed, a.retried, a.expired, a.cancelled), (1, 2, 1, 1, 1, 1));
        assert_eq!((a.depth, a.oldest_ms, a.wait.total(), a.run.total()), (Some(5), Some(7), 1, 1));
        let mut unseen = Counter::default();
        unseen.add(&Counter::default());
        assert_eq!((unseen.depth, unseen.oldest_ms), (None, None));
        unseen.add(&Counter { depth: Some(0), oldest_ms: Some(0), ..Counter::default() });
        unseen.add(&Counter::default());
        assert_eq!((unseen.depth, unseen.oldest_ms), (Some(0), Some(0)));
    }
}
