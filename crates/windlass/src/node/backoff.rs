//! Exponential backoff with jitter, for claims and reports that failed.

use std::time::Duration;

pub(super) struct RetryBackoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl RetryBackoff {
    /// After a failed claim. The database may be restarting.
    pub fn for_claims() -> RetryBackoff {
        RetryBackoff::new(Duration::from_secs(2), Duration::from_secs(30))
    }

    /// After a failed report. Shorter, because an outcome waits to be stored.
    pub fn for_reports() -> RetryBackoff {
        RetryBackoff::new(Duration::from_millis(100), Duration::from_secs(5))
    }

    fn new(min: Duration, max: Duration) -> RetryBackoff {
        RetryBackoff { min, max, next: min }
    }

    pub fn reset(&mut self) {
        self.next = self.min;
    }

    /// Jittered, so that nodes that failed at the same time do not retry at the same time.
    pub async fn wait(&mut self) {
        let delay = self.next.mul_f64(0.75 + 0.5 * fastrand::f64());
        self.next = (self.next * 2).min(self.max);
        tokio::time::sleep(delay).await;
    }
}
