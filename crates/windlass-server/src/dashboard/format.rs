//! Formats numbers, durations, timestamps and states. [`RelativeTime`] and [`Badge`] render HTML and contain no user
//! input.

use std::fmt;

use askama::filters::HtmlSafe;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use windlass::Status;

/// A number with thousands separators.
pub(super) fn count(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "1 event", "1,204 events".
pub(super) fn pluralize(number: impl TryInto<u64>, one: &str, many: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A duration, in its two largest units.
pub(super) fn duration(ms: u64) -> String {
    let (s, min, h, d) = (ms / 1_000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 if ms % 1_000 >= 100 => format!("{s}.{} s", ms % 1_000 / 100),
        1_000..10_000 => format!("{s} s"),
        10_000..60_000 => format!("{s} s"),
        60_000..3_600_000 => two_units((min, "min"), (s % 60, "s")),
        3_600_000..86_400_000 => two_units((h, "h"), (min % 60, "min")),
        _ => two_units((d, "d"), (h % 24, "h")),
    }
}

fn two_units(large: (u64, &str), small: (u64, &str)) -> String {
    match small.0 {
        0 => format!("{} {}", large.0, large.1),
        _ => format!("{} {} {} {}", large.0, large.1, small.0, small.1),
    }
}

/// A duration, in its largest unit.
fn largest_unit(duration: TimeDelta) -> String {
    let s = duration.num_seconds();
    match s {
        0..60 => format!("{s} s"),
        60..3_600 => format!("{} min", s / 60),
        3_600..172_800 => format!("{} h", s / 3_600),
        _ => format!("{} d", s / 86_400),
    }
}

/// A size in bytes, KiB or MiB.
pub(super) fn bytes(size: usize) -> String {
    match size {
        0..1_024 => format!("{size} bytes"),
        1_024..1_048_576 => format!("{:.1} KiB", size as f64 / 1_024.0),
        _ => format!("{:.1} MiB", size as f64 / 1_048_576.0),
    }
}

/// A timestamp, shown relative to now.
#[derive(Debug, Clone, Copy)]
pub(super) struct RelativeTime {
    at: DateTime<Utc>,
    now: DateTime<Utc>,
}

impl RelativeTime {
    pub fn new(at: DateTime<Utc>, now: DateTime<Utc>) -> RelativeTime {
        RelativeTime { at, now }
    }

    fn words(&self) -> String {
        let ago = self.now - self.at;
        if ago.abs() < TimeDelta::seconds(2) {
            "just now".to_owned()
        } else if ago > TimeDelta::zero() {
            format!("{} ago", largest_unit(ago))
        } else {
            format!("in {}", largest_unit(-ago))
        }
    }
}

impl fmt::Display for RelativeTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = self.at.to_rfc3339_opts(SecondsFormat::Millis, true);
        let full = self.at.format("%Y-%m-%d %H:%M:%S%.3f UTC");
        write!(f, "<time datetime=\"{exact}\" title=\"{full}\">{}</time>", self.words())
    }
}

impl HtmlSafe for RelativeTime {}

/// A state, shown as a colored label.
#[derive(Debug, Clone, Copy)]
pub(super) struct Badge {
    class: &'static str,
    text: &'static str,
}

impl Badge {
    /// `class` is `good`, `bad`, `warn`, `busy`, `calm` or `faint`.
    pub fn new(class: &'static str, text: &'static str) -> Badge {
        Badge { class, text }
    }
}

impl From<Status> for Badge {
    fn from(status: Status) -> Badge {
        let class = match status {
            Status::Pending => "calm",
            Status::Processing => "busy",
            Status::Completed => "good",
            Status::CompletedWithErrors | Status::Expired => "warn",
            Status::Failed => "bad",
            Status::Cancelled => "faint",
        };
        Badge::new(class, status.as_str())
    }
}

impl fmt::Display for Badge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<span class=\"badge {}\">", self.class)?;
        // Allow line breaks in COMPLETED_WITH_ERRORS.
        for (at, word) in self.text.split('_').enumerate() {
            if at > 0 {
                f.write_str("_<wbr>")?;
            }
            f.write_str(word)?;
        }
        f.write_str("</span>")
    }
}

impl HtmlSafe for Badge {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_thousands_separators() {
        let table =
            [(0, "0"), (12, "12"), (999, "999"), (1_000, "1,000"), (123_456, "123,456"), (1_234_567, "1,234,567")];
        for (number, text) in table {
            assert_eq!(count(number as u64), text);
        }
        assert_eq!(pluralize(1_u64, "event", "events"), "1 event");
        assert_eq!(pluralize(1_204_usize, "event", "events"), "1,204 events");
    }

    #[test]
    fn durations_have_at_most_two_units() {
        let table = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_250, "1.2 s"),
            (5_000, "5 s"),
            (12_000, "12 s"),
            (60_000, "1 min"),
            (185_000, "3 min 5 s"),
            (3_600_000, "1 h"),
            (5_400_000, "1 h 30 min"),
            (90_000_000, "1 d 1 h"),
        ];
        for (ms, text) in table {
            assert_eq!(duration(ms), text);
        }
        assert_eq!([bytes(0), bytes(1_536), bytes(3 << 20)], ["0 bytes", "1.5 KiB", "3.0 MiB"]);
    }

    #[test]
    fn timestamps_are_shown_relative_and_exact() {
        let now: DateTime<Utc> = "2025-12-24T10:30:00Z".parse().unwrap();
        let words = |seconds: i64| RelativeTime::new(now - TimeDelta::seconds(seconds), now).words();
        let table = [
            (0, "just now"),
            (-1, "just now"),
            (59, "59 s ago"),
            (60, "1 min ago"),
            (7_200, "2 h ago"),
            (172_800, "2 d ago"),
            (-90, "in 1 min"),
        ];
        for (seconds, text) in table {
            assert_eq!(words(seconds), text);
        }
        assert_eq!(
            RelativeTime::new(now, now).to_string(),
            "<time datetime=\"2025-12-24T10:30:00.000Z\" title=\"2025-12-24 10:30:00.000 UTC\">just now</time>"
        );
    }

    #[test]
    fn badge_can_break_between_words() {
        let badge = Badge::from(Status::CompletedWithErrors).to_string();
        assert_eq!(badge, "<span class=\"badge warn\">COMPLETED_<wbr>WITH_<wbr>ERRORS</span>");
    }
}
