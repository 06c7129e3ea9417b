//! Computes the ticks of a cron rule in its time zone, including daylight saving changes.
//!
//! croner finds the wall clock times of a rule; this module converts them to timestamps. Around a clock change there
//! are two kinds of rules:
//! - Periodic rules, whose times of day are the same after a shift by the change (every 15 minutes, every hour). They
//!   follow elapsed time: they tick in both passes of a repeated hour, and have no extra tick for a skipped hour.
//! - Rules for certain times of day. A time in the skipped hour ticks once, at the first timestamp after the gap. A
//!   time in a repeated hour ticks only in the first pass.
//!
//! croner's own time zone support is not used: `0 2,14 * * *` would miss the tick in the skipped hour and tick twice in
//! the repeated one. See the tests.

use std::sync::Arc;

use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, TimeDelta, TimeZone, Timelike};
use chrono_tz::{GapInfo, Tz};
use croner::parser::{CronParser, Seconds, Year};
use croner::{Cron, Weekday};

use self::field::FIELDS;
use crate::clock::Timestamp;
use crate::error::{Error, Result};

mod field;

/// The longest expression, in bytes.
const CRON_BYTES_MAX: usize = 200;

/// The longest name of a time zone, in bytes.
const ZONE_BYTES_MAX: usize = 64;

/// The years in which ticks are searched.
const YEARS: std::ops::Range<i32> = 1900..4000;

/// A cron expression in a time zone.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    cron: Cron,
    zone: Tz,
    /// For each minute of a day, whether the rule ticks in it.
    minutes: Arc<[bool]>,
}

/// A range of wall clock times that a clock change skips or repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClockChange {
    /// The time of the change.
    at: Timestamp,
    /// The first wall clock time that is skipped or repeated.
    begin: NaiveDateTime,
    /// The first wall clock time after the range.
    end: NaiveDateTime,
}

impl ClockChange {
    /// The timestamp of the second occurrence of a repeated wall clock time.
    fn second_occurrence(&self, wall: NaiveDateTime) -> Timestamp {
        self.at + (wall - self.begin)
    }
}

impl Rule {
    /// Parses a rule. Fails if the expression is invalid or never ticks.
    pub fn parse(cron: &str, timezone: &str) -> Result<Rule> {
        let (cron, zone) = (expression(cron)?, zone(timezone)?);
        let ticks_in = |minute: u32| {
            let hour = cron.pattern.hour_match(minute / 60).unwrap_or(false);
            hour && cron.pattern.minute_match(minute % 60).unwrap_or(false)
        };
        let minutes = (0..24 * 60).map(ticks_in).collect();
        Ok(Rule { cron, zone, minutes })
    }

    /// The timestamp in the rule's time zone.
    pub fn local(&self, at: Timestamp) -> DateTime<Tz> {
        at.with_timezone(&self.zone)
    }

    /// The first tick after a timestamp.
    pub fn after(&self, at: Timestamp) -> Option<Timestamp> {
        let at = whole_second(at)?;
        let wall = self.local(at).naive_local();
        match self.repeated(wall) {
            None => self.first_from(self.next(wall, false)?),
            Some(change) if at < change.at => {
                let next = self.next(wall, false)?;
                if next >= change.end
                    && self.is_periodic(change)
                    && let Some(again) = self.next(change.begin, true).filter(|again| *again < change.end)
                {
                    return Some(change.second_occurrence(again));
                }
                self.first_from(next)
            }
            Some(change) => {
                if self.is_periodic(change)
                    && let Some(again) = self.next(wall, false).filter(|again| *again < change.end)
                {
                    return Some(change.second_occurrence(again));
                }
                self.first_from(self.next(change.end, true)?)
            }
        }
    }

    /// The last tick before a timestamp.
    pub fn before(&self, at: Timestamp) -> Option<Timestamp> {
        let whole = whole_second(at)?;
        let at = if whole < at { whole + TimeDelta::seconds(1) } else { whole };
        let wall = self.local(at).naive_local();
        match self.repeated(wall) {
            Some(change) if at >= change.at => {
                if self.is_periodic(change)
                    && let Some(again) = self.previous(wall).filter(|again| *again >= change.begin)
                {
                    return Some(change.second_occurrence(again));
                }
                self.last_to(self.previous(change.end)?, at)
            }
            _ => self.last_to(self.previous(wall)?, at),
        }
    }

    /// The tick at this wall clock time, or the next one if it has none.
    fn first_from(&self, mut wall: NaiveDateTime) -> Option<Timestamp> {
        loop {
            if let Some(instant) = self.zone.from_local_datetime(&wall).earliest() {
                return Some(instant.to_utc());
            }
            let change = self.skipped(wall)?;
            if !self.is_periodic(change) {
                return Some(change.at);
            }
            wall = self.next(change.end, true)?;
        }
    }

    /// The last tick at this wall clock time before `at`, or the previous one if it has none.
    fn last_to(&self, mut wall: NaiveDateTime, at: Timestamp) -> Option<Timestamp> {
        loop {
            if let Some(first) = self.zone.from_local_datetime(&wall).earliest() {
                let again = self.repeated(wall).filter(|change| self.is_periodic(*change));
                let again = again.map(|change| change.second_occurrence(wall)).filter(|again| *again < at);
                return Some(again.unwrap_or(first.to_utc()));
            }
            let change = self.skipped(wall)?;
            if change.at < at && !self.is_periodic(change) {
                return Some(change.at);
            }
            wall = self.previous(change.begin)?;
        }
    }

