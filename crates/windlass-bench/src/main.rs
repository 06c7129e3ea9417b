//! Measures Windlass. Figures hold for the machine they were measured on; compare within one run.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod engine;
mod postgres;
mod report;
mod store;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The error is for people.
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
}

fn main() -> ExitCode {
    let Workload::Engine(options) = Cli::parse().workload;
    if options.needs_postgres() && postgres::url().is_none() {
        return postgres::run_again_with_server();
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    match runtime.block_on(engine::run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&*error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}
