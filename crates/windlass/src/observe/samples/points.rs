//! The points of a chart, gathered from samples.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::counter::Counter;
use super::histogram::Histogram;
use super::{SampleRow, begin_of};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::names;

/// What happened in one span of time: of one event type, or of all that were asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Sample {
    /// When the span begins.
    pub at: DateTime<Utc>,
    /// How long it is: the step, or longer where samples are so old that they are no longer kept as finely.
    pub span_ms: u64,
    /// Of this type; `None`: of all together.
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    /// Events that were published. All that follows counts deliveries, of which an event has one for each subscription.
    pub published: u64,
    /// Done, with or without errors.
    pub completed: u64,
    /// Given up: now dead letters.
    pub failed: u64,
    /// Put back to be tried again after a failure.
    pub retried: u64,
    /// Not started before their deadline: now dead letters.
    pub expired: u64,
    /// Called off.
    pub cancelled: u64,
    /// The most that were waiting or in work at once, looked at once a minute; `None` where nobody looked. The sum over
    /// several types may be too high where each had its most at another time within a span that is no longer kept in
    /// minutes.
    pub depth: Option<u64>,
    /// For how long the one that had waited longest could have been taken, looked at once a minute; zero where none
    /// could, `None` where nobody looked.
    pub oldest_ms: Option<u64>,
    /// From when it could be taken to its first claim; `None` where nothing was claimed. Without the past that a new
    /// subscription was given.
    pub wait_ms: Option<Quantiles>,
    /// From a claim to the report of its end; `None` where nothing was reported.
    pub run_ms: Option<Quantiles>,
}

/// How long things took, in milliseconds: the share that the name says took no longer. Each is at most √2 times too
/// large or too small.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quantiles {
    /// How many were measured.
    pub count: u64,
    /// Half of them.
    pub p50: f64,
    /// 95 of a hundred.
    pub p95: f64,
    /// 99 of a hundred.
    pub p99: f64,
}

impl Quantiles {
    fn of(histogram: &Histogram) -> Option<Quantiles> {
        let count = histogram.total();
        // More digits than these mean nothing.
        let quantile = |share| (histogram.quantile(share) * 10.0).round() / 10.0;
        (count > 0).then(|| Quantiles { count, p50: quantile(0.5), p95: quantile(0.95), p99: quantile(0.99) })
    }
}

/// Which samples go into which points.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// Both are where a step begins.
    pub from: Timestamp,
    pub until: Timestamp,
    pub step_s: u32,
    /// By exact name or prefix ending in `*`; all if empty.
    pub types: Vec<String>,
    pub by_type: bool,
    pub points_max: usize,
    pub rows_max: usize,
}

/// The points so far.
#[derive(Debug)]
pub(crate) struct Points {
    pub wanted: Wanted,
    rows: usize,
    points: BTreeMap<(Timestamp, Option<String>), Point>,
}

#[derive(Debug, Default)]
struct Point {
    counter: Counter,
    /// The longest that went into it.
    span_s: u32,
    /// The depth of all types together as of the newest look.
    look: Option<(u32, Timestamp, u64)>,
}

impl Points {
    pub fn new(wanted: Wanted) -> Points {
        Points { wanted, rows: 0, points: BTreeMap::new() }
    }

    /// Those of one span have to come in the order of time.
    pub fn add(&mut self, row: SampleRow) -> Result<()> {
        self.rows += 1;
        if self.rows > self.wanted.rows_max {
            return Err(Error::invalid("from", too_much(self.wanted.rows_max)));
        }
        let wanted = &self.wanted;
        let of_type = |pattern: &String| names::type_matches(pattern, &row.event_type);
        let within = wanted.from <= row.at && row.at < wanted.until;
        if !within || !(wanted.types.is_empty() || wanted.types.iter().any(of_type)) {
            return Ok(());
        }
        let key = (begin_of(row.at, wanted.step_s), wanted.by_type.then_some(row.event_type));
        self.points.entry(key).or_default().add(row.span_s.max(wanted.step_s), row.span_s, row.at, &row.counter);
        match self.points.len() > wanted.points_max {
            true => Err(too_many(self.points.len(), wanted.points_max)),
            false => Ok(()),
        }
    }

    /// In the order of time and, of one time, of types.
    pub fn into_samples(self) -> Vec<Sample> {
        self.points.into_iter().map(|((at, event_type), point)| point.into_sample(at, event_type)).collect()
    }
}

/// So many points are not given at once.
pub(super) fn too_many(points: usize, max: usize) -> Error {
    let problem = format!("gives {points} points or more; the limit is {max}: take longer steps, or ask for less time");
    Error::invalid("step_ms", problem)
}

fn too_much(max: usize) -> String {
    format!("more than {max} stored samples would have to be read, whatever 'step_ms' is: ask for less time")
}

impl Point {
    fn add(&mut self, span_s: u32, look_s: u32, at: Timestamp, counter: &Counter) {
        self.counter.add(counter);
        if let Some(depth) = counter.depth {
            let seen = match self.look {
                Some((of, then, before)) if (of, then) == (look_s, at) => before + depth,
                _ => depth,
            };
            self.look = Some((look_s, at, seen));
            self.counter.depth = self.counter.depth.max(Some(seen));
        }
        self.span_s = self.span_s.max(span_s);
    }

