//! The example clients, against a real server and against a server that fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use windlass_testkit::{sqlite_url, wait_until};

use super::console::root;
use crate::windlass::{Server, run};

/// Defines the tests `python::name` and `javascript::name` for each function.
macro_rules! in_each_language {
    ($(fn $name:ident($client:ident) $body:block)*) => {
        $(fn $name($client: Client) $body)*

        mod python {
            $(#[test] fn $name() { super::$name(super::Client { language: "python3", extension: "py" }) })*
        }

        mod javascript {
            $(#[test] fn $name() { super::$name(super::Client { language: "node", extension: "mjs" }) })*
        }
    };
}

struct Client {
    language: &'static str,
    extension: &'static str,
}

impl Client {
    /// Returns the command of an example, for the server at this address.
    fn command(&self, name: &str, address: &str, token: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.language);
        command.arg(root().join("docs/clients").join(format!("{name}.{}", self.extension))).args(args);
        command.env("WINDLASS_SERVER", format!("http://{address}")).env("WINDLASS_TOKEN", token);
        command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
        command
    }

    /// Publishes with the example. Returns the event's id.
    fn publish(&self, server: &Server, args: &[&str]) -> i64 {
        let token = server.token.as_deref().unwrap_or_default();
        let Output { status, stdout, stderr } =
            self.command("publish", server.address(), token, args).output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{stdout}{stderr}");
        stdout.split(' ').nth(1).and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("{stdout}"))
    }

    fn start_worker(&self, address: &str, token: &str) -> Worker {
        let mut command = self.command("worker", address, token, &["greeting"]);
        Worker(command.stdout(Stdio::piped()).spawn().unwrap())
    }
}

/// A running worker; killed if the test fails.
struct Worker(Child);

impl Worker {
    fn terminate(&self) {
        let kill = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        assert!(kill.unwrap().success());
    }

    /// Waits for the process to end. Returns exit code and stdout.
    fn wait(mut self) -> (Option<i32>, String) {
        let mut printed = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        (self.0.wait().unwrap().code(), printed)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Ignore errors: the process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls the event until it has this status.
fn wait_for_status(server: &Server, id: i64, status: &str) -> Value {
    wait_until(&format!("event {id} to be {status}"), || {
        let shown = server.json("GET", &format!("/events/{id}?include_logs=true"), "", 200);
        (shown["status"] == status).then_some(shown)
    })
}

/// A request that a client has sent.
struct Request {
    head: String,
    body: String,
    connection: TcpStream,
}

impl Request {
    fn next(listener: &TcpListener) -> Request {
        let (connection, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(connection.try_clone().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        let mut request = Request { head: head.to_lowercase(), body: String::new(), connection };
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        reader.take(length).read_to_string(&mut request.body).unwrap();
        request
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn respond(mut self, status: &str, body: &str) {
        let length = body.len();
        write!(self.connection, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
            .unwrap();
    }
}

const OVERLOADED: &str = "503 Service Unavailable\r\nretry-after: 1";

in_each_language! {
    fn published_events_are_processed(client) {
        let folder = tempfile::tempdir().unwrap();
        let url = sqlite_url(folder.path());
        let (_, created, _) = run(&["token", "create", "--scope", "admin", "--json", "--database", &url]);
        let token = serde_json::from_str::<Value>(&created).unwrap()["secret"].as_str().unwrap().to_owned();
        let mut server = Server::start(&url);
        server.token = Some(token.clone());
        let policy = r#"{"policy":{"max_retries":2,"backoff":{"kind":"none"}}}"#;
        server.json("PUT", "/namespaces/default", policy, 200);

        let unauthorized = client.command("publish", server.address(), "", &["greeting", "t"]).output().unwrap();
        assert_eq!(unauthorized.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&unauthorized.stderr).contains("no_token"), "{unauthorized:?}");

        let good = client.publish(&server, &["greeting", "Say hello", r#"{"to": "world"}"#, "hello-1"]);
        assert_eq!(client.publish(&server, &["greeting", "Say hello", r#"{"to": "world"}"#, "hello-1"]), good);
        let bad = client.publish(&server, &["greeting", "Say hello to nobody"]);
        let worker = client.start_worker(server.address(), &token);
        wait_for_status(&server, good, "COMPLETED");
        let shown = wait_for_status(&server, bad, "FAILED");
        let actions: Vec<&str> = shown["logs"].as_array().unwrap().iter().map(|log| log["action"].as_str().unwrap()).collect();
        assert_eq!(actions, ["PICKED", "FAILED", "PICKED", "FAILED"]);

        worker.terminate();
        let (code, printed) = worker.wait();
        assert_eq!(code, Some(0), "{printed}");
        assert!(printed.contains("Hello, world!"), "{printed}");
    }

    fn publish_is_retried_with_the_same_key(client) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut command = client.command("publish", &address, "t", &["greeting", "Say hello"]);
        let publisher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();

        let first = Request::next(&listener);
        let key = first.header("idempotency-key").unwrap().to_owned();
        assert_eq!((first.header("authorization"), key.len()), (Some("bearer t"), 36));
        // Close the connection without a response.
        drop(first);
        let second = Request::next(&listener);
        assert_eq!(second.header("idempotency-key"), Some(key.as_str()));
        second.respond(OVERLOADED, "{}");
        let rejected_at = Instant::now();
        let third = Request::next(&listener);
        assert!(rejected_at.elapsed() >= Duration::from_secs(1), "{:?}", rejected_at.elapsed());
        assert_eq!(third.header("idempotency-key"), Some(key.as_str()));
        third.respond("201 Created", r#"{"id":7,"status":"PENDING"}"#);
        let output = publisher.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "event 7 is PENDING\n", "{output:?}");
    }

    fn stopped_worker_still_reports(client) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let worker = client.start_worker(&listener.local_addr().unwrap().to_string(), "t");
        let claim = Request::next(&listener);
        assert!(claim.head.starts_with("get /events/subscribe?tags=greeting&worker_id="), "{}", claim.head);
        claim.respond("200 OK", r#"{"id":7,"payload":{"to":"world"},"lease":"00c0ffee00c0ffee"}"#);
        let report = Request::next(&listener);
        worker.terminate();
        report.respond(OVERLOADED, "{}");
        let report = Request::next(&listener);
        assert!(report.head.starts_with("post /events/7/complete "), "{}", report.head);
        assert!(report.body.contains("00c0ffee00c0ffee"), "{}", report.body);
        report.respond("200 OK", r#"{"action":"COMPLETED"}"#);
        // It sends no further claim: the listener would not respond.
        assert_eq!(worker.wait(), (Some(0), "Hello, world!\nevent 7: COMPLETED\n".to_owned()));
    }
}
