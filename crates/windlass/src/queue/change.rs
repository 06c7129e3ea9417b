//! State changes of live deliveries: built here, applied by the store, then counted, notified and logged here.

use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::queue::Core;
use crate::queue::decide::Transition;
use crate::queue::outcome::{Action, Attempt};
use crate::store::{AppliedChanges, AttemptRecord, ChangeGuard, DeliveryChange};

/// A change without a worker's report.
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

/// Applies changes; `None` where the guard did not hold.
pub(crate) async fn apply(core: &Core, namespace: &str, changes: &[DeliveryChange]) -> Result<Vec<Option<Attempt>>> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let applied = core.store.transition(namespace, changes, core.clock.overridden()).await?;
    after_commit(core, namespace, changes, &applied);
    Ok(applied.attempts)
}

/// Notifies waiting claims, counts and logs. Every committed change passes through here, also one that was committed in a
/// handler's transaction.
pub(crate) fn after_commit(core: &Core, namespace: &str, changes: &[DeliveryChange], applied: &AppliedChanges) {
    core.wakes.notify(namespace, applied.freed.iter().copied());
    let changed = changes.iter().zip(&applied.attempts);
    let changed = changed.filter_map(|(change, attempt)| Some((&*change.live.event_type, change, attempt.as_ref()?)));
    let changed: Vec<(&str, &DeliveryChange, &Attempt)> = changed.collect();
    core.count_changed(namespace, &changed);
    changed.iter().for_each(|(event_type, change, attempt)| log(namespace, event_type, change, attempt));
}

fn log(namespace: &str, event_type: &str, change: &DeliveryChange, record: &Attempt) {
    let Attempt { event_id, subscription, attempt, .. } = record;
    let worker_id = record.worker_id.as_deref().unwrap_or("");
    let error = record.error_message.as_deref().unwrap_or("");
    macro_rules! say {
        ($level:ident, $($rest:tt)+) => {
            tracing::$level!(namespace, event_id, "type" = event_type, subscription, worker_id, attempt, $($rest)+)
        };
    }
    match (record.action, &change.transition) {
        (_, Transition::Bury { reason, .. }) => {
            say!(error, reason, error, "an event failed and is a dead letter now")
        }
        (Action::CompletedWithErrors, _) => say!(error, error, "an event was completed with errors"),
        (Action::Failed, Transition::Requeue { .. }) => {
            let next_retry_at = record.next_retry_at.map(|at| at.to_rfc3339()).unwrap_or_default();
            say!(warn, next_retry_at, error, "an event failed and will be retried");
        }
        (Action::Abandoned, _) => say!(warn, "the lease of an event expired; it will be redelivered"),
        (action, _) => say!(debug, %action, "an event was processed"),
    }
}

/// As [`apply`]; only how many guards held.
pub(crate) async fn apply_counted(core: &Core, namespace: &str, changes: &[DeliveryChange]) -> Result<usize> {
    Ok(apply(core, namespace, changes).await?.iter().flatten().count())
}
