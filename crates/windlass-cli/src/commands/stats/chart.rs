//! Charts the counts of the last hour as sparklines.

use windlass::Timestamp;
use windlass_api::{Sample, SamplesBody};

use crate::Result;
use crate::api::ApiResponse;
use crate::output::{BAD, Cell, FAINT, GOOD, Table, WARN, left, right, terminal_width};
use crate::time;

/// Duration that one character stands for.
const STEP_MS: u64 = 120_000;
const STEPS: usize = 30;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub fn query() -> Vec<(&'static str, String)> {
    vec![("from", time::to_rfc3339(chart_start())), ("step_ms", STEP_MS.to_string())]
}

/// Returns the start of the first step. The last step contains the current time.
fn chart_start() -> Timestamp {
    let step = STEP_MS as i64;
    let last = time::now().timestamp_millis() / step;
    Timestamp::from_timestamp_millis((last + 1 - STEPS as i64) * step).unwrap_or_default()
}

/// The name of a count, how to read it from a sample, and its style.
type Series = (&'static str, fn(&Sample) -> u64, anstyle::Style);

const SERIES: [Series; 5] = [
    ("published", |sample| sample.published, FAINT),
    ("completed", |sample| sample.completed, GOOD),
    ("retried", |sample| sample.retried, WARN),
    ("failed", |sample| sample.failed, BAD),
    ("expired", |sample| sample.expired, BAD),
];

/// Renders a line for each count above zero. Returns `None` if all are zero.
pub fn render(response: &ApiResponse) -> Result<Option<String>> {
    let samples = response.json::<SamplesBody>()?.samples;
    let mut table = Table::new([left("LAST HOUR"), left(""), right("COUNT"), right("PER MIN")]);
    for (name, count, style) in SERIES {
        let steps = count_by_step(&samples, chart_start(), count);
        let total: u64 = steps.iter().sum();
        if total > 0 {
            let minutes = (STEPS as u64 * STEP_MS / 60_000) as f64;
            let rate = format!("{:.1}", total as f64 / minutes);
            table.row([name.into(), Cell::styled(sparkline(&steps), style), total.into(), rate.into()]);
        }
    }
    Ok((!table.is_empty()).then(|| table.render(terminal_width())))
}

fn count_by_step(samples: &[Sample], start: Timestamp, count: fn(&Sample) -> u64) -> [u64; STEPS] {
    let mut steps = [0; STEPS];
    for sample in samples {
        let index = (sample.at - start).num_milliseconds() / STEP_MS as i64;
        if let Some(step) = usize::try_from(index).ok().and_then(|index| steps.get_mut(index)) {
            *step += count(sample);
        }
    }
    steps
}

/// Draws a bar for each count, relative to the largest, and a space for zero.
fn sparkline(steps: &[u64]) -> String {
    let largest = steps.iter().copied().max().unwrap_or(0).max(1);
    let bar = |step: &u64| match step {
        0 => ' ',
        step => BARS[((step * BARS.len() as u64).div_ceil(largest) - 1) as usize],
    };
    steps.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_relative_to_the_largest_count() {
        assert_eq!(sparkline(&[0, 1, 4, 8]), " ▁▄█");
        assert_eq!(sparkline(&[1, 1000]), "▁█");
        assert_eq!(sparkline(&[0, 0]), "  ");
        assert_eq!(sparkline(&[7]), "█");
    }

    #[test]
    fn samples_outside_the_hour_are_ignored() {
        let start: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let sample = |at: &str| Sample {
            at: at.parse().unwrap(),
            span_ms: STEP_MS,
            event_type: None,
            published: 1,
            completed: 0,
            failed: 0,
            retried: 0,
            expired: 0,
            cancelled: 0,
            depth: None,
            oldest_ms: None,
            wait_ms: None,
            run_ms: None,
        };
        let samples = ["2026-01-31T11:58:00Z", "2026-01-31T12:02:00Z", "2026-01-31T12:02:00Z", "2026-01-31T13:00:00Z"];
        let samples: Vec<Sample> = samples.map(sample).into();
        let steps = count_by_step(&samples, start, |sample| sample.published);
        assert_eq!((steps[0], steps[1], steps.iter().sum::<u64>()), (0, 2, 2));
    }
}
