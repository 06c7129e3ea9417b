//! A strict parser of Prometheus's text format. It rejects everything that `promtool check metrics` rejects or warns of.

use std::collections::BTreeMap;

/// A metric family with its samples.
#[derive(Debug, Default)]
pub struct Family {
    pub kind: String,
    pub help: String,
    pub samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

#[derive(Debug)]
pub struct Exposition(pub BTreeMap<String, Family>);

impl Exposition {
    /// Parses the text and panics at the first violation.
    pub fn parse(text: &str) -> Exposition {
        assert!(text.ends_with('\n') && !text.contains("\n\n"), "lines end, and none is empty");
        let (mut families, mut current) = (BTreeMap::<String, Family>::new(), String::new());
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap_or_else(|| panic!("no help: {line}"));
                let family = Family { help: help.to_owned(), ..Family::default() };
                assert!(families.insert(name.to_owned(), family).is_none(), "{name} comes twice");
                current = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap_or_else(|| panic!("no type: {line}"));
                assert_eq!(name, current, "TYPE follows HELP");
                let family = families.get_mut(name).unwrap();
                assert!(family.kind.is_empty() && family.samples.is_empty(), "{name}: TYPE comes once, and first");
                family.kind = kind.to_owned();
            } else {
                let sample = sample(line);
                let family = families.get_mut(&current).unwrap_or_else(|| panic!("sample without a family: {line}"));
                assert!(family.owns(&current, &sample.name), "{line} is not of {current}");
                family.samples.push(sample);
            }
        }
        let all = Exposition(families);
        all.0.iter().for_each(|(name, family)| check(name, family));
        all
    }

    /// The sum of the samples with these labels; they may have others.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let owner = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let family = self.0.get(name).or_else(|| self.0.get(owner?)).unwrap_or_else(|| panic!("no {name}"));
        let is_it = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|v| v == value))
        };
        family.samples.iter().filter(is_it).map(|sample| sample.value).sum()
    }
}

impl Family {
    fn owns(&self, family: &str, sample: &str) -> bool {
        match (self.kind.as_str(), sample.strip_prefix(family)) {
            ("histogram", Some(rest)) => matches!(rest, "_bucket" | "_sum" | "_count"),
            (_, rest) => rest == Some(""),
        }
    }
}

fn sample(line: &str) -> Sample {
    let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}")));
    let mut labels = BTreeMap::new();
    let rest = match rest.strip_prefix('{') {
        None => rest,
        Some(mut rest) => loop {
            let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label: {line}"));
            let (value, after) = unescaped(value);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{label} comes twice: {line}");
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => break after.strip_prefix('}').unwrap_or_else(|| panic!("no end: {line}")),
            }
        },
    };
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no space: {line}"));
    let value =
        if value == "+Inf" { f64::INFINITY } else { value.parse().unwrap_or_else(|_| panic!("no number: {line}")) };
    Sample { name: name.to_owned(), labels, value }
}

/// The value of a label, and the text after its closing quote.
fn unescaped(text: &str) -> (String, &str) {
    let (mut value, mut rest) = (String::new(), text.char_indices());
    while let Some((at, c)) = rest.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => match rest.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('\\' | '"'))) => value.push(c),
                other => panic!("a bad escape {other:?}: {text}"),
            },
            c => value.push(c),
        }
    }
    panic!("no closing quote: {text}")
}

/// Words that must not appear in a name: units other than base units, and metric types.
const FORBIDDEN_WORDS: [&str; 14] = [
    "milliseconds",
    "ms",
    "microseconds",
    "us",
    "minutes",
    "hours",
    "days",
    "kilobytes",
    "megabytes",
    "percent",
    "counter",
    "gauge",
    "histogram",
    "summary",
];

