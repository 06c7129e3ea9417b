//! `windlass tail`.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use serde_json::Value;
use windlass_testkit::{sqlite_url, unused_address};

use crate::windlass::{Server, run, windlass};

/// A running `windlass tail`; killed if the test fails.
struct TailProcess {
    process: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl TailProcess {
    fn start(args: &[&str]) -> TailProcess {
        let mut command = windlass(&["tail"]);
        let mut process = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let stderr = BufReader::new(process.stderr.take().unwrap());
        TailProcess { process, stdout, stderr }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    fn note(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    /// Sends Ctrl-C and returns the exit code.
    fn interrupt(mut self) -> Option<i32> {
        let kill = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
        assert!(kill.unwrap().success());
        self.process.wait().unwrap().code()
    }
}

impl Drop for TailProcess {
    fn drop(&mut self) {
        // Ignore errors: the process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn tail_prints_activities_of_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    let server = Server::start(&url);
    let mut tail = TailProcess::start(&["--database", &url, "--type", "order.*"]);
    assert_eq!(tail.note(), format!("Following namespace default of {url}; Ctrl-C ends it.\n"));
    server.json("POST", "/events", r#"{"type":"mail.send","payload":1}"#, 201);
    server.json("POST", "/events", r#"{"type":"order.paid","title":"Order\u001b 17","payload":1}"#, 201);
    let line = tail.line();
    let (time, rest) = line.split_at(8);
    assert!(time.chars().enumerate().all(|(at, c)| if at % 3 == 2 { c == ':' } else { c.is_ascii_digit() }), "{line}");
    assert_eq!(rest, "Z  PUBLISHED        2  order.paid                Order\\u{1b} 17\n");
    assert_eq!(tail.interrupt(), Some(0));
}

#[test]
fn tail_reconnects_to_a_restarted_server() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    let server = Server::start(&url);
    let address = server.address().to_owned();
    let mut tail =
        TailProcess::start(&["--server", &format!("http://{address}"), "--json", "--status", "pending,failed"]);
    // Publish until the first line arrives: events before the connection are not reported.
    let first = std::thread::scope(|scope| {
        let line = scope.spawn(|| tail.line());
        while !line.is_finished() {
            server.json("POST", "/events", r#"{"type":"order.paid","payload":1}"#, 201);
        }
        line.join().unwrap()
    });
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&first["type"], &first["action"]), (&Value::from("order.paid"), &Value::from("PUBLISHED")));

    server.signal("TERM");
    assert_eq!(server.wait().0, Some(0));
    assert_eq!(tail.note(), "the server stops; trying to get back to it\n");
    let server = Server::start_with(&url, &["--listen", &address]);
    let note = tail.note();
    assert!(note.starts_with("Connected again. What happened from ") && note.contains(" was missed: "), "{note}");
    server.json("POST", "/events", r#"{"type":"mail.send","payload":1}"#, 201);
    loop {
        let line: Value = serde_json::from_str(&tail.line()).unwrap();
        if line["type"] == "mail.send" {
            break;
        }
    }
    assert_eq!(tail.interrupt(), Some(0));
}

#[test]
fn first_connection_error_ends_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    assert_eq!(run(&["migrate", "up", "--database", &url]).0, 0);
    let (code, _, stderr) = run(&["tail", "--database", &url, "--namespace", "nowhere"]);
    assert_eq!(code, 3, "{stderr}");
    let (code, _, stderr) = run(&["tail", "--database", &url, "--status", "gone"]);
    assert_eq!(code, 2, "{stderr}");
    let free = unused_address();
    let (code, _, stderr) = run(&["tail", "--server", &format!("http://{free}")]);
    assert_eq!(code, 5, "{stderr}");
}
