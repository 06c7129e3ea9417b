//! Decides which due ticks of a schedule fire and which are skipped. No I/O; every search is bounded.

use chrono::TimeDelta;

use super::MissedPolicy;
use super::cron::Rule;
use crate::clock::Timestamp;

/// A tick that is at most this late is not missed, so a short stall loses no tick.
const GRACE: TimeDelta = TimeDelta::seconds(60);

/// Skipped ticks are counted up to this number.
pub(crate) const SKIPPED_MAX: u32 = 1_000;

/// The due ticks of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct DueTicks {
    /// The ticks to fire, oldest first.
    pub fire: Vec<Timestamp>,
    /// The newest skipped tick, if none fires.
    pub last_skipped: Option<Timestamp>,
    /// How many ticks before the first of these are skipped, at most [`SKIPPED_MAX`].
    pub skipped: u32,
    /// The first tick that is not due yet.
    pub next_at: Option<Timestamp>,
}

/// Decides about all ticks from `from` up to `now`. `max` limits the ticks that [`MissedPolicy::All`] backfills.
pub(crate) fn due_ticks(rule: &Rule, missed: MissedPolicy, from: Timestamp, now: Timestamp, max: usize) -> DueTicks {
    let mut due = DueTicks { next_at: rule.after(now), ..DueTicks::default() };
    // Newest first, because there may be too many to visit all of them.
    let newest = rule.before(now + TimeDelta::microseconds(1));
    let back = std::iter::successors(newest, |tick| rule.before(*tick));
    let mut back = back.take_while(|tick| *tick >= from).peekable();
    let is_missed = |tick: Timestamp| now - tick > GRACE;
    let fires = |n: usize, tick: Timestamp| match missed {
        _ if !is_missed(tick) => true,
        MissedPolicy::Skip => false,
        MissedPolicy::Once => n == 0,
        MissedPolicy::All => n < max,
    };
    while let Some(tick) = back.next_if(|tick| fires(due.fire.len(), *tick)) {
        due.fire.push(tick);
    }
    due.fire.reverse();
    if due.fire.is_empty() {
        due.last_skipped = back.next();
    }
    due.skipped = back.take(SKIPPED_MAX as usize).count() as u32;
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-01-01T{text}Z").parse().unwrap_or_else(|_| panic!("{text} is not a time of day"))
    }

    fn decide(cron: &str, missed: MissedPolicy, from: &str, now: &str) -> DueTicks {
        due_ticks(&Rule::parse(cron, "UTC").unwrap(), missed, at(from), at(now), 5)
    }

    #[test]
    fn tick_within_grace_fires_under_every_missed_policy() {
        for missed in [MissedPolicy::Skip, MissedPolicy::Once, MissedPolicy::All] {
            let now = decide("* * * * *", missed, "10:00:00", "10:00:00");
            assert_eq!(
                now,
                DueTicks { fire: vec![at("10:00:00")], next_at: Some(at("10:01:00")), ..DueTicks::default() }
            );
            let minute = decide("* * * * *", missed, "10:00:00", "10:01:00");
            assert_eq!(minute.fire, [at("10:00:00"), at("10:01:00")], "{missed:?}");
            let seconds = decide("*/10 * * * * *", missed, "10:00:00", "10:01:00");
            assert_eq!((seconds.fire.len(), seconds.skipped, seconds.last_skipped), (7, 0, None), "{missed:?}");
            let none = decide("* * * * *", missed, "10:00:00", "09:59:59.999999");
            assert_eq!(none, DueTicks { next_at: Some(at("10:00:00")), ..DueTicks::default() });
        }
    }

    #[test]
    fn missed_ticks_follow_the_missed_policy() {
        use MissedPolicy::*;
        let late = "10:30:30";
        let table = [
            // Every minute, from 10:00: 31 ticks.
            ("* * * * *", Skip, late, vec!["10:30:00"], None, 30),
            ("* * * * *", Skip, "10:30:00.000001", vec!["10:30:00"], None, 30),
            ("* * * * *", Skip, "10:30:00", vec!["10:29:00", "10:30:00"], None, 29),
            ("* * * * *", Once, late, vec!["10:30:00"], None, 30),
            // Ticks within the grace fire; if there are none, the latest missed tick does.
            ("* * * * *", Once, "10:30:00", vec!["10:29:00", "10:30:00"], None, 29),
            ("*/20 * * * *", Once, "10:41:00.000001", vec!["10:40:00"], None, 2),
            ("*/30 * * * * *", Once, "10:03:10", vec!["10:02:30", "10:03:00"], None, 5),
            (
                "*/10 * * * * *",
                All,
                "10:01:20",
                vec!["10:00:20", "10:00:30", "10:00:40", "10:00:50", "10:01:00", "10:01:10", "10:01:20"],
                None,
                2,
            ),
            ("* * * * *", All, late, vec!["10:26:00", "10:27:00", "10:28:00", "10:29:00", "10:30:00"], None, 26),
            // Every half hour: 2 ticks.
            ("*/30 * * * *", Skip, late, vec!["10:30:00"], None, 1),
            ("*/30 * * * *", Skip, "10:31:00.000001", vec![], Some("10:30:00"), 1),
            ("*/30 * * * *", Once, "10:59:00", vec!["10:30:00"], None, 1),
            ("*/30 * * * *", All, "10:59:00", vec!["10:00:00", "10:30:00"], None, 0),
            // One tick, just missed.
            ("0 10 * * *", Skip, "10:01:00", vec!["10:00:00"], None, 0),
            ("0 10 * * *", Skip, "10:01:00.000001", vec![], Some("10:00:00"), 0),
            ("0 10 * * *", Once, "23:00:00", vec!["10:00:00"], None, 0),
            ("0 10 * * *", All, "23:00:00", vec!["10:00:00"], None, 0),
        ];
        for (cron, missed, now, fired, last_skipped, skipped) in table {
            let due = decide(cron, missed, "10:00:00", now);
            let expected: Vec<Timestamp> = fired.into_iter().map(at).collect();
            assert_eq!(
                (due.fire, due.last_skipped, due.skipped),
                (expected, last_skipped.map(at), skipped),
                "{cron} {missed:?} {now}"
            );
        }
    }

    #[test]
    fn tick_that_the_rule_no_longer_has_does_not_fire() {
        let due = decide("0 12 * * *", MissedPolicy::All, "10:00:00", "11:00:00");
        assert_eq!(due, DueTicks { next_at: Some(at("12:00:00")), ..DueTicks::default() });
        // The new rule applies from the stored tick on.
        assert_eq!(decide("0 12 * * *", MissedPolicy::All, "10:00:00", "12:30:00").fire, [at("12:00:00")]);
    }

    #[test]
    fn year_of_missed_seconds_is_not_enumerated() {
        let rule = Rule::parse("* * * * * *", "UTC").unwrap();
        let now = at("10:00:00");
        for (missed, fired) in [(MissedPolicy::Skip, 61), (MissedPolicy::Once, 61), (MissedPolicy::All, 1_000)] {
            let due = due_ticks(&rule, missed, now - TimeDelta::days(365), now, 1_000);
            assert_eq!((due.fire.len(), due.skipped), (fired, SKIPPED_MAX), "{missed:?}");
            assert_eq!((due.fire.last(), due.next_at), (Some(&now), Some(now + TimeDelta::seconds(1))));
        }
    }
}
