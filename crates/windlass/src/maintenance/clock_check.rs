//! Decides whether retention may trust the database clock. No I/O.
//!
//! A clock that runs ahead makes all history look old. The database therefore stores the time of the last check. If
//! that is long ago, either nothing ran meanwhile or the clock is wrong. In this case nothing is deleted for a day, so
//! that a wrong clock can be noticed and corrected.

use std::time::Duration;

use crate::clock::{Timestamp, after};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The longest trusted time between two checks.
const GAP_MAX: Duration = DAY.saturating_mul(7);
/// How long nothing is deleted after a longer gap.
const HOLD: Duration = DAY;
/// How often a check is stored if nothing else changes.
const STORE_INTERVAL: Duration = Duration::from_secs(3_600);

/// The stored state of the clock check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockCheck {
    /// The time of the last check that was trusted.
    pub trusted: Timestamp,
    /// The time of the last check.
    pub latest: Timestamp,
    /// Set if the last check was not trusted: nothing is deleted before this time.
    pub resume_at: Option<Timestamp>,
}

impl ClockCheck {
    /// The state after a check at `now`.
    pub fn next(previous: Option<ClockCheck>, now: Timestamp) -> ClockCheck {
        let trusted = ClockCheck { trusted: now, latest: now, resume_at: None };
        let Some(previous) = previous else { return trusted };
        // An earlier time is always trusted: it deletes less.
        if now <= after(previous.trusted, GAP_MAX) {
            return trusted;
        }
        let on_hold = ClockCheck { trusted: previous.trusted, latest: now, resume_at: Some(after(now, HOLD)) };
        let Some(resume_at) = previous.resume_at else { return on_hold };
        // The clock jumped forward again, or moved back but not far enough.
        if now > after(previous.latest, GAP_MAX) || after(now, HOLD) < resume_at {
            return on_hold;
        }
        if now >= resume_at { trusted } else { ClockCheck { latest: now, ..previous } }
    }

    /// Whether this state must be stored, given the stored one.
    pub fn must_be_stored(&self, previous: Option<ClockCheck>) -> bool {
        previous.is_none_or(|previous| {
            let gap = (self.latest - previous.latest).abs().to_std().unwrap_or_default();
            self.resume_at != previous.resume_at || gap >= STORE_INTERVAL
        })
    }

    /// Whether this check starts a period without deletions.
    pub fn starts_hold(&self, previous: Option<ClockCheck>) -> bool {
        self.resume_at.is_some() && previous.is_none_or(|previous| previous.resume_at != self.resume_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_hour(hours: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + chrono::TimeDelta::hours(hours)
    }

    fn check(trusted: i64, latest: i64, resume_at: Option<i64>) -> ClockCheck {
        ClockCheck { trusted: at_hour(trusted), latest: at_hour(latest), resume_at: resume_at.map(at_hour) }
    }

    #[test]
    fn clock_that_jumps_forward_is_trusted_after_a_day() {
        let cases = [
            // In hours: the stored state, now, the new state.
            (None, 9_000, check(9_000, 9_000, None)),
            (Some(check(0, 0, None)), 168, check(168, 168, None)),
            (Some(check(0, 0, None)), 169, check(0, 169, Some(193))),
            (Some(check(0, 169, Some(193))), 170, check(0, 170, Some(193))),
            (Some(check(0, 192, Some(193))), 193, check(193, 193, None)),
            // No check for a while.
            (Some(check(0, 169, Some(193))), 300, check(300, 300, None)),
            (Some(check(0, 169, Some(193))), 338, check(0, 338, Some(362))),
            // It jumps again.
            (Some(check(0, 169, Some(193))), 9_000, check(0, 9_000, Some(9_024))),
            // It moves back: far enough, and not.
            (Some(check(0, 9_000, Some(9_024))), 1, check(1, 1, None)),
            (Some(check(0, 9_000, Some(9_024))), 5_000, check(0, 5_000, Some(5_024))),
            (Some(check(100, 100, None)), 50, check(50, 50, None)),
        ];
        for (before, now, then) in cases {
            assert_eq!(ClockCheck::next(before, at_hour(now)), then, "{before:?} at {now}");
        }
    }

    #[test]
    fn only_relevant_changes_are_stored() {
        let before = Some(check(10, 10, None));
        assert!(check(10, 10, None).must_be_stored(None));
        assert!(!check(10, 10, None).must_be_stored(before));
        assert!(check(11, 11, None).must_be_stored(before) && check(9, 9, None).must_be_stored(before));
        assert!(check(10, 10, Some(34)).must_be_stored(before) && check(10, 10, Some(34)).starts_hold(before));
        assert!(!check(10, 11, Some(34)).starts_hold(Some(check(10, 10, Some(34)))));
        assert!(check(10, 10, None).must_be_stored(Some(check(10, 10, Some(34)))));
    }
}
