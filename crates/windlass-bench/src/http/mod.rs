//! Publish and work over HTTP, against `windlass serve` as a process of its own.

mod api;
pub(crate) mod connection;
mod crowd;
mod load;
mod measure;
mod pollers;
mod report;
pub(crate) mod server;
mod soak;

use std::time::Duration;

use clap::{Args, ValueEnum};

use self::server::Place;
use crate::AnyError;
use crate::store::Backend;

#[derive(Args)]
pub struct Options {
    /// A running server, as http://HOST:PORT, instead of one that is started for each measurement.
    #[arg(long, value_name = "URL", conflicts_with = "store")]
    server: Option<String>,
    /// The running server's process, to read its CPU time and memory.
    #[arg(long, value_name = "PID", requires = "server")]
    server_pid: Option<u32>,
    /// Only this store.
    #[arg(long, value_enum)]
    store: Option<Backend>,
    /// Only this workload; soak and pollers run only if they are named.
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    /// How many connections; each sends its next request once it has an answer.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..))]
    connections: u16,
    /// How long each measurement takes [default: 10; soak 300; pollers 20, idle]
    #[arg(long)]
    seconds: Option<u64>,
    /// How often each is measured; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// soak: how many events are published and not yet completed.
    #[arg(long, default_value_t = 1000)]
    backlog: usize,
    /// pollers: how many connections wait for an event.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pollers: u32,
    /// pollers: each waits for a tag of its own.
    #[arg(long)]
    distinct_tags: bool,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Workload {
    /// One event in a request.
    Publish,
    /// Take one, complete it.
    Work,
    /// 100 events in a request.
    PublishBatch,
    /// Take up to 100, complete them together.
    WorkBatch,
    /// Publish and work at once, for a long time: does memory grow, does it slow down?
    Soak,
    /// Many connections that wait for an event: what they cost, and how soon an event reaches one.
    Pollers,
}

impl Options {
    pub fn needs_postgres(&self) -> bool {
        self.server.is_none() && self.store != Some(Backend::Sqlite)
    }

    fn places(&self) -> Vec<Place> {
        match &self.server {
            Some(url) => vec![Place::Running { url: url.clone(), pid: self.server_pid }],
            None => {
                let stores = Backend::ALL.into_iter().filter(|store| self.store.is_none_or(|only| only == *store));
                stores.map(Place::Own).collect()
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
