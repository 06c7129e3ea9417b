//! What becomes of a delivery: every decision, and no I/O.

use std::time::Duration;

use crate::event::delivery::{LiveDelivery, Status};
use crate::policy::{ExhaustedPolicy, GroupFailurePolicy, History, Policy, UnhandledPolicy};
use crate::queue::outcome::{Action, Outcome};

/// A change of a live delivery, for a store to apply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Transition {
    /// It leaves the queue; nothing more is to be done.
    End {
        /// Neither the attempt nor, once no delivery needs it, the event is kept.
        forget: bool,
    },
    /// It stays in the queue, held by nobody.
    Requeue {
        when: When,
        /// `retry_count` grows.
        failed: bool,
        /// The acquisition does not count towards `max_attempts`.
        free: bool,
        /// Its group goes on without it: it waits at infinity until the group comes back to it.
        pass_group: bool,
    },
    /// It leaves the queue and is kept as a dead letter.
    Bury {
        status: Status,
        reason: String,
        /// `retry_count` grows.
        failed: bool,
    },
}

/// When a delivery that stays may be taken again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// As before: it keeps its place.
    Unchanged,
    /// After this much time from now.
    After(Duration),
}

pub(crate) const MAX_ATTEMPTS_EXCEEDED: &str = "Max attempts exceeded";
pub(crate) const MAX_RETRIES_EXCEEDED: &str = "Max retries exceeded";
pub(crate) const HANDLER_ERROR: &str = "Handler error";
/// Reasons that begin so go on with the type.
pub(crate) const NO_HANDLER: &str = "No handler for event";
pub(crate) const EXPIRED: &str = "Expired before it could start";

/// Decides on what a worker reported. `chance`, from 0 to 1, spreads retries.
pub(crate) fn decide(outcome: &Outcome, live: &LiveDelivery, policy: &Policy, chance: f64) -> (Action, Transition) {
    match outcome {
        Outcome::Done => (Action::Completed, Transition::End { forget: policy.history == History::None }),
        Outcome::DoneWithErrors => (Action::CompletedWithErrors, Transition::End { forget: false }),
        Outcome::Retry { after } => retry(*after, live, policy, chance),
        Outcome::Snooze { delay } => {
            let pass_group = live.group_id.is_some() && policy.group_failure == GroupFailurePolicy::Continue;
            let when = When::After(*delay);
            (Action::Snoozed, Transition::Requeue { when, failed: false, free: true, pass_group })
        }
        Outcome::Release => (Action::Released, give_back()),
        Outcome::Dead { reason } => give_up(reason.clone(), policy),
        Outcome::Unhandled => unhandled(live, policy),
    }
}

/// Nothing was done with it: it keeps its place, and the acquisition does not count.
pub(crate) fn give_back() -> Transition {
    Transition::Requeue { when: When::Unchanged, failed: false, free: true, pass_group: false }
}

fn retry(after: Option<Duration>, live: &LiveDelivery, policy: &Policy, chance: f64) -> (Action, Transition) {
    let failures = live.retry_count.saturating_add(1);
    if live.max_retries.is_some_and(|max| failures >= max) {
        let reason = if live.max_retries == Some(0) { HANDLER_ERROR } else { MAX_RETRIES_EXCEEDED };
        return give_up(reason.to_owned(), policy);
    }
    if live.attempts >= live.attempts_limit {
        return (Action::Failed, poisoned(true));
    }
    let delay = after.unwrap_or_else(|| policy.backoff.delay(failures, policy.lease(), chance));
    let pass_group = live.group_id.is_some() && policy.group_failure == GroupFailurePolicy::Continue;
    let when = When::After(delay);
    (Action::Failed, Transition::Requeue { when, failed: true, free: false, pass_group })
}

fn give_up(reason: String, policy: &Policy) -> (Action, Transition) {
    match policy.exhausted {
        ExhaustedPolicy::DeadLetter => {
            (Action::Failed, Transition::Bury { status: Status::Failed, reason, failed: true })
        }
        ExhaustedPolicy::CompleteWithErrors => (Action::CompletedWithErrors, Transition::End { forget: false }),
    }
}

fn unhandled(live: &LiveDelivery, policy: &Policy) -> (Action, Transition) {
    if policy.unhandled == UnhandledPolicy::DeadLetter || live.attempts >= live.attempts_limit {
        let reason = format!("{NO_HANDLER} {}", live.event_type);
        return (Action::Failed, Transition::Bury { status: Status::Failed, reason, failed: false });
    }
    let when = When::After(policy.lease());
    (Action::Released, Transition::Requeue { when, failed: false, free: false, pass_group: false })
}

