//! Whether the clock is believed by which history is deleted. No I/O.
//!
//! A clock that runs ahead makes everything look old. So the database remembers what time it was when history was last
//! looked at. Where that is long ago, nothing ran meanwhile, or the clock is wrong: nobody can tell. Then nothing is deleted
//! for a day, in which a wrong clock may be noticed and put back.

use std::time::Duration;

use crate::clock::{Timestamp, after};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// So much may pass between two looks.
const GAP_MAX: Duration = DAY.saturating_mul(7);
/// How long nothing is deleted after more than that.
const WAIT: Duration = DAY;
/// A look is written down if the last one is older than this.
const NOTED_EVERY: Duration = Duration::from_secs(3_600);

/// What the database remembers of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The last instant that was believed.
    pub believed: Timestamp,
    /// The last instant of all.
    pub latest: Timestamp,
    /// Later than was to be believed; nothing is deleted before this.
    pub resume_at: Option<Timestamp>,
}

impl Seen {
    /// What is remembered after a look at this instant.
    pub fn next(seen: Option<Seen>, now: Timestamp) -> Seen {
        let believed = Seen { believed: now, latest: now, resume_at: None };
        let Some(seen) = seen else { return believed };
        // Earlier than before is always believed: less is deleted by it.
        if now <= after(seen.believed, GAP_MAX) {
            return believed;
        }
        let again = Seen { believed: seen.believed, latest: now, resume_at: Some(after(now, WAIT)) };
        let Some(resume_at) = seen.resume_at else { return again };
        // Another leap, or back but not far enough.
        if now > after(seen.latest, GAP_MAX) || after(now, WAIT) < resume_at {
            return again;
        }
        if now >= resume_at { believed } else { Seen { latest: now, ..seen } }
    }

    /// Whether this must be written down, where that is what was remembered.
    pub fn is_news(&self, before: Option<Seen>) -> bool {
        before.is_none_or(|before| {
            let apart = (self.latest - before.latest).abs().to_std().unwrap_or_default();
            self.resume_at != before.resume_at || apart >= NOTED_EVERY
        })
    }

    /// Whether it is only now that the clock is not believed.
    pub fn is_doubt(&self, before: Option<Seen>) -> bool {
        self.resume_at.is_some() && before.is_none_or(|before| before.resume_at != self.resume_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(hours: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + chrono::TimeDelta::hours(hours)
    }

    fn seen(believed: i64, latest: i64, resume_at: Option<i64>) -> Seen {
        Seen { believed: day(believed), latest: day(latest), resume_at: resume_at.map(day) }
    }

    #[test]
    fn a_clock_that_leaps_is_believed_after_a_day() {
        let cases = [
            // Everything is in hours: before, now, then.
            (None, 9_000, seen(9_000, 9_000, None)),
            (Some(seen(0, 0, None)), 168, seen(168, 168, None)),
            (Some(seen(0, 0, None)), 169, seen(0, 169, Some(193))),
            (Some(seen(0, 169, Some(193))), 170, seen(0, 170, Some(193))),
            (Some(seen(0, 192, Some(193))), 193, seen(193, 193, None)),
            // Nobody looked for a while.
            (Some(seen(0, 169, Some(193))), 300, seen(300, 300, None)),
            (Some(seen(0, 169, Some(193))), 338, seen(0, 338, Some(362))),
            // It leaps again.
            (Some(seen(0, 169, Some(193))), 9_000, seen(0, 9_000, Some(9_024))),
            // It is put back: far enough, and not.
            (Some(seen(0, 9_000, Some(9_024))), 1, seen(1, 1, None)),
            (Some(seen(0, 9_000, Some(9_024))), 5_000, seen(0, 5_000, Some(5_024))),
            (Some(seen(100, 100, None)), 50, seen(50, 50, None)),
        ];
        for (before, now, then) in cases {
            assert_eq!(Seen::next(before, day(now)), then, "{before:?} at {now}");
        }
    }

    #[test]
    fn only_what_matters_is_written_down() {
        let before = Some(seen(10, 10, None));
        assert!(seen(10, 10, None).is_news(None));
        assert!(!seen(10, 10, None).is_news(before));
        assert!(seen(11, 11, None).is_news(before) && seen(9, 9, None).is_news(before));
        assert!(seen(10, 10, Some(34)).is_news(before) && seen(10, 10, Some(34)).is_doubt(before));
        assert!(!seen(10, 11, Some(34)).is_doubt(Some(seen(10, 10, Some(34)))));
        assert!(seen(10, 10, None).is_news(Some(seen(10, 10, Some(34)))));
    }
}
