//! The last hour in a few characters.

use serde::Deserialize;
use windlass::Timestamp;

use crate::Result;
use crate::api::Answer;
use crate::output::{BAD, Cell, FAINT, GOOD, Table, WARN, left, right, width};
use crate::when;

/// Each character stands for so long.
const STEP_MS: u64 = 120_000;
const STEPS: usize = 30;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub fn query() -> Vec<(&'static str, String)> {
    vec![("from", when::exact(begin())), ("step_ms", STEP_MS.to_string())]
}

/// Where the first step begins: the last is the one that now lies in.
fn begin() -> Timestamp {
    let step = STEP_MS as i64;
    let last = when::now().timestamp_millis() / step;
    Timestamp::from_timestamp_millis((last + 1 - STEPS as i64) * step).unwrap_or_default()
}

#[derive(Deserialize)]
struct Body {
    samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    at: Timestamp,
    published: u64,
    completed: u64,
    failed: u64,
    retried: u64,
    expired: u64,
}

/// What is counted, how it is found in a sample, and its colour.
type Series = (&'static str, fn(&Sample) -> u64, anstyle::Style);

const SERIES: [Series; 5] = [
    ("published", |sample| sample.published, FAINT),
    ("completed", |sample| sample.completed, GOOD),
    ("retried", |sample| sample.retried, WARN),
    ("failed", |sample| sample.failed, BAD),
    ("expired", |sample| sample.expired, BAD),
];

/// Lines for all that happened in the last hour; nothing where nothing did.
pub fn of(answer: &Answer) -> Result<Option<String>> {
    let samples = answer.read::<Body>()?.samples;
    let mut table = Table::new([left("LAST HOUR"), left(""), right("COUNT"), right("PER MIN")]);
    for (name, count, style) in SERIES {
        let steps = steps(&samples, begin(), count);
        let total: u64 = steps.iter().sum();
        if total > 0 {
            let minutes = (STEPS as u64 * STEP_MS / 60_000) as f64;
            let rate = format!("{:.1}", total as f64 / minutes);
            table.row([name.into(), Cell::styled(sparkline(&steps), style), total.into(), rate.into()]);
        }
    }
    Ok((!table.is_empty()).then(|| table.render(width())))
}

fn steps(samples: &[Sample], begin: Timestamp, count: fn(&Sample) -> u64) -> [u64; STEPS] {
    let mut steps = [0; STEPS];
    for sample in samples {
        let place = (sample.at - begin).num_milliseconds() / STEP_MS as i64;
        if let Some(step) = usize::try_from(place).ok().and_then(|place| steps.get_mut(place)) {
            *step += count(sample);
        }
    }
    steps
}

/// A bar for each number, the highest for the largest; a space for none.
fn sparkline(steps: &[u64]) -> String {
    let most = steps.iter().copied().max().unwrap_or(0).max(1);
    let bar = |step: &u64| match step {
        0 => ' ',
        step => BARS[((step * BARS.len() as u64).div_ceil(most) - 1) as usize],
    };
    steps.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_their_share() {
        assert_eq!(sparkline(&[0, 1, 4, 8]), " ▁▄█");
        assert_eq!(sparkline(&[1, 1000]), "▁█");
        assert_eq!(sparkline(&[0, 0]), "  ");
        assert_eq!(sparkline(&[7]), "█");
    }

    #[test]
    fn what_lies_outside_is_left_out() {
        let begin: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let sample = |at: &str| Sample {
            at: at.parse().unwrap(),
            published: 1,
            completed: 0,
            failed: 0,
            retried: 0,
            expired: 0,
        };
        let samples = ["2026-01-31T11:58:00Z", "2026-01-31T12:02:00Z", "2026-01-31T12:02:00Z", "2026-01-31T13:00:00Z"];
        let samples: Vec<Sample> = samples.map(sample).into();
        let steps = steps(&samples, begin, |sample| sample.published);
        assert_eq!((steps[0], steps[1], steps.iter().sum::<u64>()), (0, 2, 2));
    }
}