/// Decides on a delivery whose lease ran out.
pub(crate) fn decide_abandoned(live: &LiveDelivery) -> (Action, Transition) {
    if live.attempts >= live.attempts_limit {
        return (Action::Abandoned, poisoned(false));
    }
    let when = When::Unchanged;
    (Action::Abandoned, Transition::Requeue { when, failed: false, free: false, pass_group: false })
}

fn poisoned(failed: bool) -> Transition {
    Transition::Bury { status: Status::Failed, reason: MAX_ATTEMPTS_EXCEEDED.to_owned(), failed }
}

/// Where a delivery stands that left the queue with this.
pub(crate) fn status_after(action: Action) -> Status {
    match action {
        Action::Completed => Status::Completed,
        Action::CompletedWithErrors => Status::CompletedWithErrors,
        Action::Cancelled => Status::Cancelled,
        Action::Expired => Status::Expired,
        _ => Status::Failed,
    }
}

/// Where something that happened to a delivery led to; `again`: it is, or was, to be tried again.
pub(crate) fn status_led_to(action: Action, again: bool) -> Status {
    match action {
        Action::Published | Action::Redriven => Status::Pending,
        Action::Picked | Action::Started => Status::Processing,
        _ if again => Status::Pending,
        _ => status_after(action),
    }
}

/// Decides on a waiting delivery whose deadline has passed.
pub(crate) fn decide_expired() -> (Action, Transition) {
    let reason = EXPIRED.to_owned();
    (Action::Expired, Transition::Bury { status: Status::Expired, reason, failed: false })
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

    fn requeue(ms: u64, failed: bool, free: bool, pass_group: bool) -> Transition {
        Transition::Requeue { when: When::After(Duration::from_millis(ms)), failed, free, pass_group }
    }

    fn bury(reason: &str, failed: bool) -> Transition {
        Transition::Bury { status: Status::Failed, reason: reason.into(), failed }
    }

    #[test]
    fn every_outcome_has_its_transition() {
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
            (again(), "tags", 3, 2, Some(3), Action::Failed, bury(MAX_RETRIES_EXCEEDED, true)),
            (again(), "bus", 1, 0, Some(0), Action::Failed, bury(HANDLER_ERROR, true)),
            (again(), "queue", 1, 0, None, Action::Failed, requeue(60_000, true, false, false)),
            (again(), "queue", 20, 19, None, Action::Failed, bury(MAX_ATTEMPTS_EXCEEDED, true)),
            (again(), "outbox", 1, 0, Some(3), Action::Failed, requeue(0, true, false, true)),
            (soon, "tags", 1, 0, Some(3), Action::Failed, requeue(5, true, false, false)),
            (dead(), "default", 1, 0, Some(3), Action::Failed, bury("no such user", true)),
            (dead(), "queue", 1, 0, None, Action::CompletedWithErrors, end(false)),
            (snooze, "default", 20, 0, Some(3), Action::Snoozed, requeue(9, false, true, false)),
            (Unhandled, "core", 1, 0, Some(0), Action::Failed, bury("No handler for event t", false)),
            (Unhandled, "bus", 1, 0, Some(0), Action::Released, requeue(300_000, false, false, false)),
            (Unhandled, "bus", 20, 0, Some(0), Action::Failed, bury("No handler for event t", false)),
        ];
        for (outcome, preset, attempts, retry_count, max_retries, action, transition) in table {
            let policy = Policy::preset(preset).unwrap();
            let decided = decide(&outcome, &live(attempts, retry_count, max_retries), &policy, 0.0);
            assert_eq!(decided, (action, transition), "{outcome:?} under {preset}");
        }
    }

    #[test]
    fn a_released_delivery_keeps_its_place_and_its_attempt_is_free() {
        let decided = decide(&Outcome::Release, &live(20, 0, None), &Policy::default(), 0.0);
        let when = When::Unchanged;
        let kept = Transition::Requeue { when, failed: false, free: true, pass_group: false };
        assert_eq!(decided, (Action::Released, kept));
    }

    #[test]
    fn an_abandoned_delivery_comes_back_until_it_is_poison() {
        let (action, transition) = decide_abandoned(&live(19, 0, None));
        assert_eq!(action, Action::Abandoned);
        assert!(matches!(transition, Transition::Requeue { when: When::Unchanged, free: false, .. }));
        assert_eq!(decide_abandoned(&live(20, 0, None)).1, bury(MAX_ATTEMPTS_EXCEEDED, false));
    }
}
