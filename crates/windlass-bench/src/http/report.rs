//! Prints results as a table or as JSON.

use std::time::Duration;

use serde::Serialize;

use super::load::Outcome;
use crate::latency::{Latencies, Percentiles};
use crate::usage::Usage;

/// One combination of store, workload and batch size.
#[derive(Serialize)]
pub struct Measurement {
    store: &'static str,
    workload: &'static str,
    connections: u16,
    batch: usize,
    /// Slowest first.
    rounds: Vec<Round>,
}

#[derive(Serialize)]
pub struct Round {
    events: usize,
    seconds: f64,
    events_per_second: f64,
    latencies: Vec<Percentiles>,
    server: Option<Cost>,
}

/// The cost for the server.
#[derive(Debug, PartialEq, Serialize)]
struct Cost {
    /// In percent of one core.
    cpu_percent: f64,
    cpu_micros_per_event: f64,
    rss_mb: f64,
    rss_growth_mb: f64,
}

impl Measurement {
    pub fn new(
        store: &'static str,
        workload: &'static str,
        connections: u16,
        batch: usize,
        mut rounds: Vec<Round>,
    ) -> Measurement {
        rounds.sort_by(|a, b| a.events_per_second.total_cmp(&b.events_per_second));
        Measurement { store, workload, connections, batch, rounds }
    }
}

impl Round {
    pub fn new(outcome: Outcome, usage: Option<(Usage, Usage)>) -> Round {
        let Outcome { events, took, latencies } = outcome;
        Round {
            events,
            seconds: took.as_secs_f64(),
            events_per_second: events as f64 / took.as_secs_f64(),
            latencies: latencies.into_iter().filter_map(Latencies::percentiles).collect(),
            server: usage.map(|(before, after)| Cost::new(before, after, took, events)),
        }
    }
}

impl Cost {
    fn new(before: Usage, after: Usage, took: Duration, events: usize) -> Cost {
        let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64();
        Cost {
            cpu_percent: 100.0 * cpu / took.as_secs_f64(),
            cpu_micros_per_event: 1e6 * cpu / events.max(1) as f64,
            rss_mb: after.rss_mb(),
            rss_growth_mb: after.rss_mb() - before.rss_mb(),
        }
    }
}

pub fn print(measurements: &[Measurement], json: bool) {
    if json {
        println!("{:#}", serde_json::json!({ "measurements": measurements }));
        return;
    }
    println!(
        "| store | workload | batch | events/s (median) | min – max | latency p50 / p99 | server CPU | CPU per event \
         | server RSS (growth) |"
    );
    println!("| --- | --- | ---: | ---: | --- | --- | ---: | ---: | ---: |");
    for measurement in measurements {
        println!("{}", row(measurement));
    }
    println!("\nCPU in percent of one core, of the Windlass server alone; all but the rates from the median round.");
}

fn row(measurement: &Measurement) -> String {
    let Measurement { store, workload, batch, rounds, .. } = measurement;
    let rate = |at: usize| rounds[at].events_per_second;
    let (min, median, max) = (rate(0), &rounds[rounds.len() / 2], rate(rounds.len() - 1));
    let latencies: Vec<String> = median.latencies.iter().map(format_latency).collect();
    let latencies = latencies.join(", ");
    let cost = match &median.server {
        Some(Cost { cpu_percent, cpu_micros_per_event, rss_mb, rss_growth_mb }) => {
            format!("{cpu_percent:.0} % | {cpu_micros_per_event:.1} µs | {rss_mb:.1} MB ({rss_growth_mb:+.1})")
        }
        None => "– | – | –".to_owned(),
    };
    let rate = median.events_per_second;
    format!("| {store} | {workload} | {batch} | {rate:.0} | {min:.0} – {max:.0} | {latencies} | {cost} |")
}

fn format_latency(Percentiles { request, p50_ms, p99_ms, .. }: &Percentiles) -> String {
    format!("{request} {p50_ms:.1} / {p99_ms:.1} ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(events: usize) -> Round {
        let mut publishing = Latencies::new("publish");
        publishing.add(Duration::from_millis(3));
        let usage = |secs, mb: u64| Usage { cpu: Duration::from_secs(secs), rss_kb: mb * 1024 };
        let outcome = Outcome { events, took: Duration::from_secs(10), latencies: vec![publishing] };
        Round::new(outcome, Some((usage(1, 20), usage(6, 25))))
    }

    #[test]
    fn row_shows_the_median_round() {
        let measured =
            Measurement::new("SQLite", "publish", 32, 1, vec![round(200_000), round(50_000), round(100_000)]);
        let expected = "| SQLite | publish | 1 | 10000 | 5000 – 20000 | publish 3.0 / 3.0 ms \
                        | 50 % | 50.0 µs | 25.0 MB (+5.0) |";
        assert_eq!(row(&measured), expected);
    }

    #[test]
    fn unknown_cost_is_shown_as_dashes() {
        let measured = Measurement::new("as given", "work", 32, 1, vec![Round { server: None, ..round(10) }]);
        assert!(row(&measured).ends_with("| – | – | – |"));
    }
}
