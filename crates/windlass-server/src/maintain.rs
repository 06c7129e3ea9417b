//! The upkeep of a running server. Every server does it; the library sees to it that each change
//! happens once.

use std::time::Duration;

use windlass::{Queue, Result};

/// A backfill goes on by itself only if whoever began it died, and leftovers are in nobody's way: looking for them now
/// and then is enough.
const SLOW_ROUNDS: u64 = 30;
/// After a failure the next round waits at least this long, twice as long after each further one, …
const RETRY_MIN: Duration = Duration::from_secs(2);
/// … and at most this long.
const RETRY_MAX: Duration = Duration::from_secs(30);

pub(crate) async fn run(queue: Queue, every: Duration) {
    let mut wait = every;
    for round in 1.. {
        // Jittered, so that servers started together do not all come at once.
        tokio::time::sleep(wait.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
        wait = match maintain_once(&queue, round % SLOW_ROUNDS == 0).await {
            Ok(()) => every,
            Err(error) => {
                let next = (wait * 2).clamp(RETRY_MIN, RETRY_MAX);
                tracing::warn!(%error, again_in = ?next, "upkeep failed");
                next
            }
        };
    }
}

/// One round over all namespaces. A namespace that fails does not keep the others from theirs.
async fn maintain_once(queue: &Queue, slow: bool) -> Result<()> {
    let mut result = Ok(());
    for namespace in queue.namespaces().await? {
        let namespace = queue.in_namespace(&namespace.namespace)?;
        if let Err(error) = namespace.upkeep_once(slow).await {
            tracing::debug!(%error, namespace = namespace.namespace(), "upkeep of a namespace failed");
            result = Err(error);
        }
    }
    result
}
