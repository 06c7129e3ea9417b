//! Combines stored samples into the points of a chart.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::counter::Counter;
use super::histogram::Histogram;
use super::{SampleRow, span_start};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::names;

/// What happened in one span of time, for one event type or for all selected types together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Sample {
    /// When the span begins.
    pub at: DateTime<Utc>,
    /// The length of the span: the step, or longer for old samples, which are stored in longer spans.
    pub span_ms: u64,
    /// The event type; `None` for all selected types together.
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    /// Published events. All other counts are of deliveries, of which an event has one per subscription.
    pub published: u64,
    /// Completed, with or without errors.
    pub completed: u64,
    /// Failed: now dead letters.
    pub failed: u64,
    /// Scheduled for a retry after a failure.
    pub retried: u64,
    /// Not started before their deadline: now dead letters.
    pub expired: u64,
    /// Canceled.
    pub cancelled: u64,
    /// The maximum of pending and processing deliveries, measured once a minute; `None` if not measured. For spans
    /// longer than a minute, the sum over several types may be too high: each type's maximum may be from another
    /// minute.
    pub depth: Option<u64>,
    /// The age of the oldest ready delivery, at most, measured once a minute; zero if none was ready, `None` if not
    /// measured.
    pub oldest_ms: Option<u64>,
    /// From the time a delivery was ready to its first claim; `None` if nothing was claimed. Backfilled deliveries of
    /// a new subscription are not counted.
    pub wait_ms: Option<Quantiles>,
    /// From a claim to the report of the outcome; `None` if nothing was reported.
    pub run_ms: Option<Quantiles>,
}

/// Durations in milliseconds, by quantile. Each is at most √2 times too large or too small.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quantiles {
    /// How many durations were measured.
    pub count: u64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Quantiles {
    fn of(histogram: &Histogram) -> Option<Quantiles> {
        let count = histogram.total();
        // More digits would not be accurate.
        let quantile = |share| (histogram.quantile(share) * 10.0).round() / 10.0;
        (count > 0).then(|| Quantiles { count, p50: quantile(0.5), p95: quantile(0.95), p99: quantile(0.99) })
    }
}

/// Which samples to combine, and the limits of the result.
#[derive(Debug, Clone)]
pub(crate) struct SampleQuery {
    /// Both are step boundaries.
    pub from: Timestamp,
    pub until: Timestamp,
    pub step_s: u32,
    /// By exact name or by prefix ending in `*`; all if empty.
    pub types: Vec<String>,
    pub by_type: bool,
    pub points_max: usize,
    pub rows_max: usize,
}

/// The points so far, filled by [`SampleSeries::add`].
#[derive(Debug)]
pub(crate) struct SampleSeries {
    pub query: SampleQuery,
    rows: usize,
    points: BTreeMap<(Timestamp, Option<String>), Point>,
}

#[derive(Debug, Default)]
struct Point {
    counter: Counter,
    /// The longest span of its samples, at least the step.
    span_s: u32,
    /// The depth of all types together at the newest measurement, with the span and time of that measurement.
    newest_depth: Option<(u32, Timestamp, u64)>,
}

impl SampleSeries {
    pub fn new(query: SampleQuery) -> SampleSeries {
        SampleSeries { query, rows: 0, points: BTreeMap::new() }
    }

    /// Adds a sample. Samples of the same span length have to arrive in order of time.
    pub fn add(&mut self, row: SampleRow) -> Result<()> {
        self.rows += 1;
        if self.rows > self.query.rows_max {
            return Err(Error::invalid("from", too_many_rows(self.query.rows_max)));
        }
        let query = &self.query;
        let of_type = |pattern: &String| names::type_matches(pattern, &row.event_type);
        let within = query.from <= row.at && row.at < query.until;
        if !within || !(query.types.is_empty() || query.types.iter().any(of_type)) {
            return Ok(());
        }
        let key = (span_start(row.at, query.step_s), query.by_type.then_some(row.event_type));
        self.points.entry(key).or_default().add(row.span_s.max(query.step_s), row.span_s, row.at, &row.counter);
        match self.points.len() > query.points_max {
            true => Err(too_many_points(self.points.len(), query.points_max)),
            false => Ok(()),
        }
    }

    /// Ordered by time, then by type.
    pub fn into_samples(self) -> Vec<Sample> {
        self.points.into_iter().map(|((at, event_type), point)| point.into_sample(at, event_type)).collect()
    }
}

/// The error for a query with more points than allowed.
pub(super) fn too_many_points(points: usize, max: usize) -> Error {
    let problem =
        format!("results in {points} points or more; the limit is {max}: use longer steps or a shorter range");
    Error::invalid("step_ms", problem)
}

fn too_many_rows(max: usize) -> String {
    format!("more than {max} stored samples would have to be read, regardless of 'step_ms': use a shorter range")
}

