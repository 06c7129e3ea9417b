//! Benchmarks of handlers on a node in this process.

mod counter;
mod groups;
mod idle;
mod latency;
mod report;
mod slow_type;
mod stopwatch;
mod throughput;
mod transactional;

use std::time::Duration;

use clap::{Args, ValueEnum};

use self::report::Report;
use crate::AnyError;
use crate::store::Backend;

#[derive(Args)]
pub struct Options {
    /// Only this store.
    #[arg(long, value_enum)]
    store: Option<Backend>,
    /// Only this workload.
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    /// throughput, transactional: only this concurrency.
    #[arg(long)]
    concurrency: Option<usize>,
    /// throughput, transactional, groups: events per measurement [default: 100000; transactional 20000, groups 2000]
    #[arg(long)]
    events: Option<usize>,
    /// throughput, transactional, groups: measurements of each case; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// latency, slow-type, idle: seconds per measurement.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// JSON instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Workload {
    /// Drain a backlog with a handler that does nothing.
    Throughput,
    /// Latency from publishing, 50 times a second, to the start of the handler.
    Latency,
    /// The same while another type is slow.
    SlowType,
    /// An idle node.
    Idle,
    /// Drain a backlog with a handler that inserts a row in the transaction that completes its event, and with one
    /// that inserts it on its own connection.
    Transactional,
    /// Drain a backlog of ten groups with a handler that takes 5 ms.
    Groups,
}

impl Options {
    pub fn needs_postgres(&self) -> bool {
        self.store != Some(Backend::Sqlite)
    }

    fn stores(&self) -> impl Iterator<Item = Backend> {
        Backend::ALL.into_iter().filter(|store| self.store.is_none_or(|only| only == *store))
    }

    fn workloads(&self) -> impl Iterator<Item = Workload> {
        let all = Workload::value_variants().iter().copied();
        all.filter(|workload| self.workload.is_none_or(|only| only == *workload))
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut report = Report::start();
    for workload in options.workloads() {
        for store in options.stores() {
            match workload {
                Workload::Throughput => report.rates.extend(throughput::run(options, store).await?),
                Workload::Latency => report.delays.extend(latency::run(options, store).await?),
                Workload::SlowType => report.delays.extend(slow_type::run(options, store).await?),
                Workload::Idle => report.idle.push(idle::run(options, store).await?),
                Workload::Transactional => report.rates.extend(transactional::run(options, store).await?),
                Workload::Groups => report.rates.extend(groups::run(options, store).await?),
            }
        }
    }
    report.print(options.json);
    Ok(())
}
