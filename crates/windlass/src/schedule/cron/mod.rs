//! When a cron rule ticks, in its time zone, also where the clock is changed.
//!
//! croner finds the wall clock times of a rule; here they become instants. Around a clock change there are two kinds
//! of rules:
//! - One that looks the same when all its times of day are moved by the change – every 15 minutes, every hour – goes
//!   by real time: it ticks in both halves of a repeated hour, and what is left out is missed by nobody.
//! - Any other means its times of day. What falls into the hour that is left out ticks once, at the first instant
//!   after it; what falls into a repeated hour ticks the first time only.
//!
//! croner has a rule of its own for time zones, by which `0 2,14 * * *` misses the hour that is left out and comes
//! twice in the repeated one; see the tests.

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

/// The longest name of a zone, in bytes.
const ZONE_BYTES_MAX: usize = 64;

/// The years in which ticks are looked for.
const YEARS: std::ops::Range<i32> = 1900..4000;

/// When something happens: a cron expression in a time zone.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    cron: Cron,
    zone: Tz,
    /// The minutes of a day in which it ticks.
    minutes: Arc<[bool]>,
}

/// A stretch of wall clock times that a clock change leaves out, or repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    /// The instant of the change.
    at: Timestamp,
    /// The first wall clock time concerned.
    begin: NaiveDateTime,
    /// The first that no longer is.
    end: NaiveDateTime,
}

impl Change {
    /// The instant at which this wall clock time comes for the second time.
    fn again(&self, wall: NaiveDateTime) -> Timestamp {
        self.at + (wall - self.begin)
    }
}

impl Rule {
    /// Refuses what cannot be understood, and what never ticks.
    pub fn parse(cron: &str, timezone: &str) -> Result<Rule> {
        let (cron, zone) = (expression(cron)?, zone(timezone)?);
        let ticks_in = |minute: u32| {
            let hour = cron.pattern.hour_match(minute / 60).unwrap_or(false);
            hour && cron.pattern.minute_match(minute % 60).unwrap_or(false)
        };
        let minutes = (0..24 * 60).map(ticks_in).collect();
        Ok(Rule { cron, zone, minutes })
    }

    /// The instant, as clocks in the zone show it.
    pub fn local(&self, at: Timestamp) -> DateTime<Tz> {
        at.with_timezone(&self.zone)
    }

    /// The first tick later than this instant.
    pub fn after(&self, at: Timestamp) -> Option<Timestamp> {
        let at = whole_second(at)?;
        let wall = self.local(at).naive_local();
        match self.repeated(wall) {
            None => self.first_from(self.next(wall, false)?),
            Some(change) if at < change.at => {
                let next = self.next(wall, false)?;
                if next >= change.end
                    && self.goes_by_real_time(change)
                    && let Some(again) = self.next(change.begin, true).filter(|again| *again < change.end)
                {
                    return Some(change.again(again));
                }
                self.first_from(next)
            }
            Some(change) => {
                if self.goes_by_real_time(change)
                    && let Some(again) = self.next(wall, false).filter(|again| *again < change.end)
                {
                    return Some(change.again(again));
                }
                self.first_from(self.next(change.end, true)?)
            }
        }
    }

    /// The last tick earlier than this instant.
    pub fn before(&self, at: Timestamp) -> Option<Timestamp> {
        let whole = whole_second(at)?;
        let at = if whole < at { whole + TimeDelta::seconds(1) } else { whole };
        let wall = self.local(at).naive_local();
        match self.repeated(wall) {
            Some(change) if at >= change.at => {
                if self.goes_by_real_time(change)
                    && let Some(again) = self.previous(wall).filter(|again| *again >= change.begin)
                {
                    return Some(change.again(again));
                }
                self.last_to(self.previous(change.end)?, at)
            }
            _ => self.last_to(self.previous(wall)?, at),
        }
    }

    /// The tick of this wall clock time; of the next one where it has none.
    fn first_from(&self, mut wall: NaiveDateTime) -> Option<Timestamp> {
        loop {
            if let Some(instant) = self.zone.from_local_datetime(&wall).earliest() {
                return Some(instant.to_utc());
            }
            let change = self.left_out(wall)?;
            if !self.goes_by_real_time(change) {
                return Some(change.at);
            }
            wall = self.next(change.end, true)?;
        }
    }

