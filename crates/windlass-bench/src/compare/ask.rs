//! The adapter of a system, as a process that is asked line by line.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::group::Group;
use super::protocol::{Answer, Closed, Request};
use crate::AnyError;

/// What is asked takes this long at most, beside the time that it is asked to take.
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// So much of what the adapter wrote to stderr is shown when it fails.
const LINES_SHOWN: usize = 5;

pub struct Adapter {
    stdin: ChildStdin,
    answers: UnboundedReceiver<String>,
    log: PathBuf,
    _group: Group,
}

impl Adapter {
    /// Its stderr goes to the file `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Adapter, AnyError> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut group = Group::start(piped)?;
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

    /// `takes`: how long it is asked to take, if at all.
    pub async fn ask<T: DeserializeOwned>(&mut self, request: &Request, takes: Duration) -> Result<T, AnyError> {
        let line = serde_json::to_string(request)? + "\n";
        if self.stdin.write_all(line.as_bytes()).and_then(|()| self.stdin.flush()).is_err() {
            return Err(self.ended());
        }
        let answer = match tokio::time::timeout(takes + ANSWER_MAX, self.answers.recv()).await {
            Ok(Some(line)) => line,
            Ok(None) => return Err(self.ended()),
            Err(_) => return Err(format!("no answer within {} s", (takes + ANSWER_MAX).as_secs()).into()),
        };
        match serde_json::from_str(&answer) {
            Ok(Answer::Ok(answer)) => Ok(answer),
            Ok(Answer::Unsupported(why)) => Err(format!("not supported: {why}").into()),
            Ok(Answer::Error(error)) => Err(error.into()),
            Err(error) => Err(format!("not an answer: {error}: {}", first(&answer, 200)).into()),
        }
    }

    pub async fn close(mut self) -> Result<(), AnyError> {
        self.ask::<Closed>(&Request::Close, Duration::ZERO).await.map(drop)
    }

    fn ended(&self) -> AnyError {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        format!("the adapter has ended: {}", last_lines(&log)).into()
    }
}

/// In one line, and without where it happened.
pub fn last_lines(log: &str) -> String {
    let says_something = |line: &&str| !line.is_empty() && !line.starts_with("at ");
    let lines: Vec<&str> = log.lines().map(str::trim).filter(says_something).collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join(" / ")
}

fn first(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::protocol::{Drain, Took};

    /// An adapter that is a line of shell.
    fn adapter(script: &str) -> (tempfile::TempDir, Adapter) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let started = Adapter::start(Command::new("sh").args(["-c", script]), &log).unwrap();
        (folder, started)
    }

    async fn drain(adapter: &mut Adapter) -> Result<f64, String> {
        let request = Request::Drain(Drain { events: 1, fail_percent: 0 });
        let took = adapter.ask::<Took>(&request, Duration::ZERO).await;
        took.map(|took| took.seconds).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn each_request_has_its_answer() {
        let (_folder, mut adapter) =
            adapter(r#"read a; echo '{"ok":{"seconds":2}}'; read b; echo '{"error":"lost"}'; read c; echo hm"#);
        assert_eq!(drain(&mut adapter).await, Ok(2.0));
        assert_eq!(drain(&mut adapter).await, Err("lost".into()));
        assert!(drain(&mut adapter).await.unwrap_err().starts_with("not an answer"));
    }

    #[tokio::test]
    async fn an_adapter_that_ends_shows_what_it_said() {
        let (_folder, mut adapter) = adapter("read a; echo 'no such table' >&2; exit 1");
        assert_eq!(drain(&mut adapter).await, Err("the adapter has ended: no such table".into()));
    }
}