impl Point {
    fn add(&mut self, span_s: u32, stored_span_s: u32, at: Timestamp, counter: &Counter) {
        self.counter.add(counter);
        if let Some(depth) = counter.depth {
            let total = match self.newest_depth {
                Some((span_s, time, sum)) if (span_s, time) == (stored_span_s, at) => sum + depth,
                _ => depth,
            };
            self.newest_depth = Some((stored_span_s, at, total));
            self.counter.depth = self.counter.depth.max(Some(total));
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

    fn query(step_s: u32, by_type: bool) -> SampleQuery {
        SampleQuery { from: at(0), until: at(59), step_s, types: Vec::new(), by_type, points_max: 10, rows_max: 10 }
    }

    fn row(span_s: u32, minute: u32, event_type: &str, published: u64, depth: impl Into<Option<u64>>) -> SampleRow {
        let counter = Counter { published, depth: depth.into(), ..Counter::default() };
        SampleRow { span_s, at: at(minute), event_type: event_type.to_owned(), counter }
    }

    /// at, span_ms, type, published, depth
    type PointFields = (Timestamp, u64, Option<String>, u64, Option<u64>);

    fn combined(query: SampleQuery, rows: &[SampleRow]) -> Vec<PointFields> {
        let mut series = SampleSeries::new(query);
        rows.iter().for_each(|row| series.add(row.clone()).unwrap());
        let fields = |sample: Sample| (sample.at, sample.span_ms, sample.event_type, sample.published, sample.depth);
        series.into_samples().into_iter().map(fields).collect()
    }

    #[test]
    fn depths_are_summed_over_types_and_maximized_over_time() {
        let rows = [
            row(60, 1, "a", 1, 5),
            row(60, 1, "b", 1, 1),
            row(60, 2, "a", 1, 1),
            row(60, 2, "b", 1, 6),
            row(60, 11, "b", 1, 2),
        ];
        let minutes = combined(query(60, false), &rows);
        let expected =
            [(at(1), 60_000, None, 2, Some(6)), (at(2), 60_000, None, 2, Some(7)), (at(11), 60_000, None, 1, Some(2))];
        assert_eq!(minutes, expected);
        let longer = combined(query(600, false), &rows);
        assert_eq!(longer, [(at(0), 600_000, None, 4, Some(7)), (at(10), 600_000, None, 1, Some(2))]);
        let (a, b) = (Some("a".to_owned()), Some("b".to_owned()));
        let by_type = combined(query(600, true), &rows);
        let first = |event_type, depth| (at(0), 600_000, event_type, 2, Some(depth));
        assert_eq!(by_type, [first(a, 5), first(b.clone(), 6), (at(10), 600_000, b, 1, Some(2))]);
    }

    #[test]
    fn depth_is_none_without_a_measurement() {
        let rows = [row(60, 1, "a", 1, 5), row(60, 1, "b", 1, None), row(60, 2, "a", 1, None), row(60, 3, "a", 1, 0)];
        let depths =
            |step_s| combined(query(step_s, false), &rows).into_iter().map(|point| point.4).collect::<Vec<_>>();
        assert_eq!((depths(60), depths(600)), (vec![Some(5), None, Some(0)], vec![Some(5)]));
    }

    #[test]
    fn old_samples_report_their_longer_span() {
        let rows = [row(60, 20, "a", 1, None), row(600, 10, "a", 2, None), row(3600, 0, "a", 4, None)];
        let points = combined(query(60, false), &rows);
        let expected =
            [(at(0), 3_600_000, None, 4, None), (at(10), 600_000, None, 2, None), (at(20), 60_000, None, 1, None)];
        assert_eq!(points, expected);
        assert_eq!(combined(query(3600, false), &rows), [(at(0), 3_600_000, None, 7, None)]);
    }

    #[test]
    fn samples_are_filtered_by_type_and_time() {
        let rows = [row(60, 1, "order.paid", 1, 0), row(60, 2, "order.sent", 2, 0), row(60, 3, "mail", 4, 0)];
        let of = |types: &[&str]| {
            let types = types.iter().map(ToString::to_string).collect();
            combined(SampleQuery { types, ..query(3600, false) }, &rows).first().map_or(0, |point| point.3)
        };
        assert_eq!([of(&[]), of(&["mail"]), of(&["order.*"]), of(&["order.*", "mail"]), of(&["x"])], [7, 4, 3, 7, 0]);
        let between = SampleQuery { from: at(2), until: at(3), ..query(60, false) };
        assert_eq!(combined(between, &rows).len(), 1);
    }

    #[test]
    fn points_and_rows_are_limited() {
        let field = |error: Error| match error {
            Error::Invalid { field, .. } => field,
            other => panic!("{other}"),
        };
        let mut series = SampleSeries::new(SampleQuery { points_max: 1, ..query(60, false) });
        series.add(row(60, 1, "a", 1, 0)).unwrap();
        assert_eq!(field(series.add(row(60, 2, "a", 1, 0)).unwrap_err()), "step_ms");
        let mut series = SampleSeries::new(SampleQuery { rows_max: 1, ..query(3600, false) });
        series.add(row(60, 1, "a", 1, 0)).unwrap();
        assert_eq!(field(series.add(row(60, 2, "a", 1, 0)).unwrap_err()), "from");
    }
}
