//! The cost of the dashboard's pages on a large database: of each read, and of the pages themselves.

mod fill;
mod reads;
mod visit;

use clap::Args;
use serde::Serialize;
use windlass::Queue;

use crate::AnyError;
use crate::latency::Percentiles;
use crate::store::Backend;

#[derive(Args)]
pub struct Options {
    /// Only this store.
    #[arg(long, value_enum)]
    store: Option<Backend>,
    /// Number of events in the namespace; a tenth of them are dead letters, and another namespace has a tenth as
    /// many.
    #[arg(long, default_value_t = 1_000_000)]
    events: u32,
    /// Number of pending events among them.
    #[arg(long, default_value_t = 10_000)]
    pending: u32,
    /// Measurements of each read.
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Use this database, filling it if it is empty, instead of a temporary one.
    #[arg(long, requires = "store")]
    database: Option<String>,
    /// Get the pages of the server at this address (`127.0.0.1:7700`) instead of measuring reads. It must serve a
    /// filled database.
    #[arg(long, value_name = "ADDRESS")]
    server: Option<std::net::SocketAddr>,
    /// JSON instead of tables.
    #[arg(long)]
    json: bool,
}

impl Options {
    pub fn needs_postgres(&self) -> bool {
        self.server.is_none() && self.database.is_none() && self.store != Some(Backend::Sqlite)
    }
}

#[derive(Serialize)]
struct Measured {
    of: String,
    times: Vec<Percentiles>,
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut all = Vec::new();
    if let Some(address) = options.server {
        let times = visit::measure(address, options.rounds).await?;
        all.push(Measured { of: format!("pages at {address}"), times });
    } else {
        for backend in Backend::ALL {
            if options.store.is_none_or(|only| only == backend) {
                all.push(measure(options, backend).await?);
            }
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        all.iter().for_each(print);
    }
    Ok(())
}

async fn measure(options: &Options, backend: Backend) -> Result<Measured, AnyError> {
    let fresh = match options.database {
        Some(_) => None,
        None => Some(backend.create_database().await?),
    };
    let url = options.database.as_deref().or(fresh.as_ref().map(|fresh| &*fresh.url)).ok_or("there is a database")?;
    fill::fill(backend, url, options.events, options.pending).await?;
    let queue = Queue::open(url).await?;
    let times = reads::measure(&queue, options.rounds).await?;
    queue.close().await;
    Ok(Measured { of: format!("{}: {} events, {} waiting", backend.name(), options.events, options.pending), times })
}

fn print(measured: &Measured) {
    println!("\n{}\n", measured.of);
    println!("| read | p50, ms | p95 | max |");
    println!("| --- | ---: | ---: | ---: |");
    for Percentiles { request, p50_ms, p95_ms, max_ms, .. } in &measured.times {
        println!("| {request} | {p50_ms:.1} | {p95_ms:.1} | {max_ms:.1} |");
    }
}
