//! State changes of pending and processing deliveries: builds them, has the store apply them, then notifies, counts and
//! logs them.

use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::queue::Core;
use crate::queue::decide::Transition;
use crate::queue::outcome::{Action, Attempt};
use crate::store::{AppliedChanges, AttemptRecord, ChangeGuard, DeliveryChange};

/// A change that does not come from a worker's report.
pub(crate) fn change(
    live: LiveDelivery,
    guard: ChangeGuard,
    (action, transition): (Action, Transition),
) -> DeliveryChange {
    DeliveryChange {
        live,
        guard,
        action,
        transition,
        record: AttemptRecord::default(),
        results: Vec::new(),
        succeeded: false,
    }
}

/// Applies changes. Returns the recorded attempts; `None` where the guard did not hold.
pub(crate) async fn apply(core: &Core, namespace: &str, changes: &[DeliveryChange]) -> Result<Vec<Option<Attempt>>> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let applied = core.store.transition(namespace, changes, core.clock.overridden()).await?;
    after_commit(core, namespace, changes, &applied);
    Ok(applied.attempts)
}

/// Notifies waiting claims, counts and logs. Runs for every committed change, including those that a handler's
/// transaction committed.
pub(crate) fn after_commit(core: &Core, namespace: &str, changes: &[DeliveryChange], applied: &AppliedChanges) {
    core.wakes.notify(namespace, applied.ready_lanes.iter().copied());
    let changed = changes.iter().zip(&applied.attempts);
    let changed = changed.filter_map(|(change, attempt)| Some((&*change.live.event_type, change, attempt.as_ref()?)));
    let changed: Vec<(&str, &DeliveryChange, &Attempt)> = changed.collect();
    core.count_changed(namespace, &changed);
    changed.iter().for_each(|(event_type, change, attempt)| log(namespace, event_type, change, attempt));
}

fn log(namespace: &str, event_type: &str, change: &DeliveryChange, recorded: &Attempt) {
    let Attempt { event_id, subscription, attempt, .. } = recorded;
    let worker_id = recorded.worker_id.as_deref().unwrap_or("");
    let error = recorded.error_message.as_deref().unwrap_or("");
    macro_rules! log_at {
        ($level:ident, $($rest:tt)+) => {
            tracing::$level!(namespace, event_id, "type" = event_type, subscription, worker_id, attempt, $($rest)+)
        };
    }
    match (recorded.action, &change.transition) {
        (_, Transition::DeadLetter { reason, .. }) => {
            log_at!(error, reason, error, "an event failed and is a dead letter now")
        }
        (Action::CompletedWithErrors, _) => log_at!(error, error, "an event was completed with errors"),
        (Action::Failed, Transition::Requeue { .. }) => {
            let next_retry_at = recorded.next_retry_at.map(|at| at.to_rfc3339()).unwrap_or_default();
            log_at!(warn, next_retry_at, error, "an event failed and will be retried");
        }
        (Action::Abandoned, _) => log_at!(warn, "the lease of an event expired; it will be redelivered"),
        (action, _) => log_at!(debug, %action, "an event was processed"),
    }
}

/// Applies changes. Returns how many guards held.
pub(crate) async fn apply_counted(core: &Core, namespace: &str, changes: &[DeliveryChange]) -> Result<usize> {
    Ok(apply(core, namespace, changes).await?.iter().flatten().count())
}