    fn into_sample(self, at: Timestamp, event_type: Option<String>) -> Sample {
        let counter = self.counter;
        Sample {
            at,
            span_ms: u64::from(self.span_s) * 1_000,
            event_type,
            published: counter.published,
            completed: counter.completed,
            failed: counter.failed,
            retried: counter.retried,
            expired: counter.expired,
            cancelled: counter.cancelled,
            depth: counter.depth,
            oldest_ms: counter.oldest_ms,
            wait_ms: Quantiles::of(&counter.wait),
            run_ms: Quantiles::of(&counter.run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: u32) -> Timestamp {
        format!("2025-12-24T10:{minute:02}:00Z").parse().unwrap()
    }

    fn wanted(step_s: u32, by_type: bool) -> Wanted {
        Wanted { from: at(0), until: at(59), step_s, types: Vec::new(), by_type, points_max: 10, rows_max: 10 }
    }

    fn row(span_s: u32, minute: u32, event_type: &str, published: u64, depth: impl Into<Option<u64>>) -> SampleRow {
        let counter = Counter { published, depth: depth.into(), ..Counter::default() };
        SampleRow { span_s, at: at(minute), event_type: event_type.to_owned(), counter }
    }

    /// at, span_ms, type, published, depth
    type Shown = (Timestamp, u64, Option<String>, u64, Option<u64>);

    fn gathered(wanted: Wanted, rows: &[SampleRow]) -> Vec<Shown> {
        let mut points = Points::new(wanted);
        rows.iter().for_each(|row| points.add(row.clone()).unwrap());
        let shown = |sample: Sample| (sample.at, sample.span_ms, sample.event_type, sample.published, sample.depth);
        points.into_samples().into_iter().map(shown).collect()
    }

    #[test]
    fn depths_are_summed_over_types_and_the_most_of_a_step_is_kept() {
        let rows = [
            row(60, 1, "a", 1, 5),
            row(60, 1, "b", 1, 1),
            row(60, 2, "a", 1, 1),
            row(60, 2, "b", 1, 6),
            row(60, 11, "b", 1, 2),
        ];
        let minutes = gathered(wanted(60, false), &rows);
        let expected =
            [(at(1), 60_000, None, 2, Some(6)), (at(2), 60_000, None, 2, Some(7)), (at(11), 60_000, None, 1, Some(2))];
        assert_eq!(minutes, expected);
        let longer = gathered(wanted(600, false), &rows);
        assert_eq!(longer, [(at(0), 600_000, None, 4, Some(7)), (at(10), 600_000, None, 1, Some(2))]);
        let (a, b) = (Some("a".to_owned()), Some("b".to_owned()));
        let by_type = gathered(wanted(600, true), &rows);
        let first = |of, most| (at(0), 600_000, of, 2, Some(most));
        assert_eq!(by_type, [first(a, 5), first(b.clone(), 6), (at(10), 600_000, b, 1, Some(2))]);
    }

    #[test]
    fn where_nobody_looked_there_is_no_depth() {
        let rows = [row(60, 1, "a", 1, 5), row(60, 1, "b", 1, None), row(60, 2, "a", 1, None), row(60, 3, "a", 1, 0)];
        let depths =
            |step_s| gathered(wanted(step_s, false), &rows).into_iter().map(|point| point.4).collect::<Vec<_>>();
        assert_eq!((depths(60), depths(600)), (vec![Some(5), None, Some(0)], vec![Some(5)]));
    }

    #[test]
    fn what_is_kept_less_finely_says_so() {
        let rows = [row(60, 20, "a", 1, None), row(600, 10, "a", 2, None), row(3600, 0, "a", 4, None)];
        let points = gathered(wanted(60, false), &rows);
        let expected =
            [(at(0), 3_600_000, None, 4, None), (at(10), 600_000, None, 2, None), (at(20), 60_000, None, 1, None)];
        assert_eq!(points, expected);
        assert_eq!(gathered(wanted(3600, false), &rows), [(at(0), 3_600_000, None, 7, None)]);
    }

    #[test]
    fn only_what_was_asked_for_is_there() {
        let rows = [row(60, 1, "order.paid", 1, 0), row(60, 2, "order.sent", 2, 0), row(60, 3, "mail", 4, 0)];
        let of = |types: &[&str]| {
            let types = types.iter().map(ToString::to_string).collect();
            gathered(Wanted { types, ..wanted(3600, false) }, &rows).first().map_or(0, |point| point.3)
        };
        assert_eq!([of(&[]), of(&["mail"]), of(&["order.*"]), of(&["order.*", "mail"]), of(&["x"])], [7, 4, 3, 7, 0]);
        let between = Wanted { from: at(2), until: at(3), ..wanted(60, false) };
        assert_eq!(gathered(between, &rows).len(), 1);
    }

    #[test]
    fn there_are_no_more_points_and_rows_than_allowed() {
        let field = |error: Error| match error {
            Error::Invalid { field, .. } => field,
            other => panic!("{other}"),
        };
        let mut points = Points::new(Wanted { points_max: 1, ..wanted(60, false) });
        points.add(row(60, 1, "a", 1, 0)).unwrap();
        assert_eq!(field(points.add(row(60, 2, "a", 1, 0)).unwrap_err()), "step_ms");
        let mut points = Points::new(Wanted { rows_max: 1, ..wanted(3600, false) });
        points.add(row(60, 1, "a", 1, 0)).unwrap();
        assert_eq!(field(points.add(row(60, 2, "a", 1, 0)).unwrap_err()), "from");
    }
}
