//! `windlass tail`.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::windlass::{Server, run, sqlite_url, windlass};

/// A running `windlass tail`; killed if the test fails.
struct Tail {
    process: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Tail {
    fn start(args: &[&str]) -> Tail {
        let mut command = windlass(&["tail"]);
        let mut process = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let stderr = BufReader::new(process.stderr.take().unwrap());
        Tail { process, stdout, stderr }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    fn remark(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    /// Ctrl-C: the exit code.
    fn interrupt(mut self) -> Option<i32> {
        let kill = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
        assert!(kill.unwrap().success());
        self.process.wait().unwrap().code()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn it_tells_what_happens_in_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    let server = Server::start(&url);
    let mut tail = Tail::start(&["--database", &url, "--type", "order.*"]);
    assert_eq!(tail.remark(), format!("Following namespace default of {url}; Ctrl-C ends it.\n"));
    server.json("POST", "/events", r#"{"type":"mail.send","payload":1}"#, 201);
    server.json("POST", "/events", r#"{"type":"order.paid","title":"Order\u001b 17","payload":1}"#, 201);
    let line = tail.line();
    let (time, rest) = line.split_at(8);
    assert!(time.chars().enumerate().all(|(at, c)| if at % 3 == 2 { c == ':' } else { c.is_ascii_digit() }), "{line}");
    assert_eq!(rest, "Z  PUBLISHED        2  order.paid                Order\\u{1b} 17\n");
    assert_eq!(tail.interrupt(), Some(0));
}

#[test]
fn it_finds_back_to_a_server_that_was_away() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    let server = Server::start(&url);
    let address = server.address().to_owned();
    let mut tail = Tail::start(&["--server", &format!("http://{address}"), "--json", "--status", "pending,failed"]);
    // It follows once a line comes, which may be that of any of these.
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
    assert_eq!(server.end().0, Some(0));
    assert_eq!(tail.remark(), "the server stops; trying to get back to it\n");
    let server = Server::start_with(&url, &["--listen", &address]);
    let back = tail.remark();
    assert!(back.starts_with("Connected again. What happened from ") && back.contains(" was missed: "), "{back}");
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
fn what_cannot_be_followed_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    assert_eq!(run(&["migrate", "up", "--database", &url]).0, 0);
    let (code, _, stderr) = run(&["tail", "--database", &url, "--namespace", "nowhere"]);
    assert_eq!(code, 3, "{stderr}");
    let (code, _, stderr) = run(&["tail", "--database", &url, "--status", "gone"]);
    assert_eq!(code, 2, "{stderr}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, _, stderr) = run(&["tail", "--server", &format!("http://{free}")]);
    assert_eq!(code, 5, "{stderr}");
}
