//! Prints results as a table or as JSON.

use serde::Serialize;

use crate::statistics::{Summary, summary};

/// One combination of store, workload, callers and batch size, measured several times.
#[derive(Debug, Serialize)]
pub struct Measurement {
    pub store: &'static str,
    pub workload: &'static str,
    pub callers: usize,
    pub batch: usize,
    pub events: usize,
    /// Events per second, one per round.
    pub rates: Vec<f64>,
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
        let Some(Summary { median, min, max }) = summary(m.rates.clone()) else { continue };
        let (store, workload) = (m.store, m.workload);
        let (callers, batch, events) = (m.callers, m.batch, m.events);
        println!("| {store} | {workload} | {callers} | {batch} | {events} | {median:.0} | {min:.0} – {max:.0} |");
    }
    if let Some(rss) = peak_memory_mb() {
        println!("\nPeak memory of this process: {rss} MB");
    }
}

/// The peak memory of this process; `None` without /proc.
fn peak_memory_mb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb / 1024)
}
