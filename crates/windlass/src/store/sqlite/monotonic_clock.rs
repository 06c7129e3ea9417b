//! A clock that never goes back.

use std::sync::Mutex;
use std::time::Instant;

use crate::clock::{Clock, micros};
use crate::queue::wake::lock;

/// The current time in microseconds. It never decreases within this process. While the system clock is behind the last
/// value, time advances from that value at its usual pace.
#[derive(Debug)]
pub(super) struct MonotonicClock {
    clock: Clock,
    latest: Mutex<(i64, Instant)>,
}

impl MonotonicClock {
    pub fn new(clock: Clock) -> MonotonicClock {
        MonotonicClock { clock, latest: Mutex::new((i64::MIN, Instant::now())) }
    }

    pub fn now(&self) -> i64 {
        let now = self.clock.now().timestamp_micros();
        let mut latest = lock(&self.latest);
        let (before, at) = *latest;
        let passed = if self.clock.overridden().is_none() { micros(at.elapsed()) } else { 0 };
        let now = if now >= before { now } else { before.saturating_add(passed) };
        *latest = (now, Instant::now());
        now
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_never_goes_back() {
        let (clock, hand) = Clock::test("2025-01-01T00:00:00Z".parse().unwrap());
        let instants = MonotonicClock::new(clock.clone());
        let first = instants.now();
        hand.set(clock.now() - chrono::TimeDelta::hours(1));
        assert_eq!(instants.now(), first);
        hand.advance(Duration::from_secs(3601));
        assert_eq!(instants.now(), first + 1_000_000);
    }
}
