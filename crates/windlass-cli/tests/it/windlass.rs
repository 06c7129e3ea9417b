//! Runs the binary, and sends requests to a server that it started.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;
use windlass_testkit::send_signal;

/// A command with the binary, without the Windlass settings of the tests' own environment.
pub fn windlass(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(args);
    let is_setting = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("WINDLASS_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(name) || name == "RUST_LOG") {
        command.env_remove(name);
    }
    command
}

/// Runs the binary to its end. Returns exit code, stdout and stderr.
pub fn run(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = windlass(args).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A running `windlass serve`; killed if the test fails.
pub struct Server {
    /// The banner printed at the start.
    pub banner: String,
    /// Sent with every request, if set.
    pub token: Option<String>,
    address: String,
    process: Child,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    pub fn start(database: &str) -> Server {
        Server::start_with(database, &["--listen", "127.0.0.1:0"])
    }

    pub fn start_with(database: &str, args: &[&str]) -> Server {
        let mut command = windlass(&["serve", "--database", database]);
        command.args(args);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("/openapi.json") {
            if stdout.read_line(&mut banner).unwrap() == 0 {
                panic!("the server ended: {banner}{}", stderr_of(&mut process));
            }
        }
        let address = banner.split("http://").nth(1).and_then(|rest| rest.lines().next()).unwrap().to_owned();
        Server { banner, token: None, address, process, stdout }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a request. Returns status and body.
    pub fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        write!(
            connection,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Sends a request that must be answered with this status and JSON.
    pub fn json(&self, method: &str, path: &str, body: &str, status: u16) -> Value {
        let (found, body) = self.request(method, path, body);
        assert_eq!(found, status, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    pub fn signal(&self, signal: &str) {
        send_signal(self.process.id(), signal);
    }

    /// Waits for the process to end. Returns the exit code (none if a signal ended it), stdout and stderr.
    pub fn wait(mut self) -> (Option<i32>, String, String) {
        let stderr = stderr_of(&mut self.process);
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).unwrap();
        (self.process.wait().unwrap().code(), stdout, stderr)
    }
}

fn stderr_of(process: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = &mut process.stderr {
        stderr.read_to_string(&mut text).unwrap();
    }
    text
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ignore errors: the process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
