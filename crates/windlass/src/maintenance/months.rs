//! The months by which history is kept: which to make, and which to drop. No I/O.

use std::fmt;
use std::str::FromStr;

use chrono::{Datelike, NaiveDate, NaiveTime, TimeDelta};

use crate::clock::Timestamp;

/// A month, in UTC. It is written as in the names of partitions: `2026_05`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Month {
    year: i32,
    month: u32,
}

impl Month {
    pub fn of(at: Timestamp) -> Month {
        Month { year: at.year(), month: at.month() }
    }

    pub fn next(self) -> Month {
        match self.month {
            12 => Month { year: self.year + 1, month: 1 },
            month => Month { year: self.year, month: month + 1 },
        }
    }

    pub fn begins(self) -> Timestamp {
        let day = NaiveDate::from_ymd_opt(self.year, self.month, 1).unwrap_or(NaiveDate::MAX);
        day.and_time(NaiveTime::MIN).and_utc()
    }

    pub fn ends(self) -> Timestamp {
        self.next().begins()
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}_{:02}", self.year, self.month)
    }
}

impl FromStr for Month {
    type Err = ();

    fn from_str(text: &str) -> Result<Month, ()> {
        let (year, month) = text.split_once('_').ok_or(())?;
        let month = Month { year: year.parse().map_err(drop)?, month: month.parse().map_err(drop)? };
        let is_month = (1..=12).contains(&month.month) && (0..=9999).contains(&month.year);
        if is_month && month.to_string() == text { Ok(month) } else { Err(()) }
    }
}

/// What is kept by months.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kept {
    /// By when they were published.
    Events,
    /// By when they ended.
    Attempts,
}

impl Kept {
    pub const ALL: [Kept; 2] = [Kept::Events, Kept::Attempts];

    /// Its table.
    pub fn as_str(self) -> &'static str {
        match self {
            Kept::Events => "events",
            Kept::Attempts => "event_attempts",
        }
    }
}

/// A part of the history.
pub(crate) type Part = (Kept, Month);

/// How many months are made before they come.
const MONTHS_AHEAD: usize = 2;

/// The parts of this month and the next ones that are not there.
pub(crate) fn missing(found: &[Part], now: Timestamp) -> Vec<Part> {
    let months = std::iter::successors(Some(Month::of(now)), |month| Some(month.next())).take(MONTHS_AHEAD + 1);
    let wanted = months.flat_map(|month| Kept::ALL.map(|kept| (kept, month)));
    wanted.filter(|part| !found.contains(part)).collect()
}

/// Whether nothing can have happened in it yet, and nothing will soon.
pub(crate) fn is_ahead(month: Month, now: Timestamp) -> bool {
    month.begins() - now > TimeDelta::days(1)
}

/// The months that ended before this instant, the oldest first.
pub(crate) fn over(found: &[Part], of: Kept, before: Timestamp) -> Vec<Month> {
    let of_them = found.iter().filter(|(kept, month)| *kept == of && month.ends() <= before);
    let mut months: Vec<Month> = of_them.map(|(_, month)| *month).collect();
    months.sort();
    months
}

/// Those of the attempts' months that may go where these months of events are only put off: until they go, their events
/// are seen as they were.
pub(crate) fn before_all(months: Vec<Month>, put_off: &[Month]) -> Vec<Month> {
    months.into_iter().filter(|month| put_off.iter().all(|left| month < left)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn month(text: &str) -> Month {
        text.parse().unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn months_follow_each_other() {
        assert_eq!(month("2025_12").next(), month("2026_01"));
        assert_eq!(month("2026_01").next(), month("2026_02"));
        assert_eq!(Month::of(at("2026-02-28T23:59:59.999999Z")), month("2026_02"));
        assert_eq!(month("2026_02").ends(), at("2026-03-01T00:00:00Z"));
        assert!(month("2025_12") < month("2026_01"));
    }

    #[test]
    fn only_whole_names_are_months() {
        for bad in ["", "default", "2026_13", "2026_00", "26_01", "2026_1", "2026-01", "2026_01_dropped", "+2026_01"] {
            assert!(bad.parse::<Month>().is_err(), "{bad}");
        }
    }

    #[test]
    fn this_month_and_the_next_two_are_made() {
        let found = [(Kept::Events, month("2026_11")), (Kept::Attempts, month("2026_12"))];
        let missing = missing(&found, at("2026-11-30T23:00:00Z"));
        let shown: Vec<String> = missing.iter().map(|(kept, month)| format!("{}_{month}", kept.as_str())).collect();
        assert_eq!(shown, ["event_attempts_2026_11", "events_2026_12", "events_2027_01", "event_attempts_2027_01"]);
    }

    #[test]
    fn a_month_is_ahead_until_the_day_before() {
        let cases = [("2026-01-30T23:59:59Z", true), ("2026-01-31T00:00:00Z", false), ("2026-02-05T00:00:00Z", false)];
        for (now, ahead) in cases {
            assert_eq!(is_ahead(month("2026_02"), at(now)), ahead, "{now}");
        }
    }

    #[test]
    fn a_month_is_over_when_all_of_it_is() {
        let found = ["2026_03", "2026_01", "2026_02"].map(|text| (Kept::Events, month(text)));
        assert_eq!(over(&found, Kept::Events, at("2026-02-28T23:59:59Z")), [month("2026_01")]);
        assert_eq!(over(&found, Kept::Events, at("2026-03-01T00:00:00Z")), [month("2026_01"), month("2026_02")]);
        assert_eq!(over(&found, Kept::Attempts, at("2027-01-01T00:00:00Z")), []);
    }

    #[test]
    fn attempts_do_not_go_before_their_events() {
        let months = || ["2026_01", "2026_02", "2026_03"].map(month).to_vec();
        assert_eq!(before_all(months(), &[]), months());
        assert_eq!(before_all(months(), &[month("2026_02")]), [month("2026_01")]);
        assert_eq!(before_all(months(), &[month("2025_02")]), []);
    }
}