    /// The last tick of this wall clock time that is earlier than `at`; of the one before where it has none.
    fn last_to(&self, mut wall: NaiveDateTime, at: Timestamp) -> Option<Timestamp> {
        loop {
            if let Some(first) = self.zone.from_local_datetime(&wall).earliest() {
                let again = self.repeated(wall).filter(|change| self.goes_by_real_time(*change));
                let again = again.map(|change| change.again(wall)).filter(|again| *again < at);
                return Some(again.unwrap_or(first.to_utc()));
            }
            let change = self.left_out(wall)?;
            if change.at < at && !self.goes_by_real_time(change) {
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

    /// The change that leaves this wall clock time out.
    fn left_out(&self, wall: NaiveDateTime) -> Option<Change> {
        let gap = GapInfo::new(&wall, &self.zone)?;
        let end = gap.end?;
        Some(Change { at: end.to_utc(), begin: gap.begin?.0, end: end.naive_local() })
    }

    /// The change that repeats this wall clock time.
    fn repeated(&self, wall: NaiveDateTime) -> Option<Change> {
        let both = self.zone.from_local_datetime(&wall);
        let (first, second) = (both.earliest()?, both.latest()?);
        if first == second {
            return None;
        }
        let (before, after) = (first.naive_local() - first.naive_utc(), second.naive_local() - second.naive_utc());
        let is_over = |at: Timestamp| self.local(at).naive_local() - at.naive_utc() != before;
        let (mut not_yet, mut over) = (first.timestamp(), second.timestamp());
        while over - not_yet > 1 {
            let middle = not_yet + (over - not_yet) / 2;
            if is_over(DateTime::from_timestamp(middle, 0)?) { over = middle } else { not_yet = middle }
        }
        let at = DateTime::from_timestamp(over, 0)?;
        Some(Change { at, begin: at.naive_utc() + after, end: at.naive_utc() + before })
    }

    /// Whether its times of day are the same when they are moved by the change.
    fn goes_by_real_time(&self, change: Change) -> bool {
        let shift = (change.end - change.begin).num_seconds();
        if shift % 60 != 0 {
            return false;
        }
        let (day, shift) = (self.minutes.len(), (shift / 60).rem_euclid(24 * 60) as usize);
        (0..day).all(|minute| self.minutes[minute] == self.minutes[(minute + shift) % day])
    }
}

/// Ticks are whole seconds. `None` where no tick is looked for.
fn whole_second(at: Timestamp) -> Option<Timestamp> {
    at.with_nanosecond(0).filter(|at| YEARS.contains(&at.year()))
}

fn expression(cron: &str) -> Result<Cron> {
    if cron.len() > CRON_BYTES_MAX {
        return Err(Error::TooLarge { field: "cron", size: cron.len(), max: CRON_BYTES_MAX });
    }
    let bad = |problem: &str| Error::invalid("cron", format!("'{}' {problem}", cron.escape_debug()));
    let fields: Vec<&str> = cron.split_ascii_whitespace().collect();
    let in_order = match (fields.len(), fields.first()) {
        (5, _) => &FIELDS[1..],
        (6, _) => &FIELDS[..],
        (1, Some(name)) if name.starts_with('@') => &[],
        _ => return Err(bad("must have five fields – minute, hour, day, month, weekday – or six, the second first")),
    };
    let mut checked: Vec<String> = Vec::with_capacity(fields.len());
    for (text, field) in fields.iter().zip(in_order) {
        let problem = |problem| bad(&format!("has {problem} in its field '{text}', the {}", field.name));
        checked.push(field.checked(text).map_err(problem)?);
    }
    let checked = if in_order.is_empty() { fields.concat() } else { checked.join(" ") };
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    let cron = parser.parse(&checked).map_err(|error| bad(&format!("cannot be read: {error}")))?;
    if comes(&cron) { Ok(cron) } else { Err(bad("never comes: there is no such day")) }
}

/// Whether there is a day and a time for it. In these years each day of the year was each day of the week.
fn comes(cron: &Cron) -> bool {
    let pattern = &cron.pattern;
    let time = (0..24).any(|hour| pattern.hour_match(hour).unwrap_or(false))
        && (0..60).any(|minute| pattern.minute_match(minute).unwrap_or(false))
        && (0..60).any(|second| pattern.second_match(second).unwrap_or(false));
    let is_of_day = |day: NaiveDate| {
        let weekday = Weekday::from_days_from_sunday(day.weekday().num_days_from_sunday());
        pattern.month_match(day.month()).unwrap_or(false)
            && pattern.day_match(day.year(), day.month(), day.day(), weekday).unwrap_or(false)
    };
    let first = NaiveDate::from_ymd_opt(2000, 1, 1);
    time && first.is_some_and(|first| first.iter_days().take_while(|day| day.year() < 2028).any(is_of_day))
}

fn zone(timezone: &str) -> Result<Tz> {
    let known = timezone.len() <= ZONE_BYTES_MAX;
    let found = timezone.parse().ok().filter(|_| known);
    found.ok_or_else(|| {
        let shown: String = timezone.chars().take(ZONE_BYTES_MAX).collect();
        let problem = format!("'{}' is not a zone of the IANA database, such as Europe/Berlin", shown.escape_debug());
        Error::invalid("timezone", problem)
    })
}

#[cfg(test)]
mod tests;
