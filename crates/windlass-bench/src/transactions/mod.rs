//! Publishing in transactions of the application, on PostgreSQL.
//!
//! Each measurement runs together with its control in one run, and the rounds alternate.

mod contention;
mod cost;
mod delay;
mod held;
mod pgbench;
mod routing;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::AnyError;

#[derive(Args)]
pub struct Options {
    /// Only this measurement.
    #[arg(long, value_enum)]
    only: Option<Measurement>,
    /// Seconds per run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Runs of each case; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// pgmq's `pgmq.sql`, to compare `pgmq.send` with `windlass.publish`.
    #[arg(long, value_name = "FILE")]
    pgmq_sql: Option<PathBuf>,
    /// cost: only this number of connections.
    #[arg(long)]
    connections: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Measurement {
    /// Transactions/s of an INSERT alone, with `windlass.publish`, with the outbox, with `publish_in` and with `pgmq.send`.
    Cost,
    /// 200 connections with transactions of 50 ms, which publish to no group, to their own or to some of four groups.
    Contention,
    /// Latency from the commit to the start of the handler.
    Delay,
    /// The rates of a process while a transaction that has published stays open.
    Held,
    /// The rate at which arrivals become deliveries.
    Routing,
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    for measurement in Measurement::value_variants() {
        if options.only.is_some_and(|only| only != *measurement) {
            continue;
        }
        match measurement {
            Measurement::Cost => cost::run(options).await?,
            Measurement::Contention => contention::run(options).await?,
            Measurement::Delay => delay::run(options).await?,
            Measurement::Held => held::run(options).await?,
            Measurement::Routing => routing::run(options).await?,
        }
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
