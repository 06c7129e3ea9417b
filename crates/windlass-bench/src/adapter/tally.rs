//! Counts handled events and records their delays.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::payload::{NumberedPayload, micros};
use crate::AnyError;

/// The measurement fails after this long without progress.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Counts the events whose handler succeeded.
pub struct Tally {
    done: AtomicU64,
    expected: u64,
    reached: Notify,
    fail_percent: u64,
    /// The delay of each event, if requested.
    delays: Option<Mutex<Vec<u64>>>,
}

impl Tally {
    pub fn new(expected: usize, fail_percent: u64) -> Tally {
        Tally { done: AtomicU64::new(0), expected: expected as u64, reached: Notify::new(), fail_percent, delays: None }
    }

    pub fn with_delays(expected: usize) -> Tally {
        Tally { delays: Some(Mutex::default()), ..Tally::new(expected, 0) }
    }

    /// Records the start of a handler; returns whether it shall succeed.
    pub fn handle(&self, payload: &NumberedPayload, attempt: u32) -> bool {
        if let Some(delays) = &self.delays {
            let delay = micros().saturating_sub(payload.at);
            delays.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(delay);
        }
        if attempt == 1 && payload.n % 100 < self.fail_percent {
            return false;
        }
        if self.done.fetch_add(1, Ordering::Relaxed) + 1 == self.expected {
            self.reached.notify_one();
        }
        true
    }

    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Until as many as expected succeeded.
    pub async fn reached(&self) -> Result<(), AnyError> {
        let mut before = self.done();
        while self.done() < self.expected {
            if tokio::time::timeout(STALL_TIMEOUT, self.reached.notified()).await.is_err() && self.done() == before {
                return Err(
                    format!("nothing handled for {STALL_TIMEOUT:?}, after {before} of {}", self.expected).into()
                );
            }
            before = self.done();
        }
        Ok(())
    }

    pub fn take_delays(&self) -> Vec<u64> {
        let delays = self.delays.as_ref().map(|delays| delays.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        delays.map(|mut delays| std::mem::take(&mut *delays)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::payload::payloads;

    #[tokio::test]
    async fn only_first_attempts_fail_and_only_successes_count() {
        let (tally, events) = (Tally::new(200, 10), payloads(200, 100));
        let failed: Vec<_> = events.iter().filter(|event| !tally.handle(event, 1)).collect();
        assert_eq!((failed.len(), tally.done()), (20, 180));
        assert!(failed.iter().all(|event| tally.handle(event, 2)));
        tally.reached().await.unwrap();
    }
}
