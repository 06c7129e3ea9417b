//! Work that must not be cut off by closing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How much of it is under way.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Arc<Count>);

/// A piece of it, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    pieces: AtomicUsize,
    none: Notify,
}

impl InFlight {
    pub fn new() -> InFlight {
        InFlight::default()
    }

    pub fn begin(&self) -> InFlightGuard {
        self.0.pieces.fetch_add(1, Ordering::SeqCst);
        InFlightGuard(self.0.clone())
    }

    /// Ready when there is none.
    pub async fn idle(&self) {
        loop {
            let mut none = std::pin::pin!(self.0.none.notified());
            // Whoever ends from here on is heard.
            none.as_mut().enable();
            if self.0.pieces.load(Ordering::SeqCst) == 0 {
                return;
            }
            none.await;
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if self.0.pieces.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
