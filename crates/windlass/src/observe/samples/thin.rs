//! Merges old samples into longer spans, and says when they are deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use super::counter::Counter;
use super::{SampleRow, span_start};
use crate::clock::{Timestamp, from_micros, micros};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long samples of one span are kept, and what they are merged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThinningLevel {
    pub span_s: u32,
    pub kept: Duration,
    /// The span into which they are merged; `None` if they are deleted.
    pub into_s: Option<u32>,
}

/// Minutes for two days, ten minutes for two weeks, hours for 400 days.
pub(crate) const THINNING_LEVELS: [ThinningLevel; 3] = [
    ThinningLevel { span_s: 60, kept: DAY.saturating_mul(2), into_s: Some(600) },
    ThinningLevel { span_s: 600, kept: DAY.saturating_mul(14), into_s: Some(3600) },
    ThinningLevel { span_s: 3600, kept: DAY.saturating_mul(400), into_s: None },
];

impl ThinningLevel {
    /// Samples before this time are merged or deleted. It is a boundary of the longer span, so that each is merged
    /// completely.
    pub fn before(&self, now: Timestamp) -> Timestamp {
        let kept_from = from_micros(now.timestamp_micros().saturating_sub(micros(self.kept)));
        span_start(kept_from, self.into_s.unwrap_or(self.span_s))
    }
}

/// Merges samples that belong into the same longer span, ordered by time and type.
pub(crate) fn merge_samples(rows: Vec<SampleRow>, into_s: u32) -> Vec<SampleRow> {
    let mut sums: BTreeMap<(Timestamp, String), Counter> = BTreeMap::new();
    for row in rows {
        sums.entry((span_start(row.at, into_s), row.event_type)).or_default().add(&row.counter);
    }
    sums.into_iter().map(|((at, event_type), counter)| SampleRow { span_s: into_s, at, event_type, counter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn row(at: Timestamp, event_type: &str, published: u64, depth: u64) -> SampleRow {
        let counter = Counter { published, depth: Some(depth), ..Counter::default() };
        SampleRow { span_s: 60, at, event_type: event_type.to_owned(), counter }
    }

    #[test]
    fn thinning_boundary_is_a_longer_span_start() {
        let now = at("2025-12-24T10:37:12.5Z");
        let before: Vec<Timestamp> = THINNING_LEVELS.iter().map(|level| level.before(now)).collect();
        let expected = ["2025-12-22T10:30:00Z", "2025-12-10T10:00:00Z", "2024-11-19T10:00:00Z"].map(at);
        assert_eq!(before, expected);
    }

    #[test]
    fn each_level_is_a_multiple_of_the_previous_one() {
        for pair in THINNING_LEVELS.windows(2) {
            assert_eq!(pair[0].into_s, Some(pair[1].span_s));
            assert!(pair[1].span_s % pair[0].span_s == 0 && pair[0].kept < pair[1].kept);
        }
        assert_eq!(THINNING_LEVELS.map(|level| level.into_s)[2], None);
    }

    #[test]
    fn samples_of_one_type_and_span_are_merged() {
        let rows = vec![
            row(at("2025-12-24T10:39:00Z"), "a", 1, 4),
            row(at("2025-12-24T10:40:00Z"), "a", 2, 1),
            row(at("2025-12-24T10:30:00Z"), "a", 4, 9),
            row(at("2025-12-24T10:30:00Z"), "b", 8, 2),
        ];
        let sums: Vec<_> = merge_samples(rows, 600)
            .into_iter()
            .map(|row| (row.span_s, row.at, row.event_type, row.counter.published, row.counter.depth))
            .collect();
        let (first, second) = (at("2025-12-24T10:30:00Z"), at("2025-12-24T10:40:00Z"));
        let expected = [
            (600, first, "a".into(), 5, Some(9)),
            (600, first, "b".into(), 8, Some(2)),
            (600, second, "a".into(), 2, Some(1)),
        ];
        assert_eq!(sums, expected);
    }
}