fn check(name: &str, family: &Family) {
    let words: Vec<&str> = name.split('_').collect();
    assert!(words[0] == "windlass" && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_'));
    assert!(!words.iter().any(|word| FORBIDDEN_WORDS.contains(word)), "{name}: base units only, and no types");
    assert!(family.help.ends_with('.') && family.help.len() > 10, "{name} is explained: {}", family.help);
    assert!(!family.samples.is_empty() || family.kind == "gauge", "{name} has values");
    let end = *words.last().unwrap();
    match family.kind.as_str() {
        "counter" => assert_eq!(end, "total", "{name} is a counter"),
        "histogram" => assert_eq!(end, "seconds", "{name} is a histogram of durations"),
        "gauge" => assert!(!["total", "count", "sum", "bucket"].contains(&end), "{name} is a gauge"),
        other => panic!("{name} is a {other}"),
    }
    if words.iter().any(|word| ["age", "duration", "timestamp", "late", "overdue"].contains(word)) {
        assert_eq!(end, "seconds", "{name} is a time");
    }
    let mut seen = Vec::new();
    for sample in &family.samples {
        let key = (sample.name.clone(), sample.labels.clone());
        assert!(!seen.contains(&key), "{key:?} comes twice");
        seen.push(key);
        sample.labels.keys().for_each(|label| check_label(label, sample));
        assert!(sample.value.is_finite() && (family.kind == "gauge" || sample.value >= 0.0), "{sample:?}");
    }
    if family.kind == "histogram" {
        check_histogram(name, family);
    }
}

fn check_label(label: &str, sample: &Sample) {
    let well_formed = label.bytes().all(|c| c.is_ascii_lowercase() || c == b'_') && !label.starts_with('_');
    assert!(well_formed, "{sample:?}");
    assert!(label != "quantile" && (label != "le" || sample.name.ends_with("_bucket")), "{sample:?}");
    assert!(!["instance", "job"].contains(&label), "Prometheus says that itself: {sample:?}");
}

/// Buckets must increase, and the last one must be `+Inf` and equal to the count.
fn check_histogram(name: &str, family: &Family) {
    let mut by_labels: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in family.samples.iter().filter(|sample| sample.name.ends_with("_bucket")) {
        let mut labels = sample.labels.clone();
        let le = labels.remove("le").unwrap_or_else(|| panic!("no le: {sample:?}"));
        let le = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() };
        by_labels.entry(labels).or_default().push((le, sample.value));
    }
    assert!(!by_labels.is_empty(), "{name} has buckets");
    for (labels, buckets) in by_labels {
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name} {labels:?}: {buckets:?}");
        let (le, last) = *buckets.last().unwrap();
        let of = |end: &str| {
            family.samples.iter().filter(|s| s.name == format!("{name}{end}") && s.labels == labels).count()
        };
        assert_eq!((of("_sum"), of("_count"), le), (1, 1, f64::INFINITY), "{name} {labels:?}");
        let count = family.samples.iter().find(|s| s.name == format!("{name}_count") && s.labels == labels).unwrap();
        assert_eq!(count.value, last, "{name} {labels:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP windlass_x_total What is counted.\n# TYPE windlass_x_total counter\n\
        windlass_x_total{type=\"a\\\"b\"} 3\nwindlass_x_total{type=\"c\"} 4\n";

    #[test]
    fn well_formed_text_is_parsed() {
        let read = Exposition::parse(GOOD);
        assert_eq!(read.sum("windlass_x_total", &[("type", "a\"b")]), 3.0);
        assert_eq!(read.sum("windlass_x_total", &[]), 7.0);
    }

    #[test]
    fn malformed_text_is_refused() {
        let changes = [
            ("# HELP windlass_x_total What is counted.\n", ""),
            ("# TYPE windlass_x_total counter\n", ""),
            ("What is counted.", "Things"),
            ("counter", "gauge"),
            ("x_total", "x"),
            ("windlass_x", "windlass_x_ms"),
            ("type=\"c\"", "type=\"a\\\"b\""),
            ("type=\"c\"", "le=\"c\""),
            ("type=\"c\"", "Type=\"c\""),
            (" 4", " four"),
            (" 4\n", " 4"),
            ("windlass_x_total{type=\"c\"}", "windlass_y_total{type=\"c\"}"),
        ];
        for (from, to) in changes {
            let bad = GOOD.replace(from, to);
            assert!(std::panic::catch_unwind(|| Exposition::parse(&bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn histogram_must_be_complete_and_increasing() {
        let good = "# HELP windlass_x_seconds How long it took.\n# TYPE windlass_x_seconds histogram\n\
            windlass_x_seconds_bucket{le=\"1\"} 2\nwindlass_x_seconds_bucket{le=\"+Inf\"} 3\n\
            windlass_x_seconds_sum 7\nwindlass_x_seconds_count 3\n";
        assert_eq!(Exposition::parse(good).sum("windlass_x_seconds_count", &[]), 3.0);
        let changes = [("\"} 2", "\"} 4"), ("count 3", "count 4"), ("+Inf", "5"), ("windlass_x_seconds_sum 7\n", "")];
        for (from, to) in changes {
            let bad = good.replace(from, to);
            assert!(std::panic::catch_unwind(|| Exposition::parse(&bad)).is_err(), "{bad}");
        }
    }
}
