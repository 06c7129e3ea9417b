//! Decides every state change of a delivery. Pure functions; the stores apply the resulting [`Transition`].

use std::time::Duration;

use crate::event::delivery::{LiveDelivery, Status};
use crate::policy::{ExhaustedPolicy, GroupFailurePolicy, History, Policy, UnhandledPolicy};
use crate::queue::outcome::{Action, Outcome};

/// A change of a pending or processing delivery.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Transition {
    /// The delivery is finished and leaves the queue.
    End {
        /// Do not keep the attempt nor, once all its deliveries are finished, the event.
        forget: bool,
    },
    /// The delivery stays in the queue without a lease.
    Requeue {
        when: RequeueTime,
        /// Increments `retry_count`.
        failed: bool,
        /// The attempt does not count towards `max_attempts`.
        refund_attempt: bool,
        /// The group moves on to its next delivery. This one is not ready (`ready_at` is infinity) until its turn
        /// comes.
        pass_group: bool,
    },
    /// The delivery leaves the queue and becomes a dead letter.
    DeadLetter {
        status: Status,
        reason: String,
        /// Increments `retry_count`.
        failed: bool,
    },
}

/// When a requeued delivery may be claimed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequeueTime {
    /// At its old time: it keeps its position.
    Unchanged,
    /// After this much time from now.
    After(Duration),
}

pub(crate) const MAX_ATTEMPTS_EXCEEDED: &str = "Max attempts exceeded";
pub(crate) const MAX_RETRIES_EXCEEDED: &str = "Max retries exceeded";
pub(crate) const HANDLER_ERROR: &str = "Handler error";
/// The event type follows.
pub(crate) const NO_HANDLER: &str = "No handler for event";
pub(crate) const EXPIRED: &str = "Expired before it could start";

/// Decides on a worker's report. `random`, from 0 to 1, is for the jitter of retries.
pub(crate) fn decide(outcome: &Outcome, live: &LiveDelivery, policy: &Policy, random: f64) -> (Action, Transition) {
    match outcome {
        Outcome::Done => (Action::Completed, Transition::End { forget: policy.history == History::None }),
        Outcome::DoneWithErrors => (Action::CompletedWithErrors, Transition::End { forget: false }),
        Outcome::Retry { after } => retry(*after, live, policy, random),
        Outcome::Snooze { delay } => {
            let pass_group = live.group_id.is_some() && policy.group_failure == GroupFailurePolicy::Continue;
            let when = RequeueTime::After(*delay);
            (Action::Snoozed, Transition::Requeue { when, failed: false, refund_attempt: true, pass_group })
        }
        Outcome::Release => (Action::Released, release_transition()),
        Outcome::Dead { reason } => decide_exhausted(reason.clone(), policy),
        Outcome::Unhandled => unhandled(live, policy),
    }
}

/// A release without work: the delivery keeps its position, and the attempt does not count.
pub(crate) fn release_transition() -> Transition {
    Transition::Requeue { when: RequeueTime::Unchanged, failed: false, refund_attempt: true, pass_group: false }
}

fn retry(after: Option<Duration>, live: &LiveDelivery, policy: &Policy, random: f64) -> (Action, Transition) {
    let failures = live.retry_count.saturating_add(1);
    if live.max_retries.is_some_and(|max| failures >= max) {
        let reason = if live.max_retries == Some(0) { HANDLER_ERROR } else { MAX_RETRIES_EXCEEDED };
        return decide_exhausted(reason.to_owned(), policy);
    }
    if live.attempts >= live.attempts_limit {
        return (Action::Failed, attempts_exceeded(true));
    }
    let delay = after.unwrap_or_else(|| policy.backoff.delay(failures, policy.lease(), random));
    let pass_group = live.group_id.is_some() && policy.group_failure == GroupFailurePolicy::Continue;
    let when = RequeueTime::After(delay);
    (Action::Failed, Transition::Requeue { when, failed: true, refund_attempt: false, pass_group })
}

fn decide_exhausted(reason: String, policy: &Policy) -> (Action, Transition) {
    match policy.exhausted {
        ExhaustedPolicy::DeadLetter => {
            (Action::Failed, Transition::DeadLetter { status: Status::Failed, reason, failed: true })
        }
        ExhaustedPolicy::CompleteWithErrors => (Action::CompletedWithErrors, Transition::End { forget: false }),
    }
}

fn unhandled(live: &LiveDelivery, policy: &Policy) -> (Action, Transition) {
    if policy.unhandled == UnhandledPolicy::DeadLetter || live.attempts >= live.attempts_limit {
        let reason = format!("{NO_HANDLER} {}", live.event_type);
        return (Action::Failed, Transition::DeadLetter { status: Status::Failed, reason, failed: false });
    }
    let when = RequeueTime::After(policy.lease());
    (Action::Released, Transition::Requeue { when, failed: false, refund_attempt: false, pass_group: false })
}

/// Decides on a delivery whose lease has expired.
pub(crate) fn decide_abandoned(live: &LiveDelivery) -> (Action, Transition) {
    if live.attempts >= live.attempts_limit {
        return (Action::Abandoned, attempts_exceeded(false));
    }
    let when = RequeueTime::Unchanged;
    (Action::Abandoned, Transition::Requeue { when, failed: false, refund_attempt: false, pass_group: false })
}

fn attempts_exceeded(failed: bool) -> Transition {
    Transition::DeadLetter { status: Status::Failed, reason: MAX_ATTEMPTS_EXCEEDED.to_owned(), failed }
}

