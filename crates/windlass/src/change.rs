//! Changes of live deliveries, whoever asks for them: made here, applied by the store.

use crate::decide::Transition;
use crate::delivery::Live;
use crate::error::Result;
use crate::outcome::{Action, Attempt};
use crate::policy::{GroupFailure, Policy};
use crate::queue::Core;
use crate::store::{Change, Guard, Record};
use crate::topology::Topology;

/// A change that nobody reported anything about.
pub(crate) fn change(
    topology: &Topology,
    live: Live,
    guard: Guard,
    (action, transition): (Action, Transition),
) -> Change {
    let pass_group = passes_group(&topology.policy_of(&live));
    Change { live, guard, pass_group, action, transition, record: Record::default(), results: Vec::new() }
}

pub(crate) fn passes_group(policy: &Policy) -> bool {
    policy.group_failure == GroupFailure::Continue
}

/// Applies changes and wakes whoever may now have something to take; `None` where the guard did not hold.
pub(crate) async fn apply(core: &Core, namespace: &str, changes: &[Change]) -> Result<Vec<Option<Attempt>>> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let applied = core.store.transition(namespace, changes, core.clock.overridden()).await?;
    core.wakes.ring(namespace, &applied.freed);
    core.count_changed(namespace, changes, &applied.attempts).await;
    Ok(applied.attempts)
}

/// As [`apply`]; only how many guards held.
pub(crate) async fn apply_counted(core: &Core, namespace: &str, changes: &[Change]) -> Result<usize> {
    Ok(apply(core, namespace, changes).await?.iter().flatten().count())
}
