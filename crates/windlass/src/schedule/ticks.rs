//! Which ticks of a schedule happen, and which are passed over. Pure; every search is bounded.

use chrono::TimeDelta;

use super::MissedPolicy;
use super::cron::Rule;
use crate::clock::Timestamp;

/// A tick that is late by no more than this was not missed: a short stall loses nothing.
const GRACE: TimeDelta = TimeDelta::seconds(60);

/// So many passed over ticks are counted.
pub(crate) const SKIPPED_MAX: u32 = 1_000;

/// What becomes of the ticks of a schedule that are due.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Due {
    /// These happen, the oldest first.
    pub happen: Vec<Timestamp>,
    /// Where none happens: the latest that was passed over.
    pub passed: Option<Timestamp>,
    /// How many were passed over before the first of these; no more than [`SKIPPED_MAX`] are counted.
    pub skipped: u32,
    /// The first that is not due yet.
    pub next_at: Option<Timestamp>,
}

/// Decides about all ticks from `from` up to `now`; `max`: the most that [`MissedPolicy::All`] makes up for.
pub(crate) fn due(rule: &Rule, missed: MissedPolicy, from: Timestamp, now: Timestamp, max: usize) -> Due {
    let mut due = Due { next_at: rule.after(now), ..Due::default() };
    // The newest first: there may be more than anybody wants to look at.
    let first = rule.before(now + TimeDelta::microseconds(1));
    let back = std::iter::successors(first, |tick| rule.before(*tick));
    let mut back = back.take_while(|tick| *tick >= from).peekable();
    let late = |tick: Timestamp| now - tick > GRACE;
    let wanted = |n: usize, tick: Timestamp| match missed {
        _ if !late(tick) => true,
        MissedPolicy::Skip => false,
        MissedPolicy::Once => n == 0,
        MissedPolicy::All => n < max,
    };
    while let Some(tick) = back.next_if(|tick| wanted(due.happen.len(), *tick)) {
        due.happen.push(tick);
    }
    due.happen.reverse();
    if due.happen.is_empty() {
        due.passed = back.next();
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

    fn decided(cron: &str, missed: MissedPolicy, from: &str, now: &str) -> Due {
        due(&Rule::parse(cron, "UTC").unwrap(), missed, at(from), at(now), 5)
    }

    #[test]
    fn what_is_hardly_late_happens_under_every_policy() {
        for missed in [MissedPolicy::Skip, MissedPolicy::Once, MissedPolicy::All] {
            let now = decided("* * * * *", missed, "10:00:00", "10:00:00");
            assert_eq!(now, Due { happen: vec![at("10:00:00")], next_at: Some(at("10:01:00")), ..Due::default() });
            let minute = decided("* * * * *", missed, "10:00:00", "10:01:00");
            assert_eq!(minute.happen, [at("10:00:00"), at("10:01:00")], "{missed:?}");
            let seconds = decided("*/10 * * * * *", missed, "10:00:00", "10:01:00");
            assert_eq!((seconds.happen.len(), seconds.skipped, seconds.passed), (7, 0, None), "{missed:?}");
            let none = decided("* * * * *", missed, "10:00:00", "09:59:59.999999");
            assert_eq!(none, Due { next_at: Some(at("10:00:00")), ..Due::default() });
        }
    }

    #[test]
    fn what_was_missed_goes_by_the_policy() {
        use MissedPolicy::*;
        let late = "10:30:30";
        let table = [
            // Every minute, from 10:00: 31 ticks.
            ("* * * * *", Skip, late, vec!["10:30:00"], None, 30),
            ("* * * * *", Skip, "10:30:00.000001", vec!["10:30:00"], None, 30),
            ("* * * * *", Skip, "10:30:00", vec!["10:29:00", "10:30:00"], None, 29),
            ("* * * * *", Once, late, vec!["10:30:00"], None, 30),
            // What was not missed happens; else the latest.
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
            // One tick, a moment too late.
            ("0 10 * * *", Skip, "10:01:00", vec!["10:00:00"], None, 0),
            ("0 10 * * *", Skip, "10:01:00.000001", vec![], Some("10:00:00"), 0),
            ("0 10 * * *", Once, "23:00:00", vec!["10:00:00"], None, 0),
            ("0 10 * * *", All, "23:00:00", vec!["10:00:00"], None, 0),
        ];
        for (cron, missed, now, happen, passed, skipped) in table {
            let due = decided(cron, missed, "10:00:00", now);
            let expected: Vec<Timestamp> = happen.into_iter().map(at).collect();
            assert_eq!(
                (due.happen, due.passed, due.skipped),
                (expected, passed.map(at), skipped),
                "{cron} {missed:?} {now}"
            );
        }
    }

    #[test]
    fn what_the_rule_no_longer_names_does_not_happen() {
        let due = decided("0 12 * * *", MissedPolicy::All, "10:00:00", "11:00:00");
        assert_eq!(due, Due { next_at: Some(at("12:00:00")), ..Due::default() });
        // It goes on by the rule, from where it was.
        assert_eq!(decided("0 12 * * *", MissedPolicy::All, "10:00:00", "12:30:00").happen, [at("12:00:00")]);
    }

    #[test]
    fn a_year_of_seconds_is_not_gone_through() {
        let rule = Rule::parse("* * * * * *", "UTC").unwrap();
        let now = at("10:00:00");
        for (missed, happen) in [(MissedPolicy::Skip, 61), (MissedPolicy::Once, 61), (MissedPolicy::All, 1_000)] {
            let due = due(&rule, missed, now - TimeDelta::days(365), now, 1_000);
            assert_eq!((due.happen.len(), due.skipped), (happen, SKIPPED_MAX), "{missed:?}");
            assert_eq!((due.happen.last(), due.next_at), (Some(&now), Some(now + TimeDelta::seconds(1))));
        }
    }
}
