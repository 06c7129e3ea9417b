//! Runs the examples and compares their output.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use windlass_testkit::{Kind, send_signal};

use crate::bed::run_on_empty;
use crate::support::*;

const ALL: [&str; 7] =
    ["fan_out", "ordered_groups", "outbox", "quick_start", "transactional_handler", "typed_events", "web_app"];

/// A running example. It is killed when this is dropped.
struct Example {
    name: &'static str,
    process: Child,
    lines: Receiver<String>,
}

impl Example {
    fn start(name: &'static str, variables: &[(&str, &str)]) -> Example {
        assert!(ALL.contains(&name));
        // `cargo test` puts the examples next to the folder of the tests.
        let tests = std::env::current_exe().unwrap();
        let program = tests.parent().and_then(Path::parent).unwrap().join("examples").join(name);
        assert!(program.exists(), "{} is missing: run `cargo build -p windlass --examples`", program.display());
        let mut command = Command::new(program);
        command.env_remove("DATABASE_URL").env_remove("LISTEN").envs(variables.iter().copied());
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (printed, lines) = channel();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || stdout.lines().try_for_each(|line| printed.send(line.unwrap())));
        Example { name, process, lines }
    }

    /// The next printed line, or `None` after the example has exited.
    fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(secs(60)) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("{} timed out", self.name),
        }
    }

    fn terminate(&self) {
        send_signal(self.process.id(), "TERM");
    }

    /// Waits for a successful exit, and returns the remaining lines.
    fn finish(mut self) -> Vec<String> {
        let rest = std::iter::from_fn(|| self.line()).collect();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{}: {status}, after {rest:?}", self.name);
        rest
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // The example may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn printed(name: &'static str) -> Vec<String> {
    Example::start(name, &[]).finish()
}

/// Like [`printed`], on an empty PostgreSQL database.
fn printed_on_postgres(name: &'static str) -> Vec<String> {
    let mut lines = Vec::new();
    run_on_empty(Kind::Postgres, async |database| {
        lines = Example::start(name, &[("DATABASE_URL", &database.url)]).finish();
    });
    lines
}

#[test]
fn every_example_is_tested() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let names = files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned());
    assert_eq!(sorted(names.collect()), ALL);
}

#[test]
fn quick_start() {
    assert_eq!(printed("quick_start"), ["published event 1", "welcome, Ada", "event 1 is COMPLETED"]);
}

#[test]
fn typed_events() {
    let expected = ["event 1: a receipt for order 7 goes to Ada", "event 2: order 7 is settled"];
    assert_eq!(printed("typed_events"), expected);
}

#[test]
fn ordered_groups() {
    assert_eq!(printed("ordered_groups"), ["ada: [1, 2, 3, 4, 5]", "bob: [1, 2, 3, 4, 5]", "cleo: [1, 2, 3, 4, 5]"]);
}

#[test]
fn fan_out() {
    let expected = [
        "audit: order.paid, attempt 2",
        "audit: order.placed, attempt 2",
        "mail: order.paid, attempt 1",
        "main: order.paid, attempt 1",
        "main: order.placed, attempt 1",
    ];
    assert_eq!(printed("fan_out"), expected);
}

#[test]
fn outbox_on_postgres() {
    let expected = ["no order of Bob's: out of stock", "an order of Ada's", "handled: an order of Ada's"];
    assert_eq!(printed_on_postgres("outbox"), expected);
}

const PAID: [&str; 3] = ["attempt 1: 1 row", "attempt 2: 1 row", "the payment is COMPLETED"];

#[test]
fn transactional_handler_on_sqlite() {
    assert_eq!(printed("transactional_handler"), PAID);
}

#[test]
fn transactional_handler_on_postgres() {
    assert_eq!(printed_on_postgres("transactional_handler"), PAID);
}

#[test]
fn web_app() {
    let app = Example::start("web_app", &[("LISTEN", "127.0.0.1:0")]);
    let hello = app.line().unwrap();
    let address = hello.strip_prefix("listening on http://").unwrap();
    let response = post(address, "/orders", r#"{"customer": "Ada"}"#);
    assert!(response.starts_with("HTTP/1.1 202") && response.ends_with("event 1\n"), "{response}");
    assert_eq!(app.line().unwrap(), "confirmed the order of Ada");
    app.terminate();
    assert_eq!(app.finish(), ["stopping"]);
}

fn post(address: &str, path: &str, body: &str) -> String {
    let (mut connection, length) = (TcpStream::connect(address).unwrap(), body.len());
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json");
    write!(connection, "{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).unwrap();
    response
}
