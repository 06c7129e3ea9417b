//! Charts: converts values to the paths and labels of an SVG. Does no I/O.

use chrono::{DateTime, SecondsFormat, Utc};

use super::format::{count, duration};

/// Coordinate system of the drawing, which CSS stretches to the available space.
const WIDTH: f64 = 1_000.0;
const HEIGHT: f64 = 240.0;

/// The unit of the values of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    PerMinute,
    Count,
    Milliseconds,
}

impl Unit {
    fn write(self, value: f64) -> String {
        match self {
            Unit::Count => count(whole(value)),
            Unit::PerMinute if value < 10.0 && value.fract() > 0.049 => format!("{value:.1}"),
            Unit::PerMinute => count(whole(value)),
            Unit::Milliseconds if value < 10.0 && value.fract() > 0.049 => format!("{value:.1} ms"),
            Unit::Milliseconds if value == 0.0 => "0".to_owned(),
            Unit::Milliseconds => duration(whole(value)),
        }
    }

    fn suffix(self) -> &'static str {
        if self == Unit::PerMinute { "/min" } else { "" }
    }
}

fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// One value for each step; `None` if unknown.
pub(super) struct Series {
    pub name: &'static str,
    /// CSS class of its color: `tone-1` to `tone-4`.
    pub class: &'static str,
    pub values: Vec<Option<f64>>,
}

/// The time steps of all series.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    pub from: DateTime<Utc>,
    pub step_s: u32,
    pub len: usize,
}

impl Steps {
    fn at(&self, index: usize) -> DateTime<Utc> {
        self.from + chrono::TimeDelta::seconds(i64::from(self.step_s) * i64::try_from(index).unwrap_or(i64::MAX / 2))
    }
}

/// A chart, ready for the template.
pub(super) struct Chart {
    pub id: &'static str,
    pub title: &'static str,
    /// Text alternative for screen readers.
    pub description: String,
    pub lines: Vec<Line>,
    /// Top, middle, bottom.
    pub y_labels: [String; 3],
    pub x_labels: Vec<Tick>,
    pub columns: Vec<Column>,
    /// Whether there is nothing to draw.
    pub is_empty: bool,
}

pub(super) struct Line {
    pub name: &'static str,
    pub class: &'static str,
    pub path: String,
    /// The latest value.
    pub last: String,
}

/// A label on the time axis.
pub(super) struct Tick {
    pub exact: String,
    pub text: String,
    /// `clock` or `day`: the format that `app.js` uses for the local time zone.
    pub form: &'static str,
}

/// The tooltip of a step.
pub(super) struct Column {
    pub x: String,
    pub width: String,
    pub title: String,
}

/// Number of labels on the time axis. The first and the last are at the edges.
const TICKS: usize = 5;

pub(super) fn draw(id: &'static str, title: &'static str, unit: Unit, steps: Steps, series: &[Series]) -> Chart {
    let values = || series.iter().flat_map(|series| series.values.iter().flatten().copied());
    let highest = values().fold(0.0, f64::max);
    let top = nice_top(unit, highest);
    let y_labels = [top, top / 2.0, 0.0].map(|value| unit.write(value));
    Chart {
        id,
        title,
        description: series.iter().map(|series| describe(series, unit)).collect::<Vec<_>>().join("; "),
        lines: series.iter().map(|series| line(series, unit, steps.len, top)).collect(),
        y_labels,
        x_labels: (0..TICKS).map(|tick| tick_at(steps, tick)).collect(),
        columns: (0..steps.len).map(|index| column(series, unit, steps, index)).collect(),
        is_empty: values().next().is_none() || (highest == 0.0 && unit != Unit::Count),
    }
}

/// The upper end of the value axis: at least the highest value, with a round half.
fn nice_top(unit: Unit, highest: f64) -> f64 {
    const SPANS_MS: [f64; 10] = [1.2e5, 2.4e5, 6e5, 1.2e6, 3.6e6, 7.2e6, 2.16e7, 4.32e7, 8.64e7, 1.728e8];
    let floor = if unit == Unit::Milliseconds { 1.0 } else { 2.0 };
    let highest = highest.max(floor);
    if unit == Unit::Milliseconds && highest > 6e4 {
        let found = SPANS_MS.into_iter().find(|top| *top >= highest);
        return found.unwrap_or_else(|| (highest / 1.728e8).ceil() * 1.728e8);
    }
    let power = 10f64.powf(highest.log10().floor());
    let digit = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].into_iter().find(|digit| digit * power >= highest * 0.999_999);
    digit.unwrap_or(10.0) * power
}

fn line(series: &Series, unit: Unit, len: usize, top: f64) -> Line {
    let last = series.values.iter().rev().flatten().next();
    Line {
        name: series.name,
        class: series.class,
        path: path(&series.values, len, top),
        last: last.map_or_else(|| "–".to_owned(), |value| unit.write(*value) + unit.suffix()),
    }
}

