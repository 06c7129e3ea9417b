//! Results as a table or as JSON.

use serde::Serialize;

/// One cell of the matrix, measured several times.
#[derive(Debug, Serialize)]
pub struct Measurement {
    pub store: &'static str,
    pub workload: &'static str,
    pub callers: usize,
    pub batch: usize,
    pub events: usize,
    /// Events per second, one for each round.
    pub rates: Vec<f64>,
}

impl Measurement {
    fn median(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }
}

pub fn print(measurements: &[Measurement], json: bool) {
    if json {
        let rss = peak_memory_mb();
        let report = serde_json::json!({ "measurements": measurements, "peak_memory_mb": rss });
        println!("{report:#}");
        return;
    }
    println!("| store | workload | callers | batch | events | events/s (median) | min – max |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | --- |");
    for m in measurements {
        let (min, max) =
            (m.rates.iter().copied().fold(f64::MAX, f64::min), m.rates.iter().copied().fold(0.0, f64::max));
        let (store, workload, median) = (m.store, m.workload, m.median());
        let (callers, batch, events) = (m.callers, m.batch, m.events);
        println!("| {store} | {workload} | {callers} | {batch} | {events} | {median:.0} | {min:.0} – {max:.0} |");
    }
    if let Some(rss) = peak_memory_mb() {
        println!("\nPeak memory of this process: {rss} MB");
    }
}

/// The most memory this process ever had, where the system tells.
fn peak_memory_mb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb / 1024)
}
