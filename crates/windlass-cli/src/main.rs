//! The `windlass` command: parses the command line and maps the result to an exit code.

mod api;
mod commands;
mod database;
mod exit;
mod help;
mod hints;
mod input;
mod interrupts;
mod logging;
mod output;
#[cfg(test)]
mod reference;
mod time;
mod traces;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::output::{BAD, FAINT, paint, sanitize_lines};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The result of every command. The error is shown to the user.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A durable event queue in your own relational database.
#[derive(Parser)]
#[command(name = "windlass", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    logging: logging::LoggingOptions,
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

/// The definition of all commands and options.
fn command_definition() -> clap::Command {
    help::group_subcommands(Cli::command())
}

#[tokio::main]
async fn main() -> ExitCode {
    let matches = command_definition().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed pipe is no error: `windlass list | head` ends this way.
            if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                return ExitCode::SUCCESS;
            }
            if !error.is::<exit::AlreadyReported>() {
                print_error(&*error);
            }
            ExitCode::from(exit::code(&*error))
        }
    }
}

/// Prints the error and its hint. Write errors are ignored: there is no other place to report them.
fn print_error(error: &(dyn std::error::Error + 'static)) {
    let (label, message) = (paint("error:", BAD), sanitize_lines(&error.to_string()));
    let hint = hints::hint_for(error).map(|hint| format!("{} {hint}\n", paint("hint:", FAINT)));
    let _ = write!(anstream::stderr(), "{label} {message}\n{}", hint.unwrap_or_default());
}

async fn run(cli: Cli) -> Result {
    // No logging here: log lines on stderr would corrupt the full-screen display.
    if let Command::Top(top) = cli.command {
        return top.run().await;
    }
    let traces = cli.logging.start()?;
    let result = run_command(cli.command).await;
    traces.shut_down();
    result
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