/// An SVG path with one stroke for each run of known values. A single value is a dash as wide as its step.
fn path(values: &[Option<f64>], len: usize, top: f64) -> String {
    let mut path = String::new();
    let width = WIDTH / len.max(1) as f64;
    let mut drawing = false;
    for (index, value) in values.iter().enumerate() {
        let Some(value) = value else {
            drawing = false;
            continue;
        };
        let x = width * (index as f64 + 0.5);
        let y = HEIGHT * (1.0 - (value / top).clamp(0.0, 1.0));
        let alone = !drawing && values.get(index + 1).is_none_or(Option::is_none);
        path += &match (alone, drawing) {
            (true, _) => format!("M{:.1} {y:.1}h{width:.1}", x - width / 2.0),
            (false, false) => format!("M{x:.1} {y:.1}"),
            (false, true) => format!("L{x:.1} {y:.1}"),
        };
        drawing = true;
    }
    path
}

fn column(series: &[Series], unit: Unit, steps: Steps, index: usize) -> Column {
    let width = WIDTH / steps.len.max(1) as f64;
    let known = series.iter().filter_map(|series| {
        let value = series.values.get(index).copied().flatten()?;
        Some(format!("{} {}{}", series.name, unit.write(value), unit.suffix()))
    });
    let known: Vec<String> = known.collect();
    let at = steps.at(index).format("%Y-%m-%d %H:%M UTC");
    let title = if known.is_empty() { format!("{at}\nnothing known") } else { format!("{at}\n{}", known.join("\n")) };
    Column { x: format!("{:.2}", width * index as f64), width: format!("{width:.2}"), title }
}

fn tick_at(steps: Steps, tick: usize) -> Tick {
    let index = steps.len * tick / (TICKS - 1);
    let at = steps.at(index);
    let days = i64::from(steps.step_s) * i64::try_from(steps.len).unwrap_or(0) > 2 * 86_400;
    let (form, text) = if days { ("day", at.format("%a %-d")) } else { ("clock", at.format("%H:%M UTC")) };
    Tick { exact: at.to_rfc3339_opts(SecondsFormat::Secs, true), text: text.to_string(), form }
}

fn describe(series: &Series, unit: Unit) -> String {
    let known: Vec<f64> = series.values.iter().flatten().copied().collect();
    let Some(last) = known.last() else { return format!("{}: nothing known", series.name) };
    let most = known.iter().copied().fold(0.0, f64::max);
    let write = |value| unit.write(value) + unit.suffix();
    format!("{}: {} last, {} at most", series.name, write(*last), write(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(len: usize) -> Steps {
        Steps { from: "2025-12-24T10:00:00Z".parse().unwrap(), step_s: 60, len }
    }

    fn series(values: &[Option<f64>]) -> Series {
        Series { name: "published", class: "tone-1", values: values.to_vec() }
    }

    #[test]
    fn value_axis_ends_at_a_round_number() {
        let table = [
            (Unit::Count, 0.0, 2.0),
            (Unit::Count, 2.0, 2.0),
            (Unit::Count, 3.0, 4.0),
            (Unit::Count, 41.0, 60.0),
            (Unit::Count, 1_000.0, 1_000.0),
            (Unit::Count, 1_001.0, 2_000.0),
            (Unit::Count, 999_999.0, 1_000_000.0),
            (Unit::Milliseconds, 0.3, 1.0),
            (Unit::Milliseconds, 70_000.0, 120_000.0),
            (Unit::Milliseconds, 1e9, 1.0368e9),
        ];
        for (unit, highest, top) in table {
            assert_eq!(nice_top(unit, highest), top, "{unit:?} {highest}");
        }
    }

    #[test]
    fn path_has_one_stroke_for_each_run_of_values() {
        let values = [Some(0.0), Some(2.0), None, Some(1.0)];
        assert_eq!(path(&values, 4, 2.0), "M125.0 240.0L375.0 0.0M750.0 120.0h250.0");
        assert_eq!(path(&[None, None], 2, 2.0), "");
        // Values outside the axis are clamped.
        assert_eq!(path(&[Some(9.0), Some(-1.0)], 2, 2.0), "M250.0 0.0L750.0 240.0");
    }

    #[test]
    fn each_step_has_a_tooltip_with_its_values() {
        let chart = draw("c", "Chart", Unit::PerMinute, steps(3), &[series(&[Some(1_200.0), None, Some(0.5)])]);
        let titles: Vec<&str> = chart.columns.iter().map(|column| column.title.as_str()).collect();
        let expected = [
            "2025-12-24 10:00 UTC\npublished 1,200/min",
            "2025-12-24 10:01 UTC\nnothing known",
            "2025-12-24 10:02 UTC\npublished 0.5/min",
        ];
        assert_eq!(titles, expected);
        assert_eq!(chart.lines[0].last, "0.5/min");
        assert_eq!(chart.y_labels, ["2,000", "1,000", "0"]);
        assert_eq!(chart.description, "published: 0.5/min last, 1,200/min at most");
        assert_eq!(chart.x_labels[0].text, "10:00 UTC");
    }

    #[test]
    fn missing_values_differ_from_zero() {
        let is_empty = |unit, values: &[Option<f64>]| draw("c", "c", unit, steps(2), &[series(values)]).is_empty;
        assert!(is_empty(Unit::Count, &[None, None]));
        assert!(!is_empty(Unit::Count, &[Some(0.0), None]), "a measured depth of zero is a value");
        assert!(is_empty(Unit::PerMinute, &[Some(0.0), Some(0.0)]));
        assert!(!is_empty(Unit::PerMinute, &[Some(0.0), Some(1.0)]));
    }
}
