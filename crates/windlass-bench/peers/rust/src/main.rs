//! Speaks the adapter protocol of `windlass-bench compare` for one peer of Windlass.

use std::process::ExitCode;

use protocol::Result;
use serve::serve;

mod apalis_postgres_peer;
mod apalis_sqlite_peer;
mod awa_peer;
mod beanstalkd;
mod board;
mod graphile_worker_peer;
mod nats;
mod peer;
mod pgmq_peer;
mod protocol;
mod serve;
mod workload;

// The allocator that Windlass is measured with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    match run(&name).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(name: &str) -> Result<()> {
    match name {
        "apalis-postgres" => serve::<apalis_postgres_peer::ApalisPostgres>().await,
        "apalis-sqlite" => serve::<apalis_sqlite_peer::ApalisSqlite>().await,
        "awa" => serve::<awa_peer::Awa>().await,
        "beanstalkd" => serve::<beanstalkd::Beanstalkd>().await,
        "graphile-worker-rs" => serve::<graphile_worker_peer::GraphileWorker>().await,
        "nats" => serve::<nats::Nats>().await,
        "pgmq" => serve::<pgmq_peer::Pgmq>().await,
        _ => Err(format!(
            "`{name}` is none of apalis-postgres, apalis-sqlite, awa, beanstalkd, graphile-worker-rs, nats, pgmq"
        )
        .into()),
    }
}

/// The version of a package that this program is locked to.
fn version_of(package: &str) -> String {
    peer::locked_version(include_str!("../Cargo.lock"), package)
}
