//! Pauses after failures, each longer than the one before.

use std::time::Duration;

pub(super) struct Pause {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Pause {
    /// The database may be restarting.
    pub fn after_a_failed_claim() -> Pause {
        Pause::new(Duration::from_secs(2), Duration::from_secs(30))
    }

    /// Something waits to be written down.
    pub fn after_a_failed_report() -> Pause {
        Pause::new(Duration::from_millis(100), Duration::from_secs(5))
    }

    fn new(first: Duration, max: Duration) -> Pause {
        Pause { first, max, next: first }
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Nodes that failed together do not come back together.
    pub async fn wait(&mut self) {
        let pause = self.next.mul_f64(0.75 + 0.5 * fastrand::f64());
        self.next = (self.next * 2).min(self.max);
        tokio::time::sleep(pause).await;
    }
}
