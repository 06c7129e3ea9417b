//! Regression check: rates as shares of what bare SQL reaches on the same database in the same run. Absolute rates
//! depend on the machine, shares depend on Windlass.

mod floor_postgres;
mod floor_sqlite;

use clap::Args;
use windlass::Queue;

use crate::AnyError;
use crate::engine;
use crate::statistics::summary;
use crate::store::Backend;

const EVENTS: usize = 50_000;
const BATCH: usize = 100;
const CALLERS: usize = 4;

#[derive(Args)]
pub struct Options {
    /// Only this store.
    #[arg(long, value_enum)]
    store: Option<Backend>,
    /// Measurements of each case, alternating; the median of the shares counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

impl Options {
    pub fn needs_postgres(&self) -> bool {
        self.store != Some(Backend::Sqlite)
    }
}

/// Events per second.
#[derive(Clone, Copy)]
struct Rates {
    publish: f64,
    drain: f64,
}

/// The minimum share of the baseline: a quarter less than measured when this was written.
const MIN_SHARES: [(Backend, Rates); 2] = [
    (Backend::Sqlite, Rates { publish: 0.44, drain: 0.28 }),
    (Backend::Postgres, Rates { publish: 0.50, drain: 0.47 }),
];

#[derive(serde::Serialize)]
struct Share {
    store: &'static str,
    workload: &'static str,
    /// One per round.
    shares: Vec<f64>,
    median: f64,
    least: f64,
    holds: bool,
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut shares = Vec::new();
    for (backend, least) in MIN_SHARES {
        if options.store.is_none_or(|only| only == backend) {
            shares.extend(measure(backend, least, options.rounds).await?);
        }
    }
    match options.json {
        true => println!("{:#}", serde_json::to_value(&shares)?),
        false => print(&shares),
    }
    match shares.iter().all(|share| share.holds) {
        true => Ok(()),
        false => Err("Windlass has become slower, compared with bare SQL".into()),
    }
}

async fn measure(backend: Backend, least: Rates, rounds: u16) -> Result<[Share; 2], AnyError> {
    let (mut publish, mut drain) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        eprintln!("{}: round {round} of {rounds}", backend.name());
        let (floor, ours) = (floor(backend).await?, ours(backend).await?);
        publish.push(ours.publish / floor.publish);
        drain.push(ours.drain / floor.drain);
    }
    let store = backend.name();
    Ok([share(store, "publish", publish, least.publish), share(store, "drain", drain, least.drain)])
}

fn share(store: &'static str, workload: &'static str, shares: Vec<f64>, least: f64) -> Share {
    let median = summary(shares.clone()).map_or(0.0, |summary| summary.median);
    Share { store, workload, shares, median, least, holds: median >= least }
}

async fn ours(backend: Backend) -> Result<Rates, AnyError> {
    let database = backend.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    let publish = engine::publish(&queue, CALLERS, BATCH, EVENTS).await?;
    let drain = engine::drain(&queue, CALLERS, BATCH, EVENTS).await?;
    queue.close().await;
    Ok(Rates { publish, drain })
}

async fn floor(backend: Backend) -> Result<Rates, AnyError> {
    let database = backend.create_database().await?;
    match backend {
        Backend::Postgres => floor_postgres::measure(&database.url).await,
        Backend::Sqlite => {
            let file = database.url.trim_start_matches("sqlite://").to_owned();
            tokio::task::spawn_blocking(move || floor_sqlite::measure(&file)).await?
        }
    }
}

fn print(shares: &[Share]) {
    println!("| store | workload | share of bare SQL (median) | each round | at least | holds |");
    println!("| --- | --- | ---: | --- | ---: | --- |");
    for share in shares {
        let rounds: Vec<String> = share.shares.iter().map(|share| format!("{share:.2}")).collect();
        let (store, workload, median, least) = (share.store, share.workload, share.median, share.least);
        let (rounds, holds) = (rounds.join(" "), if share.holds { "yes" } else { "no" });
        println!("| {store} | {workload} | {median:.2} | {rounds} | {least:.2} | {holds} |");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_share_decides() {
        assert!(share("SQLite", "drain", vec![0.1, 0.5, 0.6], 0.5).holds);
        assert!(!share("SQLite", "drain", vec![0.9, 0.4, 0.3], 0.5).holds);
    }
}
