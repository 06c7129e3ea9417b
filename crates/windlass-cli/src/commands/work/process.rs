//! Runs the command of an event in a process group: writes its input, reads its output and ends it if necessary.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::Worker;
use super::claim::Backoff;
use super::environment::variables;
use super::lease::LeaseRenewer;
use super::outcome::{CommandEnd, CommandResult};
use super::output_tail::OutputTail;
use super::printer::LinePrefixer;
use crate::api::responses::ClaimedEvent;

/// Time between SIGTERM and SIGKILL.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// How long background processes of a finished command may keep its output open.
const OUTPUT_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Worker {
    pub async fn run_command(&self, event: &ClaimedEvent, renewer: &LeaseRenewer) -> CommandResult {
        let mut child = match self.start_command(event, renewer).await {
            Ok(child) => child,
            Err(end) => return CommandResult { end, stdout: OutputTail::default(), stderr: OutputTail::default() },
        };
        let group = ProcessGroup::of(&child);
        write_payload(&mut child, event.payload.get());
        let mut stdout = self.spawn_reader(event.id, child.stdout.take());
        let mut stderr = self.spawn_reader(event.id, child.stderr.take());
        let end = self.wait_for_end(&mut child, &group, renewer).await;
        finish_reading(&group, &mut stdout, &mut stderr).await;
        CommandResult { end, stdout: stdout.into_tail(), stderr: stderr.into_tail() }
    }

    /// Starts the command. A temporary lack of system resources is retried.
    async fn start_command(&self, event: &ClaimedEvent, renewer: &LeaseRenewer) -> Result<Child, CommandEnd> {
        let mut backoff = Backoff::short();
        loop {
            let error = match self.spawn(event) {
                Ok(child) => return Ok(child),
                Err(error) => error,
            };
            let message = format!("cannot run '{}': {error}", self.program.display());
            match classify_start_error(&error) {
                StartFailure::EventTooLarge => return Err(CommandEnd::EventTooLarge(message)),
                StartFailure::Program => return Err(CommandEnd::NotStarted(message)),
                StartFailure::Temporary => {}
            }
            let delay = backoff.next_delay();
            tracing::warn!(%error, event_id = event.id, again_in = ?delay, "could not start the command; trying again");
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = renewer.wait_for_loss() => return Err(CommandEnd::LeaseLost),
                () = self.shutdown.wait_for_draining() => return Err(CommandEnd::Stopped),
            }
        }
    }

    fn spawn(&self, event: &ClaimedEvent) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // With its own process group, the command gets no signals of the terminal, and this worker can signal all
        // processes that the command started.
        command.process_group(0);
        for (name, value) in variables(self, event) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.spawn()
    }

    async fn wait_for_end(&self, child: &mut Child, group: &ProcessGroup, renewer: &LeaseRenewer) -> CommandEnd {
        let end = tokio::select! {
            biased;
            status = child.wait() => return end_of_exit(status),
            () = renewer.wait_for_loss() => CommandEnd::LeaseLost,
            () = self.shutdown.wait_for_terminating() => CommandEnd::Stopped,
            after = wait_for_timeout(self.options.timeout) => CommandEnd::TimedOut(after),
        };
        group.signal(Signal::TERM);
        if tokio::time::timeout(KILL_AFTER, child.wait()).await.is_err() {
            group.signal(Signal::KILL);
            let _ = child.wait().await;
        }
        // Other processes of the group had the same time to end.
        group.signal(Signal::KILL);
        end
    }

    fn spawn_reader<R: AsyncRead + Unpin + Send + 'static>(&self, event_id: i64, stream: Option<R>) -> OutputReader {
        let tail = Arc::new(Mutex::new(OutputTail::default()));
        let printer = self.printer.stream(event_id);
        let task = stream.map(|stream| tokio::spawn(copy_output(stream, tail.clone(), printer)));
        OutputReader { tail, task }
    }
}

