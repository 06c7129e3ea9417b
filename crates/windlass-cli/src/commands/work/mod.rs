//! `windlass work`: claims events and runs a command for each.
//!
//! [`claim`] claims events and starts their attempts, [`attempt`] takes an event from its lease to its report, and
//! [`process`] runs the command. The decision from exit code to outcome is in [`outcome`].

mod attempt;
mod claim;
mod environment;
mod lease;
mod outcome;
mod output_tail;
mod printer;
mod process;
mod register;
mod report;
mod shutdown;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use self::printer::OutputPrinter;
use self::shutdown::Shutdown;
use crate::Result;
use crate::api::{Api, ApiResponse, NamespaceTarget, Unreachable};
use crate::exit::UsageError;
use crate::time::parse_duration;

/// Run a command for each event
///
/// Takes events as they come and runs the command for each: the payload on its stdin, its exit code the outcome. So many
/// run at a time as --concurrency says, until it is told to stop. What the command prints is kept with the attempt:
/// `windlass get ID` shows it.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Work {
    #[command(flatten)]
    target: NamespaceTarget,
    #[command(flatten)]
    options: WorkOptions,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", last = true, required = true)]
    command: Vec<OsString>,
}

/// Options of the worker.
#[derive(Args)]
struct WorkOptions {
    /// Only events of these types, exact or by prefix ending in `*`; several with commas
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Only events with any of these tags; several with commas
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',')]
    tags: Vec<String>,
    /// Take from this subscription
    #[arg(long, value_name = "NAME", default_value = "main")]
    subscription: String,
    /// How many commands run at once
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    concurrency: u32,
    /// How many consecutive events of a group to claim together. Their commands run one after the other, in order; if one
    /// fails, the later events are released. With --max, events are claimed one by one
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    group_run: u32,
    /// How long a command may take; then it is ended, and has failed. No bound if not given
    #[arg(long, value_name = "SPAN", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// For how long an event stays ours when nothing is heard of us. It is renewed while the command runs
    #[arg(long, value_name = "SPAN", value_parser = parse_lease, default_value = "60s")]
    lease: Duration,
    /// How long commands may go on once we are told to stop
    #[arg(long, value_name = "SPAN", value_parser = parse_duration, default_value = "30s")]
    grace: Duration,
    /// For how long an event is put back when its command exits with 75
    #[arg(long, value_name = "SPAN", value_parser = parse_duration, default_value = "60s")]
    snooze: Duration,
    /// Stop after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// Stop when there is nothing to take
    #[arg(long, conflicts_with = "max")]
    until_empty: bool,
    /// Who we are, to the queue; host:pid if not given
    #[arg(long, value_name = "NAME")]
    worker_id: Option<String>,
    /// Do not show what commands print
    #[arg(long, short)]
    quiet: bool,
}

const AFTER_HELP: &str = "\
Examples:
  windlass work --type order.paid -- ./ship.sh
  windlass work --tag email --concurrency 8 --timeout 30s -- python3 send.py
  windlass work --type 'report.*' --until-empty --server https://events.example.com -- make report

The command gets the event's payload on stdin, as JSON and exactly as it is stored, and in its environment
  WINDLASS_EVENT_ID, WINDLASS_EVENT_TYPE, WINDLASS_EVENT_TITLE, WINDLASS_EVENT_DESCRIPTION, WINDLASS_EVENT_TAGS,
  WINDLASS_EVENT_KEY, WINDLASS_EVENT_GROUP, WINDLASS_EVENT_PRIORITY, WINDLASS_EVENT_CREATED_AT,
  WINDLASS_EVENT_METADATA, WINDLASS_ATTEMPT, WINDLASS_RETRY_COUNT, WINDLASS_MAX_RETRIES, WINDLASS_SUBSCRIPTION,
  WINDLASS_NAMESPACE, WINDLASS_WORKER_ID, and TRACEPARENT and TRACESTATE of who published it.
What the event does not have is not set.

Exit codes of the command:
  0          done
  65         it will never work: a dead letter, at once
  75         not now: put back for --snooze, which counts as no failure
  any other, or a signal
             failed: tried again after the policy's backoff, until the retries are used up

Signals: at the first SIGTERM, SIGINT (Ctrl-C) or SIGHUP nothing more is taken, and commands may finish within
--grace. Then, or at a second signal, they get SIGTERM, and SIGKILL five seconds later; their events are given back, which
counts as no failure, whatever they exit with. Each command has a process group of its own, so a Ctrl-C does not
reach it before, and whatever it started ends with it.

