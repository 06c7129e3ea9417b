//! Formats durations, sizes, counts and lists for findings.

use chrono::TimeDelta;

/// With at most two units: `45 s`, `3 min`, `2 h 5 min`, `4 days`.
pub(super) fn duration(duration: TimeDelta) -> String {
    let seconds = duration.num_seconds().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (2.., _, _) => format!("{days} days"),
        (_, 1.., _) if minutes % 60 > 0 && hours < 10 => format!("{hours} h {} min", minutes % 60),
        (_, 1.., _) => format!("{hours} h"),
        (_, _, 1..) => format!("{minutes} min"),
        _ => format!("{seconds} s"),
    }
}

/// With thousands separators.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 event`, `2 events`; the plural is the word with an `s`.
pub(super) fn count(number: u64, word: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{} {word}{end}", self::number(number))
}

/// The number of rows found by a query with the limit `max`.
pub(super) fn at_least(found: usize, max: usize) -> String {
    let more = if found >= max { "at least " } else { "" };
    format!("{more}{}", number(found as u64))
}

pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) if bytes < 10 * unit => format!("{:.1} {name}", bytes as f64 / unit as f64),
        Some((name, unit)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}

/// How many names a list shows; there may be thousands.
const LIST_NAMES_MAX: usize = 3;

/// `a, b, c and 4 more`.
pub(super) fn list(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let mut text = names.by_ref().take(LIST_NAMES_MAX).collect::<Vec<_>>().join(", ");
    let more = names.count();
    if more > 0 {
        text.push_str(&format!(" and {} more", number(more as u64)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units() {
        let table = [
            (-5, "0 s"),
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min"),
            (3_599, "59 min"),
            (3_600, "1 h"),
            (7_500, "2 h 5 min"),
            (36_000 + 300, "10 h"),
            (86_400, "24 h"),
            (172_800, "2 days"),
        ];
        for (seconds, text) in table {
            assert_eq!(duration(TimeDelta::seconds(seconds)), text, "{seconds}");
        }
    }

    #[test]
    fn numbers_and_sizes_are_formatted() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")] {
            assert_eq!(number(n), text);
        }
        for (bytes, text) in [(0, "0 bytes"), (1_536, "1.5 KiB"), (64 << 20, "64 MiB"), (3 << 40, "3.0 TiB")] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!((count(1, "event"), count(0, "event")), ("1 event".to_owned(), "0 events".to_owned()));
        assert_eq!((at_least(9, 10), at_least(10, 10)), ("9".to_owned(), "at least 10".to_owned()));
    }

    #[test]
    fn long_lists_are_truncated() {
        let names = |count: usize| (1..=count).map(|n| format!("n{n}"));
        assert_eq!(list(names(0)), "");
        assert_eq!(list(names(3)), "n1, n2, n3");
        assert_eq!(list(names(1_005)), "n1, n2, n3 and 1,002 more");
    }
}
