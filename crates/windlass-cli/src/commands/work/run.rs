//! Running a command: its input, its output, and how it is ended.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::Worker;
use super::claim::{Pause, Taken};
use super::environment::variables;
use super::hold::Hold;
use super::kept::Tail;
use super::show::Prefixed;
use super::verdict::{Ended, Ran};

/// Who does not end when asked to is killed after this time.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// What a command left behind has so long to close its output.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(1);

impl Worker {
    pub async fn run(&self, event: &Taken, hold: &Hold) -> Ran {
        let mut child = match self.start(event, hold).await {
            Ok(child) => child,
            Err(ended) => return Ran { ended, stdout: Tail::default(), stderr: Tail::default() },
        };
        let group = Group::of(&child);
        feed(&mut child, event.payload.get());
        let mut stdout = self.reader(event.id, child.stdout.take());
        let mut stderr = self.reader(event.id, child.stderr.take());
        let ended = self.watch(&mut child, &group, hold).await;
        finish_reading(&group, &mut stdout, &mut stderr).await;
        Ran { ended, stdout: stdout.into_tail(), stderr: stderr.into_tail() }
    }

    /// Where the system has no room for another process it is tried again: neither event nor program is to blame.
    async fn start(&self, event: &Taken, hold: &Hold) -> Result<Child, Ended> {
        let mut pause = Pause::short();
        loop {
            let error = match self.spawn(event) {
                Ok(child) => return Ok(child),
                Err(error) => error,
            };
            let said = format!("cannot run '{}': {error}", self.program.display());
            match obstacle(&error) {
                Obstacle::Event => return Err(Ended::TooLarge(said)),
                Obstacle::Program => return Err(Ended::NotStarted(said)),
                Obstacle::System => {}
            }
            let pause = pause.next();
            tracing::warn!(%error, event_id = event.id, again_in = ?pause, "cannot run the command now");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = hold.lost() => return Err(Ended::Lost),
                () = self.stop.begun() => return Err(Ended::Stopped),
            }
        }
    }

    fn spawn(&self, event: &Taken) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A signal from the terminal shall reach us alone, and one from us all that the command started.
        command.process_group(0);
        for (name, value) in variables(self, event) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.spawn()
    }

    async fn watch(&self, child: &mut Child, group: &Group, hold: &Hold) -> Ended {
        let ended = tokio::select! {
            biased;
            status = child.wait() => return exited(status),
            () = hold.lost() => Ended::Lost,
            () = self.stop.now() => Ended::Stopped,
            after = elapsed(self.options.timeout) => Ended::TimedOut(after),
        };
        group.signal(Signal::TERM);
        if tokio::time::timeout(KILL_AFTER, child.wait()).await.is_err() {
            group.signal(Signal::KILL);
            let _ = child.wait().await;
        }
        // Whoever else is in it has had his time, too.
        group.signal(Signal::KILL);
        ended
    }

    fn reader<R: AsyncRead + Unpin + Send + 'static>(&self, event_id: i64, stream: Option<R>) -> Reader {
        let tail = Arc::new(Mutex::new(Tail::default()));
        let (kept, shown) = (tail.clone(), self.shown.of(event_id));
        let reading = stream.map(|stream| tokio::spawn(read(stream, kept, shown)));
        Reader { tail, reading }
    }
}

/// What keeps a command from being started.
#[derive(Debug, PartialEq, Eq)]
enum Obstacle {
    /// What the event would put into the environment does not fit there.
    Event,
    /// There is no room now, or the program is being replaced: it passes.
    System,
    Program,
}

fn obstacle(error: &std::io::Error) -> Obstacle {
    match Errno::from_io_error(error) {
        Some(Errno::TOOBIG) => Obstacle::Event,
        Some(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::TXTBSY) => Obstacle::System,
        _ => Obstacle::Program,
    }
}

fn exited(status: std::io::Result<ExitStatus>) -> Ended {
    match status {
        Ok(status) => Ended::Exited(status),
        Err(error) => Ended::NotStarted(format!("its end was not seen: {error}")),
    }
}

async fn elapsed(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(timeout) => {
            tokio::time::sleep(timeout).await;
            timeout
        }
        None => std::future::pending().await,
    }
}

/// The processes of one command.
struct Group(Option<Pid>);

impl Group {
    /// The command leads it, so it has the same number.
    fn of(child: &Child) -> Group {
        Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }

    fn signal(&self, signal: Signal) {
        // Nobody may be left in it.
        let _ = self.0.map(|group| kill_process_group(group, signal));
    }
}

/// A command need not read what it is given.
fn feed(child: &mut Child, payload: &str) {
    let payload = payload.as_bytes().to_vec();
    if let Some(mut stdin) = child.stdin.take() {
        tokio::spawn(async move { stdin.write_all(&payload).await });
    }
}

/// The end of a stream, and who reads it.
struct Reader {
    tail: Arc<Mutex<Tail>>,
    reading: Option<JoinHandle<()>>,
}

impl Reader {
    /// Ready once the stream has ended.
    async fn done(&mut self) {
        if let Some(reading) = &mut self.reading {
            // It ends with what it has read.
            let _ = reading.await;
            self.reading = None;
        }
    }

    fn into_tail(self) -> Tail {
        if let Some(reading) = &self.reading {
            reading.abort();
        }
        let mut tail = self.tail.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::take(&mut *tail)
    }
}

async fn read(mut stream: impl AsyncRead + Unpin, tail: Arc<Mutex<Tail>>, mut shown: Prefixed) {
    let mut buffer = [0; 8 << 10];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        tail.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(&buffer[..length]);
        shown.push(&buffer[..length]).await;
    }
    shown.end().await;
}

/// To the end of both streams. What a command left behind with its output open is ended.
async fn finish_reading(group: &Group, stdout: &mut Reader, stderr: &mut Reader) {
    let mut both = std::pin::pin!(async {
        stdout.done().await;
        stderr.done().await;
    });
    for signal in [Signal::TERM, Signal::KILL] {
        if tokio::time::timeout(LEFT_BEHIND_MAX, &mut both).await.is_ok() {
            return;
        }
        group.signal(signal);
    }
    // Somebody outside the group may have it still.
    let _ = tokio::time::timeout(LEFT_BEHIND_MAX, both).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_command_from_being_started_is_told_apart() {
        let table = [
            (Errno::TOOBIG, Obstacle::Event),
            (Errno::AGAIN, Obstacle::System),
            (Errno::MFILE, Obstacle::System),
            (Errno::TXTBSY, Obstacle::System),
            (Errno::NOENT, Obstacle::Program),
            (Errno::ACCESS, Obstacle::Program),
            (Errno::NOEXEC, Obstacle::Program),
        ];
        for (errno, expected) in table {
            assert_eq!(obstacle(&errno.into()), expected, "{errno}");
        }
        assert_eq!(obstacle(&std::io::Error::other("?")), Obstacle::Program);
    }
}