While the server or database is away commands go on; what came of them is reported when it is back. Exit code 0 after
a stop, also where commands failed.";

/// A shorter lease could not be renewed in time on a busy machine.
const LEASE_MIN: Duration = Duration::from_secs(1);

fn parse_lease(text: &str) -> std::result::Result<Duration, &'static str> {
    parse_duration(text).and_then(|lease| if lease < LEASE_MIN { Err("must be at least 1s") } else { Ok(lease) })
}

/// Interval between two checks for due maintenance tasks, the same as on nodes.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);

/// After this time without a response, a request is retried.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// The state that all parts of the command share.
struct Worker {
    api: Api,
    namespace: String,
    worker_id: String,
    options: WorkOptions,
    program: PathBuf,
    args: Vec<OsString>,
    shutdown: Shutdown,
    printer: OutputPrinter,
}

impl Work {
    pub async fn run(self) -> Result {
        let Work { target, options, mut command } = self;
        let program = find_program(&command.remove(0))?;
        let worker_id = options.worker_id.clone().unwrap_or_else(register::host_and_pid);
        let api = target.connect().await?;
        let shutdown = Shutdown::on_signals(options.grace)?;
        let (namespace, printer) = (target.namespace.clone(), OutputPrinter::new(options.quiet));
        let worker = Arc::new(Worker { api, namespace, worker_id, options, program, args: command, shutdown, printer });
        worker.register().await?;
        let maintenance = worker.api.queue().cloned().map(|queue| {
            // On a database, no server may be running that does the maintenance.
            tokio::spawn(async move { queue.maintain_all(MAINTENANCE_INTERVAL).await })
        });
        let heartbeats = tokio::spawn(worker.clone().send_heartbeats());
        let result = worker.clone().claim_and_run().await;
        heartbeats.abort();
        worker.unregister().await;
        if let Some(maintenance) = maintenance {
            maintenance.abort();
        }
        if let Some(queue) = worker.api.queue() {
            queue.close().await;
        }
        worker.printer.flush();
        result
    }
}

impl Worker {
    /// Posts to a path of the namespace.
    async fn post(&self, path: &str, body: &impl Serialize, timeout: Duration) -> Result<ApiResponse> {
        with_timeout(timeout, self.api.post(&self.api.namespace_path(path), &[], body)).await
    }
}

async fn with_timeout<T>(timeout: Duration, request: impl Future<Output = Result<T>>) -> Result<T> {
    let timed_out = |_| Unreachable(format!("there was no answer within {} s", timeout.as_secs()));
    tokio::time::timeout(timeout, request).await.map_err(timed_out)?
}

/// Finds the program in PATH or at its path, so that a missing program is an error before the first claim.
fn find_program(name: &OsString) -> Result<PathBuf> {
    let named = Path::new(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates: Vec<PathBuf> = match named.components().count() {
        1 => std::env::split_paths(&path).map(|folder| folder.join(named)).collect(),
        _ => vec![named.to_owned()],
    };
    let shown = named.display();
    if let Some(found) = candidates.iter().find(|path| is_executable(path)) {
        return Ok(found.clone());
    }
    Err(UsageError(match candidates.iter().any(|path| path.is_file()) {
        true => format!("'{shown}' may not be executed; try `chmod +x`, or name the program that runs it, as in `sh`"),
        false if named.components().count() == 1 => format!("there is no program '{shown}' in PATH"),
        false => format!("there is no program '{shown}'"),
    })
    .into())
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn missing_response_is_a_temporary_error() {
        let error = with_timeout::<()>(Duration::ZERO, std::future::pending()).await.unwrap_err();
        assert!(claim::is_temporary(&*error), "{error}");
        assert_eq!(with_timeout(RESPONSE_TIMEOUT, async { Ok(7) }).await.unwrap(), 7);
    }

    #[test]
    fn missing_or_non_executable_program_is_an_error() {
        assert!(find_program(&"sh".into()).unwrap().is_absolute());
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        let error = |name: &Path| find_program(&name.into()).unwrap_err().to_string();
        assert_eq!(error(&script), format!("there is no program '{}'", script.display()));
        assert_eq!(error(Path::new("no-such-program")), "there is no program 'no-such-program' in PATH");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        assert!(error(&script).contains("may not be executed; try `chmod +x`"));
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_program(&script.clone().into()).unwrap(), script);
    }
}
