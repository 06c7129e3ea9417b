//! Caches the database read behind the metrics.
//!
//! At most one read runs at a time. Requests wait for it up to [`WAIT_MAX`]. A read that takes longer continues in the
//! background, and requests receive the previous snapshot meanwhile.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use windlass::Result;

/// How long a request waits for a read. Prometheus gives up after 10 s.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a request waits for a read that has been running for [`WAIT_MAX`] already.
const WAIT_MIN: Duration = Duration::from_millis(100);
/// A read that takes longer than this is aborted.
const READ_MAX: Duration = Duration::from_secs(60);
/// Reads use at most one part in this many of the time.
const READ_SHARE: u32 = 20;

/// The result of one read; `value` is `None` if it failed.
pub(super) struct Snapshot<T> {
    pub value: Option<Arc<T>>,
    pub taken_at: Instant,
    pub read_duration: Duration,
}

impl<T> Snapshot<T> {
    /// A read that took longer stays fresh for longer.
    fn is_fresh(&self, max_age: Duration) -> bool {
        let cost = self.value.as_ref().map_or(Duration::ZERO, |_| self.read_duration * READ_SHARE);
        !max_age.is_zero() && self.taken_at.elapsed() < max_age.max(cost)
    }
}

pub(super) struct SnapshotCache<T> {
    pub last: Option<Snapshot<T>>,
    pending: Option<PendingRead<T>>,
}

struct PendingRead<T> {
    started_at: Instant,
    task: JoinHandle<Snapshot<T>>,
}

impl<T> Default for SnapshotCache<T> {
    fn default() -> SnapshotCache<T> {
        SnapshotCache { last: None, pending: None }
    }
}

impl<T: Send + Sync + 'static> SnapshotCache<T> {
    /// Reads again unless the last snapshot is fresh. Returns false if the read is still running.
    pub async fn refresh<F>(&mut self, max_age: Duration, read: impl FnOnce() -> F) -> bool
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if self.last.as_ref().is_some_and(|last| last.is_fresh(max_age)) {
            return true;
        }
        let start = || PendingRead { started_at: Instant::now(), task: tokio::spawn(read_snapshot(read())) };
        let pending = self.pending.get_or_insert_with(start);
        let wait = WAIT_MAX.saturating_sub(pending.started_at.elapsed()).max(WAIT_MIN);
        let Ok(ended) = timeout(wait, &mut pending.task).await else { return false };
        self.pending = None;
        self.last = ended.ok();
        true
    }
}

async fn read_snapshot<T>(read: impl Future<Output = Result<T>>) -> Snapshot<T> {
    let started_at = Instant::now();
    let value = match timeout(READ_MAX, read).await {
        Ok(Ok(value)) => Some(Arc::new(value)),
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot read the database for the metrics");
            None
        }
        Err(_) => {
            tracing::warn!(after = ?READ_MAX, "timed out reading the database for the metrics");
            None
        }
    };
    Snapshot { value, taken_at: Instant::now(), read_duration: started_at.elapsed() }
}

#[cfg(test)]
mod tests {
    use windlass::Error;

    use super::*;

    const AGE: Duration = Duration::from_secs(5);

    fn found(cache: &SnapshotCache<u32>) -> Option<u32> {
        cache.last.as_ref()?.value.as_deref().copied()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_read_stays_fresh_for_longer() {
        let seconds = Duration::from_secs;
        let read = |took, found: bool| Snapshot {
            value: found.then(|| Arc::new(())),
            taken_at: Instant::now(),
            read_duration: took,
        };
        let table = [
            (seconds(0), seconds(1), true, seconds(5), true),
            (seconds(0), seconds(6), true, seconds(5), false),
            (seconds(1), seconds(15), true, seconds(5), true),
            (seconds(1), seconds(21), true, seconds(5), false),
            // A failed read is retried soon, however long it took.
            (seconds(4), seconds(6), false, seconds(5), false),
            (seconds(1), seconds(0), true, seconds(0), false),
        ];
        for (took, age, found, max_age, fresh) in table {
            let read = read(took, found);
            tokio::time::advance(age).await;
            assert_eq!(read.is_fresh(max_age), fresh, "{took:?} {age:?} {found} {max_age:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_read_continues_in_the_background() {
        let mut cache = SnapshotCache::default();
        assert!(cache.refresh(AGE, || async { Ok(1) }).await);
        tokio::time::advance(AGE).await;
        let slow = || async {
            tokio::time::sleep(Duration::from_secs(8)).await;
            Ok(2)
        };
        let started_at = Instant::now();
        assert!(!cache.refresh(AGE, slow).await);
        assert_eq!((found(&cache), started_at.elapsed()), (Some(1), WAIT_MAX));
        // The next request finds the same read, which has used up its waiting time.
        assert!(!cache.refresh(AGE, || async { Ok(3) }).await);
        assert_eq!((found(&cache), started_at.elapsed()), (Some(1), WAIT_MAX + WAIT_MIN));
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(cache.refresh(AGE, || async { Ok(3) }).await);
        assert_eq!(found(&cache), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_or_aborted_read_clears_the_snapshot() {
        let mut cache = SnapshotCache::default();
        assert!(cache.refresh(AGE, || async { Ok(1) }).await);
        tokio::time::advance(AGE).await;
        assert!(cache.refresh(AGE, || async { Err(Error::Closed) }).await);
        assert_eq!(found(&cache), None);
        tokio::time::advance(AGE).await;
        assert!(!cache.refresh(AGE, std::future::pending).await);
        tokio::time::sleep(READ_MAX).await;
        assert!(cache.refresh(AGE, || async { Ok(2) }).await);
        assert_eq!(found(&cache), None);
    }
}
