//! Prints results as tables or as JSON.

use serde::Serialize;

use crate::latency::Percentiles;
use crate::store::Backend;

#[derive(Serialize)]
pub struct Report {
    pub rates: Vec<Rate>,
    pub delays: Vec<Delays>,
    pub idle: Vec<Idle>,
    /// The load average of the last minute, before and after, if available.
    load: [Option<f64>; 2],
}

#[derive(Serialize)]
pub struct Rate {
    store: &'static str,
    workload: &'static str,
    concurrency: usize,
    events: usize,
    /// One per round, slowest first.
    events_per_second: Vec<f64>,
}

#[derive(Serialize)]
pub struct Delays {
    pub store: &'static str,
    pub case: &'static str,
    pub events: usize,
    pub handled: usize,
    /// From just before the publisher's call to the start of the handler.
    pub from_call: Percentiles,
    /// From the return of that call, when the event is durable.
    pub from_return: Percentiles,
}

#[derive(Serialize)]
pub struct Idle {
    pub store: &'static str,
    pub seconds: f64,
    /// CPU time of this process, in percent of one core.
    pub cpu_percent: Option<f64>,
    pub transactions_per_second: Option<f64>,
}

impl Rate {
    pub fn new(
        store: Backend,
        workload: &'static str,
        concurrency: usize,
        events: usize,
        mut events_per_second: Vec<f64>,
    ) -> Rate {
        events_per_second.sort_by(f64::total_cmp);
        Rate { store: store.name(), workload, concurrency, events, events_per_second }
    }

    fn row(&self) -> String {
        let Rate { store, workload, concurrency, events, events_per_second: rates } = self;
        let (min, median, max) = (rates[0], rates[rates.len() / 2], rates[rates.len() - 1]);
        format!("| {store} | {workload} | {concurrency} | {events} | {median:.0} | {min:.0} – {max:.0} |")
    }
}

impl Delays {
    fn row(&self) -> String {
        let Delays { store, case, events, handled, from_call, from_return } = self;
        let (from_call, from_return) = (format_percentiles(from_call), format_percentiles(from_return));
        format!("| {store} | {case} | {handled} of {events} | {from_call} | {from_return} |")
    }
}

fn format_percentiles(Percentiles { p50_ms, p95_ms, p99_ms, max_ms, .. }: &Percentiles) -> String {
    format!("{p50_ms:.1} / {p95_ms:.1} / {p99_ms:.1} / {max_ms:.1}")
}

impl Idle {
    fn row(&self) -> String {
        let Idle { store, seconds, cpu_percent, transactions_per_second } = self;
        let or_dash = |value: &Option<f64>, unit| value.map_or("–".to_owned(), |value| format!("{value:.2}{unit}"));
        let (cpu, transactions) = (or_dash(cpu_percent, " %"), or_dash(transactions_per_second, ""));
        format!("| {store} | {seconds:.0} | {cpu} | {transactions} |")
    }
}

impl Report {
    pub fn start() -> Report {
        Report { rates: Vec::new(), delays: Vec::new(), idle: Vec::new(), load: [load_average(), None] }
    }

    pub fn print(mut self, json: bool) {
        self.load[1] = load_average();
        if json {
            println!("{:#}", serde_json::json!(self));
            return;
        }
        table(
            "| store | workload | handlers at once | events | events/s (median) | min – max |\n\
             | --- | --- | ---: | ---: | ---: | --- |",
            self.rates.iter().map(Rate::row),
        );
        table(
            "| store | latency, ms: p50 / p95 / p99 / max | handled | publish call → handler | its return → handler |\n\
             | --- | --- | ---: | --- | --- |",
            self.delays.iter().map(Delays::row),
        );
        table(
            "| store | idle seconds | CPU of one core | transactions/s |\n| --- | ---: | ---: | ---: |",
            self.idle.iter().map(Idle::row),
        );
        if let [Some(before), Some(after)] = self.load {
            println!("Load average of the last minute: {before} before, {after} after.");
        }
    }
}

fn table(head: &str, rows: impl ExactSizeIterator<Item = String>) {
    if rows.len() > 0 {
        println!("{head}");
        rows.for_each(|row| println!("{row}"));
        println!();
    }
}

fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_shows_the_median_round() {
        let rate = Rate::new(Backend::Sqlite, "throughput", 10, 100, vec![300.0, 100.0, 200.0]);
        assert_eq!(rate.row(), "| SQLite | throughput | 10 | 100 | 200 | 100 – 300 |");
    }

    #[test]
    fn unknown_values_are_shown_as_a_dash() {
        let idle = Idle { store: "SQLite", seconds: 20.0, cpu_percent: Some(0.25), transactions_per_second: None };
        assert_eq!(idle.row(), "| SQLite | 20 | 0.25 % | – |");
    }
}
