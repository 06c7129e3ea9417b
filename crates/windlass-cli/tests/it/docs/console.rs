//! Runs the commands in a document's console blocks and compares their output with the document.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Deserializer, Value};
use tempfile::TempDir;
use windlass_testkit::sqlite_url;

use super::volatile::{normalized, repeatable_values};
use super::wrap::wrap_json;
use crate::windlass::Server;

/// The server address and database URL in documents.
const ADDRESS: &str = "127.0.0.1:7700";
const DATABASE: &str = "sqlite://windlass.db";
/// Exit code of `curl --max-time`.
const TIMED_OUT: i32 = 28;

/// If this environment variable is set, changed output is written into the documents.
const UPDATE: &str = "WINDLASS_UPDATE_DOCS";

pub struct Document {
    name: &'static str,
    path: PathBuf,
    lines: Vec<String>,
}

/// A command and the output below it in the document.
pub struct Step {
    /// Line number, from 1.
    line: usize,
    pub command: String,
    shown: Range<usize>,
}

impl Document {
    /// Reads a document. The name is relative to the root of the repository.
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

    /// Runs all commands in order on a new server and compares their output with the document.
    pub fn verify(mut self) {
        let steps = self.steps();
        assert!(!steps.is_empty(), "{}: no console block", self.name);
        let (mut session, mut printed, mut differences) = (Session::start(), Vec::new(), String::new());
        for step in &steps {
            let shown = self.lines[step.shown.clone()].join("\n");
            let output =
                session.run(step, &shown).unwrap_or_else(|error| panic!("{}:{}: {error}", self.name, step.line));
            if !is_same_output(&shown, &output) {
                let (name, line, command) = (self.name, step.line, &step.command);
                differences += &format!("\n{name}:{line}: {command}\n--- expected\n{shown}\n--- got\n{output}\n");
            }
            printed.push(wrap_json(&output));
        }
        // Do not write a document in which only timestamps would change.
        if !differences.is_empty() && std::env::var_os(UPDATE).is_some() {
            return self.update(&steps, &printed);
        }
        assert!(
            differences.is_empty(),
            "{differences}\nIf this output is correct, {UPDATE}=1 writes it into the document."
        );
    }

    /// Writes the output into the document, from the end, so that earlier line numbers stay valid.
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

/// A server, and the state that earlier commands have left.
struct Session {
    server: Server,
    folder: TempDir,
    variables: Vec<(String, String)>,
    /// Values that differ between runs: as in the document, and as in this run.
    substitutions: Vec<(String, String)>,
}

impl Session {
    fn start() -> Session {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(root().join("docs"), folder.path().join("docs")).unwrap();
        let server = Server::start(&sqlite_url(folder.path()));
        Session { server, folder, variables: Vec::new(), substitutions: Vec::new() }
    }

    /// Runs the command with the values of this run. Returns its output with the values of the document.
    fn run(&mut self, step: &Step, shown: &str) -> Result<String, String> {
        let mut command = step.command.replace(ADDRESS, self.server.address());
        for (shown, real) in &self.substitutions {
            command = command.replace(shown, real);
        }
        let mut output = if command == "windlass serve" {
            self.server.banner.clone()
        } else if let Some((name, value)) = command.strip_prefix("export ").and_then(|rest| rest.split_once('=')) {
            self.variables.push((name.to_owned(), value.to_owned()));
            String::new()
        } else {
            self.run_in_shell(&command)?
        };
        output = output.replace(self.server.address(), ADDRESS).replace(&sqlite_url(self.folder.path()), DATABASE);
        output = output.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned();
        self.add_substitutions(shown, &output);
        for (shown, real) in &self.substitutions {
            output = output.replace(real, shown);
        }
        Ok(output)
    }

    /// Maps the n-th lease, token or id in the document to the n-th one in the output.
    fn add_substitutions(&mut self, shown: &str, output: &str) {
        let (mut shown, output) = (repeatable_values(shown), repeatable_values(output));
        for (kind, real) in output {
            let Some(at) = shown.iter().position(|(other, _)| *other == kind) else { continue };
            let (_, shown) = shown.remove(at);
            if !self.substitutions.iter().any(|(other, _)| other == shown) {
                self.substitutions.push((shown.to_owned(), real.to_owned()));
            }
        }
        // Replace tokens before token ids, because a token contains its id.
        self.substitutions.sort_by_key(|(shown, _)| std::cmp::Reverse(shown.len()));
    }

    fn run_in_shell(&self, command: &str) -> Result<String, String> {
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

/// Compares JSON by value and other text by lines, after values that differ between runs are masked.
fn is_same_output(shown: &str, output: &str) -> bool {
    let (shown, output) = (normalized(shown), normalized(output));
    let ((shown_json, shown), (got_json, output)) = (split_leading_json(&shown), split_leading_json(&output));
    shown_json == got_json && shown.trim() == output.trim()
}

/// Splits a text into the JSON that it begins with, and the rest.
fn split_leading_json(text: &str) -> (Option<Value>, &str) {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) if value.is_object() || value.is_array() => (Some(value), &text[values.byte_offset()..]),
        _ => (None, text),
    }
}

#[test]
fn json_is_compared_by_value_and_text_by_lines() {
    assert!(is_same_output(
        "{\"a\":1,\n \"at\":\"2025-12-24T10:30:00Z\"}\n200",
        "{\"at\":\"2026-01-01T00:00:00.5Z\",\"a\":1}\n200"
    ));
    assert!(!is_same_output("{\"a\":1}", "{\"a\":2}"));
    assert!(!is_same_output("{\"a\":1}\n200", "{\"a\":1}\n201"));
    assert!(!is_same_output("one\ntwo", "one\nthree") && is_same_output("", ""));
}
