//! The adapter of a system: a process that answers requests line by line.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::process_group::ProcessGroup;
use super::protocol::{Answer, Closed, Request};
use crate::AnyError;

/// Time limit of a request, in addition to the duration that it asks for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// How many lines of the adapter's stderr are shown when it fails.
const LINES_SHOWN: usize = 5;

pub struct Adapter {
    stdin: ChildStdin,
    answers: UnboundedReceiver<String>,
    log: PathBuf,
    _group: ProcessGroup,
}

impl Adapter {
    /// Its stderr goes to the file `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Adapter, AnyError> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut group = ProcessGroup::start(piped)?;
        let stdin = group.0.stdin.take().ok_or("the adapter has no stdin")?;
        let stdout = group.0.stdout.take().ok_or("the adapter has no stdout")?;
        let (answer, answers) = unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if answer.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Adapter { stdin, answers, log: log.to_owned(), _group: group })
    }

    /// Sends a request and waits for the answer. `takes` is the duration that the request asks for.
    pub async fn request<T: DeserializeOwned>(&mut self, request: &Request, takes: Duration) -> Result<T, AnyError> {
        let line = serde_json::to_string(request)? + "\n";
        if self.stdin.write_all(line.as_bytes()).and_then(|()| self.stdin.flush()).is_err() {
            return Err(self.ended());
        }
        let answer = match tokio::time::timeout(takes + ANSWER_TIMEOUT, self.answers.recv()).await {
            Ok(Some(line)) => line,
            Ok(None) => return Err(self.ended()),
            Err(_) => return Err(format!("no answer within {} s", (takes + ANSWER_TIMEOUT).as_secs()).into()),
        };
        match serde_json::from_str(&answer) {
            Ok(Answer::Ok(answer)) => Ok(answer),
            Ok(Answer::Unsupported(why)) => Err(format!("not supported: {why}").into()),
            Ok(Answer::Error(error)) => Err(error.into()),
            Err(error) => Err(format!("not an answer: {error}: {}", first(&answer, 200)).into()),
        }
    }

    pub async fn close(mut self) -> Result<(), AnyError> {
        self.request::<Closed>(&Request::Close, Duration::ZERO).await.map(drop)
    }

    fn ended(&self) -> AnyError {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        format!("the adapter has ended: {}", last_lines(&log)).into()
    }
}

/// The last lines of a log in one line, without stack traces.
pub fn last_lines(log: &str) -> String {
    let is_message = |line: &&str| !line.is_empty() && !line.starts_with("at ");
    let lines: Vec<&str> = log.lines().map(str::trim).filter(is_message).collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join(" / ")
}

fn first(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::protocol::{Drain, Elapsed};

    /// An adapter written as a shell script.
    fn adapter(script: &str) -> (tempfile::TempDir, Adapter) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let started = Adapter::start(Command::new("sh").args(["-c", script]), &log).unwrap();
        (folder, started)
    }

    async fn drain(adapter: &mut Adapter) -> Result<f64, String> {
        let request = Request::Drain(Drain { events: 1, fail_percent: 0 });
        let took = adapter.request::<Elapsed>(&request, Duration::ZERO).await;
        took.map(|took| took.seconds).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn each_request_gets_its_answer() {
        let (_folder, mut adapter) =
            adapter(r#"read a; echo '{"ok":{"seconds":2}}'; read b; echo '{"error":"lost"}'; read c; echo hm"#);
        assert_eq!(drain(&mut adapter).await, Ok(2.0));
        assert_eq!(drain(&mut adapter).await, Err("lost".into()));
        assert!(drain(&mut adapter).await.unwrap_err().starts_with("not an answer"));
    }

    #[tokio::test]
    async fn ended_adapter_shows_its_stderr() {
        let (_folder, mut adapter) = adapter("read a; echo 'no such table' >&2; exit 1");
        assert_eq!(drain(&mut adapter).await, Err("the adapter has ended: no such table".into()));
    }
}
