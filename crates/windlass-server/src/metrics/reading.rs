//! Reading the database for the metrics: one read at a time. Whoever asks waits for it, but not longer than he would for
//! his answer; a read that takes longer goes on, and meanwhile what was read before is shown.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use windlass::Result;

/// Prometheus gives up after 10 s.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Who comes to a read that others have waited for long enough waits no longer than this.
const WAIT_MIN: Duration = Duration::from_millis(100);
/// A read that takes longer than this is given up.
const READ_MAX: Duration = Duration::from_secs(60);
/// Counting takes at most one part in so many of the time.
const READ_SHARE: u32 = 20;

/// What was found in the database, if it answered.
pub(super) struct Read<T> {
    pub found: Option<Arc<T>>,
    pub at: Instant,
    pub took: Duration,
}

impl<T> Read<T> {
    /// The longer it took, the longer it is good for.
    fn is_fresh(&self, max_age: Duration) -> bool {
        let cost = self.found.as_ref().map_or(Duration::ZERO, |_| self.took * READ_SHARE);
        !max_age.is_zero() && self.at.elapsed() < max_age.max(cost)
    }
}

pub(super) struct Reading<T> {
    pub last: Option<Read<T>>,
    under_way: Option<UnderWay<T>>,
}

struct UnderWay<T> {
    begun: Instant,
    read: JoinHandle<Read<T>>,
}

impl<T> Default for Reading<T> {
    fn default() -> Reading<T> {
        Reading { last: None, under_way: None }
    }
}

impl<T: Send + Sync + 'static> Reading<T> {
    /// Reads, unless what was read last is fresh; whether that is done, or takes too long to wait for.
    pub async fn refresh<F>(&mut self, max_age: Duration, read: impl FnOnce() -> F) -> bool
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if self.last.as_ref().is_some_and(|last| last.is_fresh(max_age)) {
            return true;
        }
        let begin = || UnderWay { begun: Instant::now(), read: tokio::spawn(attempt(read())) };
        let under_way = self.under_way.get_or_insert_with(begin);
        let wait = WAIT_MAX.saturating_sub(under_way.begun.elapsed()).max(WAIT_MIN);
        let Ok(ended) = timeout(wait, &mut under_way.read).await else { return false };
        self.under_way = None;
        self.last = ended.ok();
        true
    }
}

async fn attempt<T>(read: impl Future<Output = Result<T>>) -> Read<T> {
    let begun = Instant::now();
    let found = match timeout(READ_MAX, read).await {
        Ok(Ok(found)) => Some(Arc::new(found)),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the metrics do without what is in the database");
            None
        }
        Err(_) => {
            tracing::warn!(after = ?READ_MAX, "the metrics do without what is in the database: it does not answer");
            None
        }
    };
    Read { found, at: Instant::now(), took: begun.elapsed() }
}

#[cfg(test)]
mod tests {
    use windlass::Error;

    use super::*;

    const AGE: Duration = Duration::from_secs(5);

    fn found(reading: &Reading<u32>) -> Option<u32> {
        reading.last.as_ref()?.found.as_deref().copied()
    }

    #[tokio::test(start_paused = true)]
    async fn what_took_long_to_read_is_good_for_longer() {
        let seconds = Duration::from_secs;
        let read = |took, found: bool| Read { found: found.then(|| Arc::new(())), at: Instant::now(), took };
        let table = [
            (seconds(0), seconds(1), true, seconds(5), true),
            (seconds(0), seconds(6), true, seconds(5), false),
            (seconds(1), seconds(15), true, seconds(5), true),
            (seconds(1), seconds(21), true, seconds(5), false),
            // One that failed is tried again soon, however long that took.
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
    async fn a_read_that_takes_long_goes_on_and_nobody_waits_for_it() {
        let mut reading = Reading::default();
        assert!(reading.refresh(AGE, || async { Ok(1) }).await);
        tokio::time::advance(AGE).await;
        let slow = || async {
            tokio::time::sleep(Duration::from_secs(8)).await;
            Ok(2)
        };
        let begun = Instant::now();
        assert!(!reading.refresh(AGE, slow).await);
        assert_eq!((found(&reading), begun.elapsed()), (Some(1), WAIT_MAX));
        // The next one comes to the same read, which has been waited for.
        assert!(!reading.refresh(AGE, || async { Ok(3) }).await);
        assert_eq!((found(&reading), begun.elapsed()), (Some(1), WAIT_MAX + WAIT_MIN));
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(reading.refresh(AGE, || async { Ok(3) }).await);
        assert_eq!(found(&reading), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_or_never_ends_leaves_nothing() {
        let mut reading = Reading::default();
        assert!(reading.refresh(AGE, || async { Ok(1) }).await);
        tokio::time::advance(AGE).await;
        assert!(reading.refresh(AGE, || async { Err(Error::Closed) }).await);
        assert_eq!(found(&reading), None);
        tokio::time::advance(AGE).await;
        assert!(!reading.refresh(AGE, std::future::pending).await);
        tokio::time::sleep(READ_MAX).await;
        assert!(reading.refresh(AGE, || async { Ok(2) }).await);
        assert_eq!(found(&reading), None);
    }
}
