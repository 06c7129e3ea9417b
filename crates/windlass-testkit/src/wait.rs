//! Waits for conditions that other tasks or processes make true.

use std::panic::Location;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Processes may have to start first.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(90);
const INTERVAL: Duration = Duration::from_millis(5);
/// An attempt is a request, or reads files.
const LONG_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until the condition holds, and fails the test after 30 seconds.
pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < TIMEOUT, "timed out waiting for: {what}");
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Repeats the attempt until it returns a value, and fails the test after 30 seconds.
#[track_caller]
pub fn until<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let started = Instant::now();
        loop {
            if let Some(value) = attempt().await {
                return value;
            }
            assert!(started.elapsed() < TIMEOUT, "timed out waiting at {caller}");
            tokio::time::sleep(LONG_INTERVAL).await;
        }
    }
}

/// Like [`until`], for tests without a runtime, and with 90 seconds.
pub fn wait_until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(started.elapsed() < PROCESS_TIMEOUT, "timed out waiting for: {what}");
        std::thread::sleep(LONG_INTERVAL);
    }
}
