//! A queue and a folder for tests of `work` and `publish`. Commands use the database directly or through a server.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use windlass::{Limits, NewEvent, Queue};
use windlass_testkit::{Database, Kind, send_signal, wait_until};

use crate::windlass::{Server, windlass};

/// Defines the tests `sqlite::name`, `postgres::name` and `server::name` for each function.
macro_rules! test_on_each_target {
    ($($(#[$comment:meta])* fn $name:ident($fixture:ident) $body:block)*) => {
        $($(#[$comment])* fn $name($fixture: &mut crate::work::fixture::WorkFixture) $body)*

        mod sqlite {
            $(#[test] fn $name() { super::$name(&mut crate::work::fixture::WorkFixture::sqlite()) })*
        }

        mod postgres {
            $(#[test] fn $name() { super::$name(&mut crate::work::fixture::WorkFixture::postgres()) })*
        }

        mod server {
            $(#[test] fn $name() { super::$name(&mut crate::work::fixture::WorkFixture::server()) })*
        }
    };
}

/// The queue, the server if the test uses one, and the working folder of the commands.
pub struct WorkFixture {
    pub queue: Queue,
    pub server: Option<Server>,
    database: Database,
    runtime: Runtime,
}

impl WorkFixture {
    pub fn sqlite() -> WorkFixture {
        WorkFixture::on(Kind::Sqlite)
    }

    pub fn postgres() -> WorkFixture {
        WorkFixture::on(Kind::Postgres)
    }

    pub fn server() -> WorkFixture {
        let mut fixture = WorkFixture::sqlite();
        fixture.server = Some(Server::start(&fixture.database.url));
        fixture
    }

    fn on(kind: Kind) -> WorkFixture {
        let database = Database::empty(kind);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let queue = runtime.block_on(database.open());
        WorkFixture { queue, server: None, database, runtime }
    }

    pub fn folder(&self) -> &Path {
        self.database.folder.path()
    }

    /// Reads a file of the folder, which a command has written.
    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.folder().join(file)).unwrap()
    }

    pub fn write(&self, file: &str, contents: &str) {
        fs::write(self.folder().join(file), contents).unwrap();
    }

    /// Waits until a file has a complete line and returns its text.
    pub fn wait_for(&self, file: &str) -> String {
        wait_until(file, || {
            let text = fs::read_to_string(self.folder().join(file)).ok()?;
            text.ends_with('\n').then(|| text.trim().to_owned())
        })
    }

    /// Opens the same queue without the limit on descriptions.
    pub fn unlimited_queue(&self) -> Queue {
        let limits = Limits { description_bytes_max: usize::MAX, ..Limits::default() };
        self.block_on(Queue::options(&self.database.url).limits(limits).open()).unwrap()
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn publish(&self, event: NewEvent) -> i64 {
        self.block_on(self.queue.publish(event)).unwrap().event.id
    }

    /// Publishes an event of type `t` with this payload.
    pub fn publish_payload(&self, payload: Value) -> i64 {
        self.publish(NewEvent::new("t").payload(&payload).unwrap())
    }

    /// Returns the delivery of `main` and the event's log, as JSON.
    pub fn delivery(&self, id: i64) -> Value {
        let (view, log) =
            self.block_on(async { (self.queue.get(id).await.unwrap(), self.queue.log(id).await.unwrap()) });
        let mut shown = json!(view.delivery("main").unwrap());
        shown["log"] = json!(log);
        shown
    }

    pub fn status(&self, id: i64) -> String {
        self.delivery(id)["status"].as_str().unwrap().to_owned()
    }

    pub fn actions(&self, id: i64) -> Vec<String> {
        let log = self.delivery(id)["log"].clone();
        log.as_array().unwrap().iter().map(|entry| entry["action"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the last entry of the event's log.
    pub fn last_log_entry(&self, id: i64) -> Value {
        self.delivery(id)["log"].as_array().unwrap().last().unwrap().clone()
    }

    /// Returns the binary's command, in the folder, with the options that select the database or server.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = windlass(&args[..1]);
        match &self.server {
            Some(server) => command.args(["--server", &format!("http://{}", server.address())]),
            None => command.args(["--database", &self.database.url]),
        };
        command.args(&args[1..]).current_dir(self.folder());
        command
    }

    /// Runs a command. Returns exit code, stdout and stderr.
    pub fn run(&self, args: &[&str], stdin: &str) -> (i32, String, String) {
        use std::io::Write;
        let mut command = self.command(args);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = piped.spawn().unwrap();
        let mut input = process.stdin.take().unwrap();
        let stdin = stdin.to_owned();
        // Ignore errors: the command may end before it has read everything.
        let writing = std::thread::spawn(move || drop(input.write_all(stdin.as_bytes())));
        let output = process.wait_with_output().unwrap();
        writing.join().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Runs a script for all events until the queue is empty. Returns stderr.
    pub fn work_until_empty(&self, args: &[&str], script: &str) -> String {
        let all = [&["work", "--until-empty"], args, &["--", "sh", "-c", script]].concat();
        let (code, stdout, stderr) = self.run(&all, "");
        assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
        stderr
    }

    /// Starts a worker that runs a script for each event.
    pub fn start_worker(&self, args: &[&str], script: &str) -> WorkerProcess {
        let all = [&["work"], args, &["--", "sh", "-c", script]].concat();
        let mut process = self.command(&all).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        WorkerProcess { process, stderr, seen: String::new() }
    }

    /// Kills the server and starts another at the same address.
    pub fn crash_server(&mut self) {
        let server = self.server.take().unwrap();
        let address = server.address().to_owned();
        server.signal("KILL");
        server.wait();
        self.write("crashed", "yes\n");
        self.server = Some(Server::start_with(&self.database.url, &["--listen", &address]));
    }
}

impl Drop for WorkFixture {
    fn drop(&mut self) {
        self.server = None;
        self.runtime.block_on(self.queue.close());
    }
}

/// A running `windlass work`; killed if the test fails.
pub struct WorkerProcess {
    process: Child,
    stderr: BufReader<ChildStderr>,
    seen: String,
}

impl WorkerProcess {
    pub fn signal(&self, signal: &str) {
        send_signal(self.process.id(), signal);
    }

    /// Reads stderr until it contains the text.
    pub fn read_until(&mut self, what: &str) {
        while !self.seen.contains(what) {
            assert!(
                self.stderr.read_line(&mut self.seen).unwrap() > 0,
                "the worker ended without '{what}': {}",
                self.seen
            );
        }
    }

    /// Waits for the process to end. Returns the exit code (none if a signal ended it) and stderr.
    pub fn wait(mut self) -> (Option<i32>, String) {
        let code = self.process.wait().unwrap().code();
        // After a signal, a running command may keep stderr open, so do not read to its end.
        if code.is_some() {
            self.stderr.read_to_string(&mut self.seen).unwrap();
        }
        (code, std::mem::take(&mut self.seen))
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // Ignore errors: the process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether the process exists and is not a zombie.
pub fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}
