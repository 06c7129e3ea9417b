//! The delay before a failed delivery is retried. This is the only implementation of the formula.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::DURATION_MAX;
use crate::error::{Error, Result};
use crate::policy::check_duration_ms;

/// The delay before a failed delivery is retried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Backoff {
    /// No delay.
    None,
    /// The duration of the lease.
    Lease,
    /// A constant delay.
    Fixed {
        /// The delay, in milliseconds.
        delay_ms: u64,
    },
    /// A delay that doubles with each failure, up to a maximum.
    Exponential {
        /// The delay after the first failure, in milliseconds.
        initial_ms: u64,
        /// The maximum delay, in milliseconds.
        max_ms: u64,
        /// The share of the delay that is random, from 0 to 1, so that failures are not retried at the same time.
        #[serde(default)]
        jitter: f64,
    },
}

impl Backoff {
    /// The delay after the failure that brought the count to `failures`; `random` is from 0 to 1.
    pub(crate) fn delay(&self, failures: u32, lease: Duration, random: f64) -> Duration {
        match *self {
            Backoff::None => Duration::ZERO,
            Backoff::Lease => lease,
            Backoff::Fixed { delay_ms } => Duration::from_millis(delay_ms),
            Backoff::Exponential { initial_ms, max_ms, jitter } => {
                let doubled = initial_ms.saturating_mul(1u64 << failures.saturating_sub(1).min(40));
                let full = Duration::from_millis(doubled.min(max_ms));
                full.mul_f64(1.0 - jitter * random)
            }
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match *self {
            Backoff::None | Backoff::Lease => Ok(()),
            Backoff::Fixed { delay_ms } => check_duration_ms("backoff.delay_ms", delay_ms, DURATION_MAX),
            Backoff::Exponential { initial_ms, max_ms, jitter } => {
                check_duration_ms("backoff.initial_ms", initial_ms, DURATION_MAX)?;
                check_duration_ms("backoff.max_ms", max_ms, DURATION_MAX)?;
                if !(0.0..=1.0).contains(&jitter) {
                    return Err(Error::invalid("backoff.jitter", "must be from 0 to 1"));
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_backoff_doubles_up_to_its_maximum() {
        let backoff = Backoff::Exponential { initial_ms: 100, max_ms: 1_000, jitter: 0.5 };
        let waits = [1, 2, 3, 4, 5, 4_000_000_000].map(|n| backoff.delay(n, Duration::ZERO, 0.0).as_millis());
        assert_eq!(waits, [100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(backoff.delay(1, Duration::ZERO, 1.0).as_millis(), 50);
    }
}
