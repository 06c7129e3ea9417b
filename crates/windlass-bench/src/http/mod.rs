//! Benchmarks over HTTP, against `windlass serve` in its own process.

mod api;
pub(crate) mod connection;
mod load;
mod measure;
mod poller_pool;
mod pollers;
mod report;
pub(crate) mod server;
mod soak;

use std::time::Duration;

use clap::{Args, ValueEnum};

use self::server::ServerTarget;
use crate::AnyError;
use crate::store::Backend;

#[derive(Args)]
pub struct Options {
    /// URL of a running server (http://HOST:PORT), instead of one that is started for each measurement.
    #[arg(long, value_name = "URL", conflicts_with = "store")]
    server: Option<String>,
    /// Process id of the running server, to read its CPU time and memory.
    #[arg(long, value_name = "PID", requires = "server")]
    server_pid: Option<u32>,
    /// Only this store.
    #[arg(long, value_enum)]
    store: Option<Backend>,
    /// Only this workload; soak and pollers run only if named.
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    /// Number of connections; each sends its next request when it has the response.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..))]
    connections: u16,
    /// Seconds per measurement [default: 10; soak 300; pollers 20, idle]
    #[arg(long)]
    seconds: Option<u64>,
    /// Measurements of each case; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// soak: number of events published and not yet completed.
    #[arg(long, default_value_t = 1000)]
    backlog: usize,
    /// pollers: number of connections that wait for an event.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pollers: u32,
    /// pollers: each waits for its own tag.
    #[arg(long)]
    distinct_tags: bool,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Workload {
    /// One event per request.
    Publish,
    /// Claim one event, complete it.
    Work,
    /// 100 events per request.
    PublishBatch,
    /// Claim up to 100 events, complete them together.
    WorkBatch,
    /// Publish and work concurrently for a long time, to find memory growth and slowdown.
    Soak,
    /// Many connections that wait for an event: their cost, and the latency of an event.
    Pollers,
}

impl Options {
    pub fn needs_postgres(&self) -> bool {
        self.server.is_none() && self.store != Some(Backend::Sqlite)
    }

    fn targets(&self) -> Vec<ServerTarget> {
        match &self.server {
            Some(url) => vec![ServerTarget::Running { url: url.clone(), pid: self.server_pid }],
            None => {
                let stores = Backend::ALL.into_iter().filter(|store| self.store.is_none_or(|only| only == *store));
                stores.map(ServerTarget::Started).collect()
            }
        }
    }

    fn time(&self, usual: u64) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(usual).max(1))
    }
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    match options.workload {
        Some(Workload::Soak) => soak::run(options).await,
        Some(Workload::Pollers) => pollers::run(options).await,
        _ => measure::run(options).await,
    }
}