    fn next(&self, wall: NaiveDateTime, inclusive: bool) -> Option<NaiveDateTime> {
        self.cron.find_next_occurrence(&wall, inclusive).ok().filter(|found| YEARS.contains(&found.year()))
    }

    fn previous(&self, wall: NaiveDateTime) -> Option<NaiveDateTime> {
        self.cron.find_previous_occurrence(&wall, false).ok().filter(|found| YEARS.contains(&found.year()))
    }

    /// The change that skips this wall clock time.
    fn skipped(&self, wall: NaiveDateTime) -> Option<ClockChange> {
        let gap = GapInfo::new(&wall, &self.zone)?;
        let end = gap.end?;
        Some(ClockChange { at: end.to_utc(), begin: gap.begin?.0, end: end.naive_local() })
    }

    /// The change that repeats this wall clock time.
    fn repeated(&self, wall: NaiveDateTime) -> Option<ClockChange> {
        let both = self.zone.from_local_datetime(&wall);
        let (first, second) = (both.earliest()?, both.latest()?);
        if first == second {
            return None;
        }
        let (before, after) = (first.naive_local() - first.naive_utc(), second.naive_local() - second.naive_utc());
        let has_changed = |at: Timestamp| self.local(at).naive_local() - at.naive_utc() != before;
        let (mut before_change, mut after_change) = (first.timestamp(), second.timestamp());
        while after_change - before_change > 1 {
            let middle = before_change + (after_change - before_change) / 2;
            if has_changed(DateTime::from_timestamp(middle, 0)?) {
                after_change = middle
            } else {
                before_change = middle
            }
        }
        let at = DateTime::from_timestamp(after_change, 0)?;
        Some(ClockChange { at, begin: at.naive_utc() + after, end: at.naive_utc() + before })
    }

    /// Whether the rule's times of day stay the same when shifted by the change.
    fn is_periodic(&self, change: ClockChange) -> bool {
        let shift = (change.end - change.begin).num_seconds();
        if shift % 60 != 0 {
            return false;
        }
        let (day, shift) = (self.minutes.len(), (shift / 60).rem_euclid(24 * 60) as usize);
        (0..day).all(|minute| self.minutes[minute] == self.minutes[(minute + shift) % day])
    }
}

/// Truncates to whole seconds, since ticks are. `None` outside [`YEARS`].
fn whole_second(at: Timestamp) -> Option<Timestamp> {
    at.with_nanosecond(0).filter(|at| YEARS.contains(&at.year()))
}

fn expression(cron: &str) -> Result<Cron> {
    if cron.len() > CRON_BYTES_MAX {
        return Err(Error::TooLarge { field: "cron", size: cron.len(), max: CRON_BYTES_MAX });
    }
    let invalid = |problem: &str| Error::invalid("cron", format!("'{}' {problem}", cron.escape_debug()));
    let fields: Vec<&str> = cron.split_ascii_whitespace().collect();
    let expected = match (fields.len(), fields.first()) {
        (5, _) => &FIELDS[1..],
        (6, _) => &FIELDS[..],
        (1, Some(name)) if name.starts_with('@') => &[],
        _ => {
            return Err(invalid(
                "must have five fields – minute, hour, day, month, weekday – or six, the second first",
            ));
        }
    };
    let mut checked: Vec<String> = Vec::with_capacity(fields.len());
    for (text, field) in fields.iter().zip(expected) {
        let problem = |problem| invalid(&format!("has {problem} in its field '{text}', the {}", field.name));
        checked.push(field.checked(text).map_err(problem)?);
    }
    let checked = if expected.is_empty() { fields.concat() } else { checked.join(" ") };
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    let cron = parser.parse(&checked).map_err(|error| invalid(&format!("cannot be read: {error}")))?;
    if has_tick(&cron) { Ok(cron) } else { Err(invalid("never comes: there is no such day")) }
}

/// Whether the rule has any tick. In the years 2000 to 2027 each day of the year falls on each day of the week.
fn has_tick(cron: &Cron) -> bool {
    let pattern = &cron.pattern;
    let time = (0..24).any(|hour| pattern.hour_match(hour).unwrap_or(false))
        && (0..60).any(|minute| pattern.minute_match(minute).unwrap_or(false))
        && (0..60).any(|second| pattern.second_match(second).unwrap_or(false));
    let matches_day = |day: NaiveDate| {
        let weekday = Weekday::from_days_from_sunday(day.weekday().num_days_from_sunday());
        pattern.month_match(day.month()).unwrap_or(false)
            && pattern.day_match(day.year(), day.month(), day.day(), weekday).unwrap_or(false)
    };
    let first = NaiveDate::from_ymd_opt(2000, 1, 1);
    time && first.is_some_and(|first| first.iter_days().take_while(|day| day.year() < 2028).any(matches_day))
}

fn zone(timezone: &str) -> Result<Tz> {
    let has_valid_length = timezone.len() <= ZONE_BYTES_MAX;
    let found = timezone.parse().ok().filter(|_| has_valid_length);
    found.ok_or_else(|| {
        let shown: String = timezone.chars().take(ZONE_BYTES_MAX).collect();
        let problem = format!("'{}' is not an IANA time zone such as Europe/Berlin", shown.escape_debug());
        Error::invalid("timezone", problem)
    })
}

#[cfg(test)]
mod tests;
