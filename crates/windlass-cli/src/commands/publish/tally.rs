//! What is known of each line so far: pure.

use serde_json::{Value, json};

use super::lines::Bad;
use crate::output::counted;

/// Of so many bad lines the reason is kept.
const BAD_SHOWN_MAX: usize = 100;

/// Lines from one to another, both included.
pub type Range = (u64, u64);

/// What became of the lines.
#[derive(Debug, Default)]
pub struct Tally {
    pub published: u64,
    pub duplicates: u64,
    pub bad: u64,
    /// The first of them.
    pub bad_shown: Vec<Bad>,
    /// In order; those that touch are one.
    stored: Vec<Range>,
    refused: Vec<Range>,
    unknown: Vec<Range>,
}

impl Tally {
    pub fn stored(&mut self, range: Range, published: u64, duplicates: u64) {
        self.published += published;
        self.duplicates += duplicates;
        add(&mut self.stored, range);
    }

    /// Nothing of these was stored.
    pub fn refused(&mut self, range: Range) {
        add(&mut self.refused, range);
    }

    /// Nobody knows whether these were stored.
    pub fn unknown(&mut self, range: Range) {
        add(&mut self.unknown, range);
    }

    /// A line that is passed over; its reason is told apart from the ranges.
    pub fn bad(&mut self, bad: Bad) {
        self.bad += 1;
        add(&mut self.stored, (bad.line, bad.line));
        if self.bad_shown.len() < BAD_SHOWN_MAX {
            self.bad_shown.push(bad);
        }
    }

    /// How far it got, in a sentence.
    pub fn sentence(&self) -> String {
        let mut said = format!("Published {}", counted(self.published, "event"));
        if self.duplicates > 0 {
            said += &format!("; {} there already, by their key", self.duplicates);
        }
        if self.bad > 0 {
            said += &format!("; {} passed over", counted(self.bad, "bad line"));
        }
        said
    }

    /// Which lines are where, when it was stopped.
    pub fn account(&self) -> String {
        let mut said = self.sentence();
        let parts = [("published", &self.stored), ("not published", &self.refused), ("unknown", &self.unknown)];
        for (what, ranges) in parts {
            if !ranges.is_empty() {
                said += &format!("\n  {what:<13}  {}", shown(ranges));
            }
        }
        match self.not_sent_from() {
            1 => said + "\n  not sent       any",
            line => said + &format!("\n  not sent       from line {line} on"),
        }
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let bad: Vec<_> = self.bad_shown.iter().map(|bad| json!({ "line": bad.line, "error": bad.reason })).collect();
        json!({
            "published": self.published, "duplicates": self.duplicates, "bad": self.bad, "bad_lines": bad,
            "done_lines": self.stored, "not_published_lines": self.refused, "unknown_lines": self.unknown,
        })
    }

    /// The line after the last of which something is known.
    pub fn not_sent_from(&self) -> u64 {
        let known = [&self.stored, &self.refused, &self.unknown].into_iter().filter_map(|ranges| ranges.last());
        known.map(|(_, to)| to + 1).max().unwrap_or(1)
    }
}

/// Ranges come nearly in order.
fn add(ranges: &mut Vec<Range>, (from, to): Range) {
    let place = ranges.iter().rposition(|(start, _)| *start < from).map_or(0, |place| place + 1);
    ranges.insert(place, (from, to));
    if ranges.get(place + 1).is_some_and(|(start, _)| *start == to + 1) {
        ranges[place].1 = ranges.remove(place + 1).1;
    }
    if place > 0 && ranges[place - 1].1 + 1 == from {
        ranges[place - 1].1 = ranges.remove(place).1;
    }
}

fn shown(ranges: &[Range]) -> String {
    let range = |(from, to): &Range| if from == to { format!("line {from}") } else { format!("lines {from}–{to}") };
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut ranges = Vec::new();
        for range in [(1, 10), (21, 30), (11, 20), (41, 50), (32, 33)] {
            add(&mut ranges, range);
        }
        assert_eq!(ranges, [(1, 30), (32, 33), (41, 50)]);
        add(&mut ranges, (31, 31));
        assert_eq!(shown(&ranges), "lines 1–33, lines 41–50");
    }

    #[test]
    fn what_is_known_is_told_exactly() {
        let mut tally = Tally::default();
        assert_eq!(tally.account(), "Published 0 events\n  not sent       any");
        tally.stored((1, 1000), 990, 10);
        tally.stored((2001, 3000), 1000, 0);
        tally.refused((1001, 2000));
        tally.unknown((3001, 3001));
        let expected = "\
Published 1990 events; 10 there already, by their key
  published      lines 1–1000, lines 2001–3000
  not published  lines 1001–2000
  unknown        line 3001
  not sent       from line 3002 on";
        assert_eq!(tally.account(), expected);
    }
}
