//! Instants and spans, as people write and read them.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use windlass::Timestamp;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A whole number of seconds, minutes, hours or days.
pub fn span(text: &str) -> Result<Duration, &'static str> {
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

/// A day, which is its beginning in UTC, or an instant.
pub fn instant(text: &str) -> Result<Timestamp, &'static str> {
    let whole = if text.len() == "2026-01-31".len() { format!("{text}T00:00:00Z") } else { text.to_owned() };
    whole.parse().map_err(|_| "give a day, as in 2026-01-31, or an instant, as in 2026-01-31T12:00:00Z")
}

/// How long ago, a day, or an instant.
pub fn moment(text: &str) -> Result<Timestamp, &'static str> {
    let ago = || now().checked_sub_signed(TimeDelta::from_std(span(text).ok()?).ok()?);
    let problem = "give how long ago, as in 15m, a day, as in 2026-01-31, or an instant, as in 2026-01-31T12:00:00Z";
    ago().or_else(|| instant(text).ok()).ok_or(problem)
}

/// By this machine's clock.
pub fn now() -> Timestamp {
    Utc::now()
}

/// To the second, in UTC.
pub fn shown(at: Timestamp) -> String {
    at.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The instant, and how far away it is: `2026-01-31T12:00:00Z (3 min ago)`.
pub fn shown_with_age(at: Timestamp) -> String {
    format!("{} ({})", shown(at), distance(at, now()))
}

/// For the API.
pub fn exact(at: Timestamp) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true)
}

/// How long ago, or how long until then.
pub fn ago(at: Timestamp) -> String {
    distance(at, now())
}

fn distance(at: Timestamp, now: Timestamp) -> String {
    match (now - at).to_std() {
        Ok(past) => format!("{} ago", rough(past)),
        Err(_) => format!("in {}", rough((at - now).to_std().unwrap_or_default())),
    }
}

/// To the largest unit of which there are two at least, so that little is lost.
pub fn rough(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        _ if seconds < 2 * HOUR => format!("{} min", seconds / MINUTE),
        _ if seconds < 2 * DAY => format!("{} h", seconds / HOUR),
        _ => format!("{} d", seconds / DAY),
    }
}

/// How long something took.
pub fn took(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms"),
        10_000..120_000 => format!("{:.1} s", ms as f64 / 1_000.0),
        _ => rough(Duration::from_millis(ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_unit() {
        let seconds = |text| span(text).map(|span| span.as_secs());
        assert_eq!([seconds("45s"), seconds("30m")], [Ok(45), Ok(1_800)]);
        assert_eq!([seconds("12h"), seconds("90d")], [Ok(43_200), Ok(7_776_000)]);
        for bad in ["", "d", "90", "90 d", "-1d", "1.5h", "1w", "90D", "1hd", "9ä", "18446744073709551615d"] {
            assert!(span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_day_begins_at_midnight_in_utc() {
        assert_eq!(instant("2026-01-31").unwrap().to_rfc3339(), "2026-01-31T00:00:00+00:00");
        assert_eq!(instant("2026-01-31T12:00:00+01:00").unwrap().to_rfc3339(), "2026-01-31T11:00:00+00:00");
        for bad in ["", "today", "2026-02-30", "2026-01-31T12:00", "20260131"] {
            assert!(instant(bad).is_err() && moment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_moment_may_be_given_by_its_distance() {
        let (hour_ago, before) = (moment("1h").unwrap(), now());
        let off = (before - hour_ago).num_seconds() - 3_600;
        assert!((-1..60).contains(&off), "{off}");
        assert_eq!(moment("2026-01-31"), instant("2026-01-31"));
        assert!(moment("99999999999999d").is_err(), "before time began");
    }

    #[test]
    fn distances_are_rough() {
        let now = instant("2026-01-31T12:00:00Z").unwrap();
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
            assert_eq!(distance(instant(at).unwrap(), now), expected);
        }
        assert_eq!([took(950), took(12_340), took(3 * 60_000)], ["950 ms", "12.3 s", "3 min"]);
    }
}
