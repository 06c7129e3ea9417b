//! What time it is.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::Clock;

/// The instants of this process, in microseconds: never one before another, whatever the system does.
#[derive(Debug)]
pub(super) struct Instants {
    clock: Clock,
    latest: AtomicI64,
}

impl Instants {
    pub fn new(clock: Clock) -> Instants {
        Instants { clock, latest: AtomicI64::new(i64::MIN) }
    }

    pub fn now(&self) -> i64 {
        let now = self.clock.now().timestamp_micros();
        self.latest.fetch_max(now, Ordering::SeqCst).max(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_never_goes_back() {
        let (clock, hand) = Clock::test("2025-01-01T00:00:00Z".parse().unwrap());
        let instants = Instants::new(clock.clone());
        let first = instants.now();
        hand.set(clock.now() - chrono::TimeDelta::hours(1));
        assert_eq!(instants.now(), first);
        hand.advance(Duration::from_secs(3601));
        assert_eq!(instants.now(), first + 1_000_000);
    }
}
