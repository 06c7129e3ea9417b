//! Benchmarks of Windlass, one subcommand per workload. Results depend on the machine: compare only within one run.

use std::future::Future;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

mod adapter;
mod compare;
mod engine;
mod event;
mod guard;
mod history;
mod http;
mod latency;
mod nodes;
mod pages;
mod postgres;
mod report;
mod schedules;
mod statistics;
mod store;
mod transactions;
mod usage;
mod wake;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An error that is printed for the user.
type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Measures Windlass.
#[derive(Parser)]
#[command(
    name = "windlass-bench",
    version,
    after_help = "PostgreSQL is taken from WINDLASS_TEST_POSTGRES; \
    without it, a throw-away server is started by `cargo xtask postgres --durable`."
)]
struct Cli {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    /// Publish and drain through the library, in batches of 1, 100 and 1000, by 1 and 16 callers.
    Engine(engine::Options),
    /// The same over HTTP, against `windlass serve`; also long runs and many waiting connections.
    Http(http::Options),
    /// Handlers on a node: throughput, latency and idle cost.
    Nodes(nodes::Options),
    /// The cost of a long history: publish, claim and finish on an empty and on a full database.
    History(history::Options),
    /// Regression check: rates as shares of what bare SQL reaches in the same run.
    Guard(guard::Options),
    /// The cost of a scheduler tick among many schedules.
    Schedules(schedules::Options),
    /// The cost of the dashboard's pages with a million events and a hundred thousand dead letters.
    Pages(pages::Options),
    /// Wake-up latency between two processes that share a database.
    Wake(wake::Options),
    /// Publishing in transactions of the application, on PostgreSQL: its cost, and whether transactions block each
    /// other.
    Transactions(transactions::Options),
    /// Windlass and its peers, on one machine and in one run.
    Compare(compare::Options),
    /// Windlass as a system measured by `compare`.
    #[command(hide = true)]
    Adapter(adapter::Options),
    /// The claiming process of `wake`.
    #[command(hide = true)]
    WakeClaimer(wake::ClaimerOptions),
}

fn main() -> ExitCode {
    let workload = Cli::parse().workload;
    let needs_postgres = match &workload {
        Workload::Engine(options) => options.needs_postgres(),
        Workload::Http(options) => options.needs_postgres(),
        Workload::Nodes(options) => options.needs_postgres(),
        Workload::History(options) => options.needs_postgres(),
        Workload::Guard(options) => options.needs_postgres(),
        Workload::Schedules(options) => options.needs_postgres(),
        Workload::Pages(options) => options.needs_postgres(),
        Workload::Wake(options) => options.needs_postgres(),
        Workload::Compare(options) => options.needs_postgres(),
        Workload::Transactions(_) => true,
        Workload::Adapter(_) | Workload::WakeClaimer(_) => false,
    };
    if needs_postgres && postgres::url().is_none() {
        return postgres::run_again_with_server();
    }
    let done = match workload {
        Workload::Engine(options) => run(Builder::new_multi_thread(), engine::run(&options)),
        // One thread, to leave most of the machine to the server.
        Workload::Http(options) => run(Builder::new_current_thread(), http::run(&options)),
        Workload::Nodes(options) => run(Builder::new_multi_thread(), nodes::run(&options)),
        Workload::History(options) => run(Builder::new_multi_thread(), history::run(&options)),
        Workload::Guard(options) => run(Builder::new_multi_thread(), guard::run(&options)),
        Workload::Schedules(options) => run(Builder::new_multi_thread(), schedules::run(&options)),
        Workload::Pages(options) => run(Builder::new_multi_thread(), pages::run(&options)),
        Workload::Wake(options) => run(Builder::new_multi_thread(), wake::run(&options)),
        Workload::Compare(options) => run(Builder::new_current_thread(), compare::run(&options)),
        Workload::Transactions(options) => run(Builder::new_multi_thread(), transactions::run(&options)),
        Workload::Adapter(options) => run(Builder::new_multi_thread(), adapter::run(&options)),
        Workload::WakeClaimer(options) => run(Builder::new_multi_thread(), wake::claim(&options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the workload until it ends or a signal arrives. Dropping the workload stops everything that it started.
fn run(mut runtime: Builder, workload: impl Future<Output = Result<(), AnyError>>) -> Result<(), AnyError> {
    runtime.enable_all().build()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            done = workload => done,
            _ = terminate.recv() => Err("terminated".into()),
            _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        }
    })
}