/// The status of a delivery that left the queue with this action.
pub(crate) fn final_status(action: Action) -> Status {
    match action {
        Action::Completed => Status::Completed,
        Action::CompletedWithErrors => Status::CompletedWithErrors,
        Action::Cancelled => Status::Cancelled,
        Action::Expired => Status::Expired,
        _ => Status::Failed,
    }
}

/// The status of a delivery directly after an action. `will_retry`: the delivery was to be tried again.
pub(crate) fn status_after(action: Action, will_retry: bool) -> Status {
    match action {
        Action::Published | Action::Redriven => Status::Pending,
        Action::Picked | Action::Started => Status::Processing,
        _ if will_retry => Status::Pending,
        _ => final_status(action),
    }
}

/// Decides on a pending delivery whose deadline has passed.
pub(crate) fn decide_expired() -> (Action, Transition) {
    let reason = EXPIRED.to_owned();
    (Action::Expired, Transition::DeadLetter { status: Status::Expired, reason, failed: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::delivery::Lease;

    fn live(attempts: u32, retry_count: u32, max_retries: Option<u32>) -> LiveDelivery {
        LiveDelivery {
            event_id: 1,
            subscription_id: 1,
            lane_id: 1,
            event_type: "t".into(),
            lease: Some(Lease(7)),
            attempts,
            attempts_limit: 20,
            retry_count,
            max_retries,
            subscription: "main".into(),
            group_id: Some("g".into()),
            picked_at: None,
        }
    }

    fn requeue(ms: u64, failed: bool, refund_attempt: bool, pass_group: bool) -> Transition {
        Transition::Requeue { when: RequeueTime::After(Duration::from_millis(ms)), failed, refund_attempt, pass_group }
    }

    fn dead_letter(reason: &str, failed: bool) -> Transition {
        Transition::DeadLetter { status: Status::Failed, reason: reason.into(), failed }
    }

    #[test]
    fn outcome_and_policy_decide_the_transition() {
        use Outcome::*;
        let end = |forget| Transition::End { forget };
        let dead = || Dead { reason: "no such user".into() };
        let again = || Retry { after: None };
        let soon = Retry { after: Some(Duration::from_millis(5)) };
        let snooze = Snooze { delay: Duration::from_millis(9) };
        let table = [
            // outcome, preset, attempts, retry_count, max_retries => action, transition
            (Done, "default", 1, 0, Some(3), Action::Completed, end(false)),
            (Done, "outbox", 1, 0, Some(3), Action::Completed, end(true)),
            (DoneWithErrors, "outbox", 1, 0, Some(3), Action::CompletedWithErrors, end(false)),
            (again(), "tags", 1, 0, Some(3), Action::Failed, requeue(300_000, true, false, false)),
            (again(), "tags", 2, 1, Some(3), Action::Failed, requeue(300_000, true, false, false)),
            (again(), "tags", 3, 2, Some(3), Action::Failed, dead_letter(MAX_RETRIES_EXCEEDED, true)),
            (again(), "bus", 1, 0, Some(0), Action::Failed, dead_letter(HANDLER_ERROR, true)),
            (again(), "queue", 1, 0, None, Action::Failed, requeue(60_000, true, false, false)),
            (again(), "queue", 20, 19, None, Action::Failed, dead_letter(MAX_ATTEMPTS_EXCEEDED, true)),
            (again(), "outbox", 1, 0, Some(3), Action::Failed, requeue(0, true, false, true)),
            (soon, "tags", 1, 0, Some(3), Action::Failed, requeue(5, true, false, false)),
            (dead(), "default", 1, 0, Some(3), Action::Failed, dead_letter("no such user", true)),
            (dead(), "queue", 1, 0, None, Action::CompletedWithErrors, end(false)),
            (snooze, "default", 20, 0, Some(3), Action::Snoozed, requeue(9, false, true, false)),
            (Unhandled, "core", 1, 0, Some(0), Action::Failed, dead_letter("No handler for event t", false)),
            (Unhandled, "bus", 1, 0, Some(0), Action::Released, requeue(300_000, false, false, false)),
            (Unhandled, "bus", 20, 0, Some(0), Action::Failed, dead_letter("No handler for event t", false)),
        ];
        for (outcome, preset, attempts, retry_count, max_retries, action, transition) in table {
            let policy = Policy::preset(preset).unwrap();
            let decided = decide(&outcome, &live(attempts, retry_count, max_retries), &policy, 0.0);
            assert_eq!(decided, (action, transition), "{outcome:?} under {preset}");
        }
    }

    #[test]
    fn released_delivery_keeps_its_position_and_attempt() {
        let decided = decide(&Outcome::Release, &live(20, 0, None), &Policy::default(), 0.0);
        let when = RequeueTime::Unchanged;
        let kept = Transition::Requeue { when, failed: false, refund_attempt: true, pass_group: false };
        assert_eq!(decided, (Action::Released, kept));
    }

    #[test]
    fn abandoned_delivery_is_retried_up_to_max_attempts() {
        let (action, transition) = decide_abandoned(&live(19, 0, None));
        assert_eq!(action, Action::Abandoned);
        assert!(matches!(transition, Transition::Requeue { when: RequeueTime::Unchanged, refund_attempt: false, .. }));
        assert_eq!(decide_abandoned(&live(20, 0, None)).1, dead_letter(MAX_ATTEMPTS_EXCEEDED, false));
    }
}
