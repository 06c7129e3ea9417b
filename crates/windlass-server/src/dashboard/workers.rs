//! Who works in a namespace: found among all that ended within the last hour, so gathered for all visitors at once.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use windlass::{Queue, Result, WorkerView};

use super::rested::Rested;

/// A worker that holds something and was silent for longer than this may be gone.
const STALE: Duration = Duration::from_secs(5 * 60);

/// The workers of all namespaces that somebody looks at.
#[derive(Default)]
pub(crate) struct AllWorkers(Rested<String, Vec<WorkerView>>);

impl AllWorkers {
    /// Those that may be gone first, then those that hold the most.
    pub(super) async fn get(&self, queue: &Queue) -> Result<Arc<Vec<WorkerView>>> {
        let gather = async {
            let mut workers = queue.workers(STALE).await?;
            workers.sort_by_key(|worker| (!worker.stale, Reverse(worker.held)));
            Ok(workers)
        };
        self.0.get(queue.namespace().to_owned(), gather).await
    }
}
