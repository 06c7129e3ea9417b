//! Counts running work, so that closing can wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The number of pieces of work that are running.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Arc<InFlightCount>);

/// Counts as one piece of running work until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<InFlightCount>);

#[derive(Debug, Default)]
struct InFlightCount {
    count: AtomicUsize,
    became_idle: Notify,
}

impl InFlight {
    pub fn new() -> InFlight {
        InFlight::default()
    }

    pub fn begin(&self) -> InFlightGuard {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        InFlightGuard(self.0.clone())
    }

    /// Waits until no work is running.
    pub async fn wait_until_idle(&self) {
        loop {
            let mut became_idle = std::pin::pin!(self.0.became_idle.notified());
            // Register for notifications before reading the count, so that none is missed.
            became_idle.as_mut().enable();
            if self.0.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            became_idle.await;
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.became_idle.notify_waiters();
        }
    }
}
