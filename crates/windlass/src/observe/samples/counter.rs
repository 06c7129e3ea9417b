//! The counters of one event type in one span of time, and how changes are counted.

use chrono::TimeDelta;

use super::histogram::Histogram;
use crate::clock::Timestamp;
use crate::event::delivery::{Delivery, Status};
use crate::queue::decide::Transition;
use crate::queue::outcome::Action;
use crate::store::DeliveryChange;
use crate::topology::Subscription;

/// Counts are added up; of the measurements `depth` and `oldest_ms` the maximum is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counter {
    /// Events.
    pub published: u64,
    /// Deliveries, like all that follow.
    pub completed: u64,
    pub failed: u64,
    pub retried: u64,
    pub expired: u64,
    pub cancelled: u64,
    /// The most pending and processing deliveries; `None` if not measured.
    pub depth: Option<u64>,
    /// The age of the oldest ready delivery, at most; `None` if not measured.
    pub oldest_ms: Option<u64>,
    /// From the time a delivery was ready to its first claim.
    pub wait: Histogram,
    /// From a claim to the report of its outcome.
    pub run: Histogram,
}

/// Something that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountedEvent {
    Published,
    /// The first claim of a delivery, `wait_us` after it was ready.
    Claimed {
        wait_us: u64,
    },
    /// The end of a delivery or an attempt, and the time since its claim in microseconds if a worker reported it.
    Finished(FinishKind, Option<u64>),
}

/// How a delivery or an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishKind {
    Completed,
    Failed,
    Retried,
    Expired,
    Cancelled,
}

impl Counter {
    pub fn record(&mut self, event: CountedEvent) {
        match event {
            CountedEvent::Published => self.published += 1,
            CountedEvent::Claimed { wait_us } => self.wait.record(wait_us),
            CountedEvent::Finished(kind, run_us) => {
                *self.count_of(kind) += 1;
                if let Some(run_us) = run_us {
                    self.run.record(run_us);
                }
            }
        }
    }

    fn count_of(&mut self, kind: FinishKind) -> &mut u64 {
        match kind {
            FinishKind::Completed => &mut self.completed,
            FinishKind::Failed => &mut self.failed,
            FinishKind::Retried => &mut self.retried,
            FinishKind::Expired => &mut self.expired,
            FinishKind::Cancelled => &mut self.cancelled,
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

/// How an applied change is counted; `None` for a release or a snooze, which finish nothing.
pub(crate) fn finish_kind(change: &DeliveryChange) -> Option<FinishKind> {
    match &change.transition {
        Transition::End { .. } if change.action == Action::Cancelled => Some(FinishKind::Cancelled),
        Transition::End { .. } => Some(FinishKind::Completed),
        Transition::Requeue { failed: true, .. } => Some(FinishKind::Retried),
        Transition::Requeue { failed: false, .. } => None,
        Transition::DeadLetter { status: Status::Expired, .. } => Some(FinishKind::Expired),
        Transition::DeadLetter { .. } => Some(FinishKind::Failed),
    }
}

/// The time from the claim to the report of the outcome. `None` for changes that no worker reports: expired, canceled
/// or abandoned deliveries.
pub(crate) fn handling_us(change: &DeliveryChange, finished_at: Timestamp) -> Option<u64> {
    let reported = matches!(change.action, Action::Completed | Action::CompletedWithErrors | Action::Failed);
    change.live.picked_at.filter(|_| reported).map(|picked_at| elapsed_us(picked_at, finished_at))
}

/// How long the delivery was ready before its first claim. `None` for a later claim, and for backfilled deliveries,
/// which could not be claimed before the subscription was created.
pub(crate) fn first_wait_us(delivery: &Delivery, subscription: &Subscription) -> Option<u64> {
    let event = &delivery.event;
    let from = event.run_at.map_or(event.created_at, |run_at| run_at.max(event.created_at));
    let is_backfilled = subscription.starts_at < subscription.created_at && from < subscription.created_at;
    (delivery.attempts == 1 && !is_backfilled).then(|| elapsed_us(from, delivery.picked_at))
}

/// The time between two timestamps in microseconds; zero if the clock went back.
pub(crate) fn elapsed_us(from: Timestamp, to: Timestamp) -> u64 {
    let elapsed: TimeDelta = to - from;
    elapsed.num_microseconds().map_or(0, |us| u64::try_from(us).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::from_micros;
    use crate::event::delivery::{Lease, LiveDelivery};
    use crate::queue::decide::RequeueTime;
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
    fn changes_are_counted_by_action_and_transition() {
        let requeue = |failed| Transition::Requeue {
            when: RequeueTime::After(Duration::ZERO),
            failed,
            refund_attempt: false,
            pass_group: false,
        };
        let bury = |status| Transition::DeadLetter { status, reason: String::new(), failed: true };
        let end = |forget| Transition::End { forget };
        let ran = Some(500);
        let table = [
            (Action::Completed, end(false), Some(FinishKind::Completed), ran),
            (Action::Completed, end(true), Some(FinishKind::Completed), ran),
            (Action::CompletedWithErrors, end(false), Some(FinishKind::Completed), ran),
            (Action::Cancelled, end(false), Some(FinishKind::Cancelled), None),
            (Action::Failed, requeue(true), Some(FinishKind::Retried), ran),
            (Action::Failed, bury(Status::Failed), Some(FinishKind::Failed), ran),
            (Action::Abandoned, bury(Status::Failed), Some(FinishKind::Failed), None),
            (Action::Expired, bury(Status::Expired), Some(FinishKind::Expired), None),
            (Action::Snoozed, requeue(false), None, None),
            (Action::Released, requeue(false), None, None),
            (Action::Abandoned, requeue(false), None, None),
            (Action::Reset, requeue(false), None, None),
        ];
        for (action, transition, expected, run) in table {
            let change = change(action, transition);
            assert_eq!((finish_kind(&change), handling_us(&change, from_micros(1_500))), (expected, run), "{change:?}");
        }
    }

    #[test]
    fn elapsed_time_is_zero_if_the_clock_goes_back() {
        assert_eq!(elapsed_us(from_micros(5), from_micros(3)), 0);
        assert_eq!(elapsed_us(from_micros(3), from_micros(5)), 2);
    }

    #[test]
    fn counts_are_summed_and_measurements_maximized() {
        let mut a = Counter { depth: Some(5), oldest_ms: Some(1), ..Counter::default() };
        a.record(CountedEvent::Published);
        a.record(CountedEvent::Finished(FinishKind::Completed, Some(2_000)));
        let mut b = Counter { depth: Some(3), oldest_ms: Some(7), ..Counter::default() };
        for end in
            [FinishKind::Failed, FinishKind::Retried, FinishKind::Expired, FinishKind::Cancelled, FinishKind::Completed]
        {
            b.record(CountedEvent::Finished(end, None));
        }
        b.record(CountedEvent::Claimed { wait_us: 9 });
        a.add(&b);
        assert_eq!((a.published, a.completed, a.failed, a.retried, a.expired, a.cancelled), (1, 2, 1, 1, 1, 1));
        assert_eq!((a.depth, a.oldest_ms, a.wait.total(), a.run.total()), (Some(5), Some(7), 1, 1));
        let mut unmeasured = Counter::default();
        unmeasured.add(&Counter::default());
        assert_eq!((unmeasured.depth, unmeasured.oldest_ms), (None, None));
        unmeasured.add(&Counter { depth: Some(0), oldest_ms: Some(0), ..Counter::default() });
        unmeasured.add(&Counter::default());
        assert_eq!((unmeasured.depth, unmeasured.oldest_ms), (Some(0), Some(0)));
    }
}
