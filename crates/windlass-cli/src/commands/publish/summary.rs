//! Collects the outcome of every line of a published file.

use serde_json::{Value, json};

use super::batches::InvalidLine;
use crate::output::pluralize;

/// The most invalid lines whose reason is kept.
const INVALID_LINES_MAX: usize = 100;

/// The first and the last line of a range, both included.
pub type LineRange = (u64, u64);

/// The counts and line ranges by outcome.
#[derive(Debug, Default)]
pub struct PublishSummary {
    pub published: u64,
    pub duplicates: u64,
    pub invalid: u64,
    /// The first invalid lines, up to a limit.
    pub invalid_lines: Vec<InvalidLine>,
    /// Sorted. Adjacent ranges are merged, as in the other lists.
    stored: Vec<LineRange>,
    rejected: Vec<LineRange>,
    unknown: Vec<LineRange>,
}

impl PublishSummary {
    pub fn record_stored(&mut self, range: LineRange, published: u64, duplicates: u64) {
        self.published += published;
        self.duplicates += duplicates;
        add_range(&mut self.stored, range);
    }

    /// Records lines that were not stored.
    pub fn record_rejected(&mut self, range: LineRange) {
        add_range(&mut self.rejected, range);
    }

    /// Records lines of which it is not known whether they were stored.
    pub fn record_unknown(&mut self, range: LineRange) {
        add_range(&mut self.unknown, range);
    }

    /// Records a skipped line. It counts as done in the ranges; its reason is reported separately.
    pub fn record_invalid(&mut self, invalid: InvalidLine) {
        self.invalid += 1;
        add_range(&mut self.stored, (invalid.line, invalid.line));
        if self.invalid_lines.len() < INVALID_LINES_MAX {
            self.invalid_lines.push(invalid);
        }
    }

    /// Returns the counts in one line.
    pub fn headline(&self) -> String {
        let mut text = format!("Published {}", pluralize(self.published, "event"));
        if self.duplicates > 0 {
            text += &format!("; {} there already, by their key", self.duplicates);
        }
        if self.invalid > 0 {
            text += &format!("; {} passed over", pluralize(self.invalid, "bad line"));
        }
        text
    }

    /// Returns the counts and the line ranges by outcome, for a publish that was stopped.
    pub fn details(&self) -> String {
        let mut text = self.headline();
        let parts = [("published", &self.stored), ("not published", &self.rejected), ("unknown", &self.unknown)];
        for (outcome, ranges) in parts {
            if !ranges.is_empty() {
                text += &format!("\n  {outcome:<13}  {}", format_ranges(ranges));
            }
        }
        match self.not_sent_from() {
            1 => text + "\n  not sent       any",
            line => text + &format!("\n  not sent       from line {line} on"),
        }
    }

    /// Returns the summary for `--json`.
    pub fn json(&self) -> Value {
        let invalid_lines: Vec<_> =
            self.invalid_lines.iter().map(|invalid| json!({ "line": invalid.line, "error": invalid.reason })).collect();
        json!({
            "published": self.published, "duplicates": self.duplicates, "bad": self.invalid, "bad_lines": invalid_lines,
            "done_lines": self.stored, "not_published_lines": self.rejected, "unknown_lines": self.unknown,
        })
    }

    /// Returns the line after the last line with an outcome.
    pub fn not_sent_from(&self) -> u64 {
        let last_ranges = [&self.stored, &self.rejected, &self.unknown].into_iter().filter_map(|ranges| ranges.last());
        last_ranges.map(|(_, to)| to + 1).max().unwrap_or(1)
    }
}

/// Inserts a range and merges it with adjacent ones. Searches from the end because ranges arrive almost in order.
fn add_range(ranges: &mut Vec<LineRange>, (from, to): LineRange) {
    let index = ranges.iter().rposition(|(start, _)| *start < from).map_or(0, |index| index + 1);
    ranges.insert(index, (from, to));
    if ranges.get(index + 1).is_some_and(|(start, _)| *start == to + 1) {
        ranges[index].1 = ranges.remove(index + 1).1;
    }
    if index > 0 && ranges[index - 1].1 + 1 == from {
        ranges[index - 1].1 = ranges.remove(index).1;
    }
}

fn format_ranges(ranges: &[LineRange]) -> String {
    let range =
        |(from, to): &LineRange| if from == to { format!("line {from}") } else { format!("lines {from}–{to}") };
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut ranges = Vec::new();
        for range in [(1, 10), (21, 30), (11, 20), (41, 50), (32, 33)] {
            add_range(&mut ranges, range);
        }
        assert_eq!(ranges, [(1, 30), (32, 33), (41, 50)]);
        add_range(&mut ranges, (31, 31));
        assert_eq!(format_ranges(&ranges), "lines 1–33, lines 41–50");
    }

    #[test]
    fn details_list_line_ranges_by_outcome() {
        let mut summary = PublishSummary::default();
        assert_eq!(summary.details(), "Published 0 events\n  not sent       any");
        summary.record_stored((1, 1000), 990, 10);
        summary.record_stored((2001, 3000), 1000, 0);
        summary.record_rejected((1001, 2000));
        summary.record_unknown((3001, 3001));
        let expected = "\
Published 1990 events; 10 there already, by their key
  published      lines 1–1000, lines 2001–3000
  not published  lines 1001–2000
  unknown        line 3001
  not sent       from line 3002 on";
        assert_eq!(summary.details(), expected);
    }
}
