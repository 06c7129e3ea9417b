//! The `windlass` command: parses the command line and maps the result to an exit code.

mod advice;
mod api;
mod commands;
mod database;
mod exit;
mod help;
mod input;
mod interrupts;
mod logging;
mod output;
#[cfg(test)]
mod reference;
mod traces;
mod when;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::output::{BAD, FAINT, clean_lines, paint};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What every command returns: the error is for people.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A durable event queue in your own relational database.
#[derive(Parser)]
#[command(name = "windlass", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    logging: logging::Logging,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  windlass serve             a server for this machine, its database in this folder
  windlass stats             how much there is of what, in the database in this folder
  windlass tail --server https://events.example.com --token wl_…
  windlass dead-letters redrive --type 'order.*' --database postgres://me@host/db
  windlass help get          all about a command

Environment:
  WINDLASS_DATABASE          default for --database
  WINDLASS_SERVER            default for --server, which goes before any database
  WINDLASS_TOKEN             default for --token
  WINDLASS_NAMESPACE         default for --namespace
  WINDLASS_LOG, or RUST_LOG  what is logged: `debug`, `windlass=debug,sqlx=warn`
  WINDLASS_LOG_FORMAT        default for --log-format
  NO_COLOR                   no colours, also on a terminal

Exit codes:
  0 fine, 1 something failed, 2 wrong usage or input, 3 not found, 4 not allowed,
  5 the database or server cannot be reached";

#[derive(Subcommand)]
enum Command {
    Publish(commands::publish::Publish),
    #[cfg(unix)]
    Work(commands::work::Work),
    Get(commands::get::Get),
    List(commands::list::List),
    Tail(commands::tail::Tail),
    Cancel(commands::cancel::Cancel),
    Reset(commands::reset::Reset),
    DeadLetters(commands::dead_letters::DeadLetters),
    Top(commands::top::Top),
    Stats(commands::stats::Stats),
    Stuck(commands::stuck::Stuck),
    Worker(commands::worker::Worker),
    Node(commands::node::Node),
    Doctor(commands::doctor::Doctor),
    Namespace(commands::namespace::Namespace),
    Subscription(commands::subscription::Subscription),
    Schedule(commands::schedule::Schedule),
    Token(commands::token::Token),
    Serve(commands::serve::Serve),
    Health(commands::health::Health),
    Migrate(commands::migrate::Migrate),
    History(commands::history::History),
    Completions(commands::completions::Completions),
}

/// The command line's definition.
fn definition() -> clap::Command {
    help::grouped(Cli::command())
}

#[tokio::main]
async fn main() -> ExitCode {
    let matches = definition().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever read our output has seen enough.
            if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                return ExitCode::SUCCESS;
            }
            if !error.is::<exit::Told>() {
                complain(&*error);
            }
            ExitCode::from(exit::code(&*error))
        }
    }
}

/// Nothing can be done where stderr is gone as well.
fn complain(error: &(dyn std::error::Error + 'static)) {
    let (label, sentence) = (paint("error:", BAD), clean_lines(&error.to_string()));
    let advice = advice::advice(error).map(|advice| format!("{} {advice}\n", paint("hint:", FAINT)));
    let _ = write!(anstream::stderr(), "{label} {sentence}\n{}", advice.unwrap_or_default());
}

async fn run(cli: Cli) -> Result {
    // A line of the log would go right through its screen.
    if let Command::Top(top) = cli.command {
        return top.run().await;
    }
    let traces = cli.logging.start()?;
    let done = run_command(cli.command).await;
    traces.end();
    done
}

async fn run_command(command: Command) -> Result {
    match command {
        Command::Publish(publish) => publish.run().await,
        #[cfg(unix)]
        Command::Work(work) => work.run().await,
        Command::Get(get) => get.run().await,
        Command::List(list) => list.run().await,
        Command::Tail(tail) => tail.run().await,
        Command::Cancel(cancel) => cancel.run().await,
        Command::Reset(reset) => reset.run().await,
        Command::DeadLetters(dead_letters) => dead_letters.run().await,
        Command::Top(top) => top.run().await,
        Command::Stats(stats) => stats.run().await,
        Command::Stuck(stuck) => stuck.run().await,
        Command::Worker(worker) => worker.run().await,
        Command::Node(node) => node.run().await,
        Command::Doctor(doctor) => doctor.run().await,
        Command::Namespace(namespace) => namespace.run().await,
        Command::Subscription(subscription) => subscription.run().await,
        Command::Schedule(schedule) => schedule.run().await,
        Command::Token(token) => token.run().await,
        Command::Serve(serve) => serve.run().await,
        Command::Health(health) => health.run().await,
        Command::Migrate(migrate) => migrate.run().await,
        Command::History(history) => history.run().await,
        Command::Completions(completions) => completions.run(),
    }
}
