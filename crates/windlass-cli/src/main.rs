//! The `windlass` command: parses the command line and maps the result to an exit code.

mod api;
mod commands;
mod database;
mod exit;
mod logging;
mod output;
mod when;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What every command returns: the error is for people.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A durable event queue in your own relational database.
#[derive(Parser)]
#[command(version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  windlass serve
  windlass serve --database postgres://me:secret@localhost/events --listen 127.0.0.1:8080
  windlass get 1001 --server https://events.example.com --token wl_…
  windlass migrate status --json
  windlass token create --scope publish,consume --namespace orders --expires-in 90d
  windlass history export --to backup

Environment:
  WINDLASS_DATABASE, WINDLASS_LISTEN   defaults for --database and --listen
  WINDLASS_SERVER, WINDLASS_TOKEN      defaults for --server, which goes before any database, and --token
  WINDLASS_NAMESPACE                   default for --namespace
  WINDLASS_LOG, or else RUST_LOG       what is logged, such as `debug` or `windlass=debug,sqlx=warn`
  NO_COLOR                             no colours, also on a terminal

Exit codes: 0 fine, 1 something failed, 2 wrong usage or input, 3 not found, 4 not allowed, 5 the database or
server cannot be reached.";

#[derive(Subcommand)]
enum Command {
    Serve(commands::serve::Serve),
    Get(commands::get::Get),
    Migrate(commands::migrate::Migrate),
    Token(commands::token::Token),
    History(commands::history::History),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever read our output has seen enough.
            if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                return ExitCode::SUCCESS;
            }
            eprintln!("error: {}", output::clean_lines(&error.to_string()));
            ExitCode::from(exit::code(&*error))
        }
    }
}

async fn run(command: Command) -> Result {
    logging::start()?;
    match command {
        Command::Serve(serve) => serve.run().await,
        Command::Get(get) => get.run().await,
        Command::Migrate(migrate) => migrate.run().await,
        Command::Token(token) => token.run().await,
        Command::History(history) => history.run().await,
    }
}
