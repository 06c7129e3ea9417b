//! The workers of a namespace. They are computed from all attempts of the last hour, so the result is cached.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use windlass::{Queue, Result, WorkerView};

use super::shared_cache::SharedCache;

/// A worker that holds events and was silent for longer than this is stale.
const STALE: Duration = Duration::from_secs(5 * 60);

/// Cached workers by namespace.
#[derive(Default)]
pub(crate) struct WorkerCache(SharedCache<String, Vec<WorkerView>>);

impl WorkerCache {
    /// Stale workers first, then those that hold the most events.
    pub(super) async fn get(&self, queue: &Queue) -> Result<Arc<Vec<WorkerView>>> {
        let load = async {
            let mut workers = queue.workers(STALE).await?;
            workers.sort_by_key(|worker| (!worker.stale, Reverse(worker.held)));
            Ok(workers)
        };
        self.0.get(queue.namespace().to_owned(), load).await
    }
}
