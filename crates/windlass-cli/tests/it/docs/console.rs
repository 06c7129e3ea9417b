//! A document's console blocks: each command is run, and must print what is shown below it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Deserializer, Value};
use tempfile::TempDir;

use super::volatile::{normalised, repeated};
use super::wrap::wrapped;
use crate::windlass::{Server, sqlite_url};

/// How documents name the server and its database.
const ADDRESS: &str = "127.0.0.1:7700";
const DATABASE: &str = "sqlite://windlass.db";
/// `curl --max-time` ends so.
const TIMED_OUT: i32 = 28;

/// Set, it makes the documents show what was printed.
const UPDATE: &str = "WINDLASS_UPDATE_DOCS";

pub struct Document {
    name: &'static str,
    path: PathBuf,
    lines: Vec<String>,
}

/// A command and what the document shows below it.
pub struct Step {
    /// Where it stands, from 1.
    line: usize,
    pub command: String,
    shown: Range<usize>,
}

impl Document {
    /// The document of this name, from the root of the repository.
    pub fn open(name: &'static str) -> Document {
        let path = root().join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        Document { name, path, lines: text.lines().map(str::to_owned).collect() }
    }

    pub fn steps(&self) -> Vec<Step> {
        let (mut steps, mut at): (Vec<Step>, usize) = (Vec::new(), 0);
        while at < self.lines.len() {
            at += 1;
            if self.lines[at - 1] != "```console" {
                continue;
            }
            while self.lines[at] != "```" {
                let Some(mut command) = self.lines[at].strip_prefix("$ ").map(str::to_owned) else {
                    panic!("{}:{}: a console block begins with a command, `$ …`", self.name, at + 1);
                };
                let line = at + 1;
                at += 1;
                while command.ends_with('\\') || command.matches('\'').count() % 2 == 1 {
                    command = command + "\n" + &self.lines[at];
                    at += 1;
                }
                let from = at;
                while self.lines[at] != "```" && !self.lines[at].starts_with("$ ") {
                    at += 1;
                }
                let blank = self.lines[from..at].iter().rev().take_while(|line| line.is_empty()).count();
                steps.push(Step { line, command, shown: from..at - blank });
            }
        }
        steps
    }

    /// Runs everything, from the first command to the last, on a server of its own.
    pub fn try_out(mut self) {
        let steps = self.steps();
        assert!(!steps.is_empty(), "{}: no console block", self.name);
        let (mut story, mut printed, mut wrong) = (Story::begin(), Vec::new(), String::new());
        for step in &steps {
            let shown = self.lines[step.shown.clone()].join("\n");
            let got = story.run(step, &shown).unwrap_or_else(|error| panic!("{}:{}: {error}", self.name, step.line));
            if !same(&shown, &got) {
                let (name, line, command) = (self.name, step.line, &step.command);
                wrong += &format!("\n{name}:{line}: {command}\n--- expected\n{shown}\n--- got\n{got}\n");
            }
            printed.push(wrapped(&got));
        }
        // Where nothing is wrong, nothing is written: new instants alone are no news.
        if !wrong.is_empty() && std::env::var_os(UPDATE).is_some() {
            return self.update(&steps, &printed);
        }
        assert!(wrong.is_empty(), "{wrong}\nIf that is what it should print, {UPDATE}=1 writes it into the document.");
    }

    /// From the end, so that the lines before keep their numbers.
    fn update(&mut self, steps: &[Step], printed: &[String]) {
        for (step, printed) in steps.iter().zip(printed).rev() {
            self.lines.splice(step.shown.clone(), printed.lines().map(str::to_owned));
        }
        std::fs::write(&self.path, self.lines.join("\n") + "\n").unwrap();
    }
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A fresh server, and what the commands before left behind.
struct Story {
    server: Server,
    folder: TempDir,
    variables: Vec<(String, String)>,
    /// Values that differ from run to run: as shown, and as they are this time.
    known: Vec<(String, String)>,
}

impl Story {
    fn begin() -> Story {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(root().join("docs"), folder.path().join("docs")).unwrap();
        let server = Server::start(&sqlite_url(folder.path()));
        Story { server, folder, variables: Vec::new(), known: Vec::new() }
    }

