//! The monthly partitions of history: which to create and which to drop. No I/O.

use std::fmt;
use std::str::FromStr;

use chrono::{Datelike, NaiveDate, NaiveTime, TimeDelta};

use crate::clock::Timestamp;

/// A month in UTC, formatted as in the names of partitions: `2026_05`.
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

    pub fn start(self) -> Timestamp {
        let day = NaiveDate::from_ymd_opt(self.year, self.month, 1).unwrap_or(NaiveDate::MAX);
        day.and_time(NaiveTime::MIN).and_utc()
    }

    pub fn end(self) -> Timestamp {
        self.next().start()
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

/// A history table that is partitioned by month.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HistoryTable {
    /// Partitioned by the time of publishing.
    Events,
    /// Partitioned by the time the attempt ended.
    Attempts,
}

impl HistoryTable {
    pub const ALL: [HistoryTable; 2] = [HistoryTable::Events, HistoryTable::Attempts];

    /// The table's name.
    pub fn as_str(self) -> &'static str {
        match self {
            HistoryTable::Events => "events",
            HistoryTable::Attempts => "event_attempts",
        }
    }
}

/// A monthly partition of a history table.
pub(crate) type HistoryPartition = (HistoryTable, Month);

/// How many months ahead partitions are created.
const MONTHS_AHEAD: usize = 2;

/// The missing partitions of this month and the next ones.
pub(crate) fn missing_partitions(found: &[HistoryPartition], now: Timestamp) -> Vec<HistoryPartition> {
    let months = std::iter::successors(Some(Month::of(now)), |month| Some(month.next())).take(MONTHS_AHEAD + 1);
    let wanted = months.flat_map(|month| HistoryTable::ALL.map(|table| (table, month)));
    wanted.filter(|partition| !found.contains(partition)).collect()
}

/// Whether the month is so far ahead that its partition has no rows yet and gets none soon.
pub(crate) fn is_ahead(month: Month, now: Timestamp) -> bool {
    month.start() - now > TimeDelta::days(1)
}

/// The months of a table that ended before a time, oldest first.
pub(crate) fn ended_before(found: &[HistoryPartition], table: HistoryTable, before: Timestamp) -> Vec<Month> {
    let ended = found.iter().filter(|(name, month)| *name == table && month.end() <= before);
    let mut months: Vec<Month> = ended.map(|(_, month)| *month).collect();
    months.sort();
    months
}

/// The months of attempts that may be dropped although the drop of these months of events was postponed. Attempts of a
/// postponed month stay, so that its events keep their complete history.
pub(crate) fn before_postponed(months: Vec<Month>, postponed: &[Month]) -> Vec<Month> {
    months.into_iter().filter(|month| postponed.iter().all(|postponed| month < postponed)).collect()
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
    fn next_month_follows() {
        assert_eq!(month("2025_12").next(), month("2026_01"));
        assert_eq!(month("2026_01").next(), month("2026_02"));
        assert_eq!(Month::of(at("2026-02-28T23:59:59.999999Z")), month("2026_02"));
        assert_eq!(month("2026_02").end(), at("2026-03-01T00:00:00Z"));
        assert!(month("2025_12") < month("2026_01"));
    }

    #[test]
    fn malformed_month_names_are_rejected() {
        for bad in ["", "default", "2026_13", "2026_00", "26_01", "2026_1", "2026-01", "2026_01_dropped", "+2026_01"] {
            assert!(bad.parse::<Month>().is_err(), "{bad}");
        }
    }

    #[test]
    fn partitions_of_this_and_the_next_two_months_are_created() {
        let found = [(HistoryTable::Events, month("2026_11")), (HistoryTable::Attempts, month("2026_12"))];
        let missing = missing_partitions(&found, at("2026-11-30T23:00:00Z"));
        let shown: Vec<String> = missing.iter().map(|(table, month)| format!("{}_{month}", table.as_str())).collect();
        assert_eq!(shown, ["event_attempts_2026_11", "events_2026_12", "events_2027_01", "event_attempts_2027_01"]);
    }

    #[test]
    fn month_is_ahead_until_the_day_before() {
        let cases = [("2026-01-30T23:59:59Z", true), ("2026-01-31T00:00:00Z", false), ("2026-02-05T00:00:00Z", false)];
        for (now, ahead) in cases {
            assert_eq!(is_ahead(month("2026_02"), at(now)), ahead, "{now}");
        }
    }

    #[test]
    fn month_is_dropped_only_after_its_end() {
        let found = ["2026_03", "2026_01", "2026_02"].map(|text| (HistoryTable::Events, month(text)));
        assert_eq!(ended_before(&found, HistoryTable::Events, at("2026-02-28T23:59:59Z")), [month("2026_01")]);
        assert_eq!(
            ended_before(&found, HistoryTable::Events, at("2026-03-01T00:00:00Z")),
            [month("2026_01"), month("2026_02")]
        );
        assert_eq!(ended_before(&found, HistoryTable::Attempts, at("2027-01-01T00:00:00Z")), []);
    }

    #[test]
    fn attempts_are_not_dropped_before_their_events() {
        let months = || ["2026_01", "2026_02", "2026_03"].map(month).to_vec();
        assert_eq!(before_postponed(months(), &[]), months());
        assert_eq!(before_postponed(months(), &[month("2026_02")]), [month("2026_01")]);
        assert_eq!(before_postponed(months(), &[month("2025_02")]), []);
    }
}
