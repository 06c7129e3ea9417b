//! Parses and formats timestamps and durations of the command line.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use windlass::Timestamp;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Parses a whole number of seconds, minutes, hours or days.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let seconds = || {
        let (at, unit) = text.char_indices().next_back()?;
        let unit = match unit {
            's' => 1,
            'm' => MINUTE,
            'h' => HOUR,
            'd' => DAY,
            _ => return None,
        };
        text[..at].parse::<u64>().ok()?.checked_mul(unit)
    };
    seconds().map(Duration::from_secs).ok_or("give a number and a unit, as in 30s, 15m, 12h or 90d")
}

/// Parses a timestamp, or a day, which stands for its beginning in UTC.
pub fn parse_timestamp(text: &str) -> Result<Timestamp, &'static str> {
    let timestamp = if text.len() == "2026-01-31".len() { format!("{text}T00:00:00Z") } else { text.to_owned() };
    timestamp.parse().map_err(|_| "give a day, as in 2026-01-31, or an instant, as in 2026-01-31T12:00:00Z")
}

/// Parses an age such as `15m`, a day or a timestamp.
pub fn parse_time_or_age(text: &str) -> Result<Timestamp, &'static str> {
    let from_age = || now().checked_sub_signed(TimeDelta::from_std(parse_duration(text).ok()?).ok()?);
    let usage = "give how long ago, as in 15m, a day, as in 2026-01-31, or an instant, as in 2026-01-31T12:00:00Z";
    from_age().or_else(|| parse_timestamp(text).ok()).ok_or(usage)
}

/// The time by this machine's clock.
pub fn now() -> Timestamp {
    Utc::now()
}

/// Formats a timestamp to the second, in UTC.
pub fn format_timestamp(at: Timestamp) -> String {
    at.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats a timestamp and its age: `2026-01-31T12:00:00Z (3 min ago)`.
pub fn format_with_age(at: Timestamp) -> String {
    format!("{} ({})", format_timestamp(at), age_or_time_until(at, now()))
}

/// Formats a timestamp for the API, to the microsecond.
pub fn to_rfc3339(at: Timestamp) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true)
}

/// Formats the age of a timestamp, or the time until then.
pub fn format_age(at: Timestamp) -> String {
    age_or_time_until(at, now())
}

fn age_or_time_until(at: Timestamp, now: Timestamp) -> String {
    match (now - at).to_std() {
        Ok(past) => format!("{} ago", format_duration(past)),
        Err(_) => format!("in {}", format_duration((at - now).to_std().unwrap_or_default())),
    }
}

/// Formats a duration in the largest unit of which there are at least two, to keep the rounding error small.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        _ if seconds < 2 * HOUR => format!("{} min", seconds / MINUTE),
        _ if seconds < 2 * DAY => format!("{} h", seconds / HOUR),
        _ => format!("{} d", seconds / DAY),
    }
}

/// Formats how long an operation took.
pub fn format_elapsed(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms"),
        10_000..120_000 => format!("{:.1} s", ms as f64 / 1_000.0),
        _ => format_duration(Duration::from_millis(ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_needs_a_unit() {
        let seconds = |text| parse_duration(text).map(|duration| duration.as_secs());
        assert_eq!([seconds("45s"), seconds("30m")], [Ok(45), Ok(1_800)]);
        assert_eq!([seconds("12h"), seconds("90d")], [Ok(43_200), Ok(7_776_000)]);
        for invalid in ["", "d", "90", "90 d", "-1d", "1.5h", "1w", "90D", "1hd", "9ä", "18446744073709551615d"] {
            assert!(parse_duration(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn day_stands_for_midnight_in_utc() {
        assert_eq!(parse_timestamp("2026-01-31").unwrap().to_rfc3339(), "2026-01-31T00:00:00+00:00");
        assert_eq!(parse_timestamp("2026-01-31T12:00:00+01:00").unwrap().to_rfc3339(), "2026-01-31T11:00:00+00:00");
        for invalid in ["", "today", "2026-02-30", "2026-01-31T12:00", "20260131"] {
            assert!(parse_timestamp(invalid).is_err() && parse_time_or_age(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn time_may_be_given_as_an_age() {
        let (hour_ago, before) = (parse_time_or_age("1h").unwrap(), now());
        let error_seconds = (before - hour_ago).num_seconds() - 3_600;
        assert!((-1..60).contains(&error_seconds), "{error_seconds}");
        assert_eq!(parse_time_or_age("2026-01-31"), parse_timestamp("2026-01-31"));
        assert!(parse_time_or_age("99999999999999d").is_err(), "before time began");
    }

    #[test]
    fn ages_are_rounded_down() {
        let now = parse_timestamp("2026-01-31T12:00:00Z").unwrap();
        let cases = [
            ("2026-01-31T12:00:00Z", "0 s ago"),
            ("2026-01-31T11:58:01Z", "119 s ago"),
            ("2026-01-31T11:58:00Z", "2 min ago"),
            ("2026-01-31T10:00:01Z", "119 min ago"),
            ("2026-01-31T10:00:00Z", "2 h ago"),
            ("2026-01-28T12:00:00Z", "3 d ago"),
            ("2026-01-31T12:05:00Z", "in 5 min"),
        ];
        for (at, expected) in cases {
            assert_eq!(age_or_time_until(parse_timestamp(at).unwrap(), now), expected);
        }
        assert_eq!(
            [format_elapsed(950), format_elapsed(12_340), format_elapsed(3 * 60_000)],
            ["950 ms", "12.3 s", "3 min"]
        );
    }
}