/// Why a command could not be started.
#[derive(Debug, PartialEq, Eq)]
enum StartFailure {
    /// The event's variables do not fit into the environment.
    EventTooLarge,
    /// The system lacks resources now, or the program is being replaced.
    Temporary,
    /// The program cannot be executed.
    Program,
}

fn classify_start_error(error: &std::io::Error) -> StartFailure {
    match Errno::from_io_error(error) {
        Some(Errno::TOOBIG) => StartFailure::EventTooLarge,
        Some(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::TXTBSY) => StartFailure::Temporary,
        _ => StartFailure::Program,
    }
}

fn end_of_exit(status: std::io::Result<ExitStatus>) -> CommandEnd {
    match status {
        Ok(status) => CommandEnd::Exited(status),
        Err(error) => CommandEnd::NotStarted(format!("could not wait for the command: {error}")),
    }
}

async fn wait_for_timeout(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(timeout) => {
            tokio::time::sleep(timeout).await;
            timeout
        }
        None => std::future::pending().await,
    }
}

/// The process group of one command.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// The command leads the group, so the group has the command's process id.
    fn of(child: &Child) -> ProcessGroup {
        ProcessGroup(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }

    fn signal(&self, signal: Signal) {
        // Ignore errors: the group may have no processes left.
        let _ = self.0.map(|group| kill_process_group(group, signal));
    }
}

/// Writes the payload to stdin in the background. Errors are ignored: a command need not read it.
fn write_payload(child: &mut Child, payload: &str) {
    let payload = payload.as_bytes().to_vec();
    if let Some(mut stdin) = child.stdin.take() {
        tokio::spawn(async move { stdin.write_all(&payload).await });
    }
}

/// Reads one output stream in the background and keeps its end.
struct OutputReader {
    tail: Arc<Mutex<OutputTail>>,
    task: Option<JoinHandle<()>>,
}

impl OutputReader {
    /// Completes when the stream has ended.
    async fn wait(&mut self) {
        if let Some(task) = &mut self.task {
            // Ignore errors: the tail has what was read before.
            let _ = task.await;
            self.task = None;
        }
    }

    fn into_tail(self) -> OutputTail {
        if let Some(task) = &self.task {
            task.abort();
        }
        let mut tail = self.tail.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::take(&mut *tail)
    }
}

async fn copy_output(mut stream: impl AsyncRead + Unpin, tail: Arc<Mutex<OutputTail>>, mut printer: LinePrefixer) {
    let mut buffer = [0; 8 << 10];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        tail.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(&buffer[..length]);
        printer.push(&buffer[..length]).await;
    }
    printer.end().await;
}

/// Reads both streams to their end. Ends background processes of the command that keep its output open.
async fn finish_reading(group: &ProcessGroup, stdout: &mut OutputReader, stderr: &mut OutputReader) {
    let mut both = std::pin::pin!(async {
        stdout.wait().await;
        stderr.wait().await;
    });
    for signal in [Signal::TERM, Signal::KILL] {
        if tokio::time::timeout(OUTPUT_CLOSE_TIMEOUT, &mut both).await.is_ok() {
            return;
        }
        group.signal(signal);
    }
    // A process outside the group may still have the output open.
    let _ = tokio::time::timeout(OUTPUT_CLOSE_TIMEOUT, both).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_errors_are_classified() {
        let table = [
            (Errno::TOOBIG, StartFailure::EventTooLarge),
            (Errno::AGAIN, StartFailure::Temporary),
            (Errno::MFILE, StartFailure::Temporary),
            (Errno::TXTBSY, StartFailure::Temporary),
            (Errno::NOENT, StartFailure::Program),
            (Errno::ACCESS, StartFailure::Program),
            (Errno::NOEXEC, StartFailure::Program),
        ];
        for (errno, expected) in table {
            assert_eq!(classify_start_error(&errno.into()), expected, "{errno}");
        }
        assert_eq!(classify_start_error(&std::io::Error::other("?")), StartFailure::Program);
    }
}