    /// Runs the command with the values of this time, and returns what it prints with those that are shown.
    fn run(&mut self, step: &Step, shown: &str) -> Result<String, String> {
        let mut command = step.command.replace(ADDRESS, self.server.address());
        for (shown, real) in &self.known {
            command = command.replace(shown, real);
        }
        let mut got = if command == "windlass serve" {
            self.server.hello.clone()
        } else if let Some((name, value)) = command.strip_prefix("export ").and_then(|rest| rest.split_once('=')) {
            self.variables.push((name.to_owned(), value.to_owned()));
            String::new()
        } else {
            self.shell(&command)?
        };
        got = got.replace(self.server.address(), ADDRESS).replace(&sqlite_url(self.folder.path()), DATABASE);
        got = got.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned();
        self.learn(shown, &got);
        for (shown, real) in &self.known {
            got = got.replace(real, shown);
        }
        Ok(got)
    }

    /// The n-th lease that is shown stands for the n-th that was printed; so with tokens and their ids.
    fn learn(&mut self, shown: &str, got: &str) {
        let (mut shown, got) = (repeated(shown), repeated(got));
        for (kind, real) in got {
            let Some(at) = shown.iter().position(|(other, _)| *other == kind) else { continue };
            let (_, shown) = shown.remove(at);
            if !self.known.iter().any(|(known, _)| known == shown) {
                self.known.push((shown.to_owned(), real.to_owned()));
            }
        }
        // A token has its id in it.
        self.known.sort_by_key(|(shown, _)| std::cmp::Reverse(shown.len()));
    }

    fn shell(&self, command: &str) -> Result<String, String> {
        let binary = Path::new(env!("CARGO_BIN_EXE_windlass")).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = [binary.to_owned()].into_iter().chain(std::env::split_paths(&path));
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(self.folder.path()).stdin(Stdio::null());
        shell.env("PATH", std::env::join_paths(folders).unwrap());
        shell.env("WINDLASS_DATABASE", sqlite_url(self.folder.path()));
        shell.env("WINDLASS_SERVER", format!("http://{}", self.server.address()));
        let Output { status, stdout, stderr } = shell.envs(self.variables.clone()).output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        match status.code() {
            Some(0 | TIMED_OUT) => Ok(stdout.into_owned()),
            _ => Err(format!("{status}\n{command}\n{stdout}\n{stderr}")),
        }
    }
}

/// JSON by its meaning, all else line by line; the values that differ from run to run by their form.
fn same(shown: &str, got: &str) -> bool {
    let (shown, got) = (normalised(shown), normalised(got));
    let ((shown_json, shown), (got_json, got)) = (leading_json(&shown), leading_json(&got));
    shown_json == got_json && shown.trim() == got.trim()
}

/// The JSON that a text begins with, and the rest.
fn leading_json(text: &str) -> (Option<Value>, &str) {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) if value.is_object() || value.is_array() => (Some(value), &text[values.byte_offset()..]),
        _ => (None, text),
    }
}

#[test]
fn json_is_the_same_by_its_meaning_and_text_by_its_lines() {
    assert!(same(
        "{\"a\":1,\n \"at\":\"2025-12-24T10:30:00Z\"}\n200",
        "{\"at\":\"2026-01-01T00:00:00.5Z\",\"a\":1}\n200"
    ));
    assert!(!same("{\"a\":1}", "{\"a\":2}"));
    assert!(!same("{\"a\":1}\n200", "{\"a\":1}\n201"));
    assert!(!same("one\ntwo", "one\nthree") && same("", ""));
}
