//! Where a test of `work` and `publish` takes place: a queue, reached by itself or through a server, and a folder.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use windlass::sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use windlass::{Limits, NewEvent, Queue};

use crate::windlass::{Server, sqlite_url, windlass};

/// Makes `sqlite::name`, `postgres::name` and `server::name` out of each function.
macro_rules! in_each_place {
    ($($(#[$comment:meta])* fn $name:ident($place:ident) $body:block)*) => {
        $($(#[$comment])* fn $name($place: &mut crate::work::place::Place) $body)*

        mod sqlite {
            $(#[test] fn $name() { super::$name(&mut crate::work::place::Place::sqlite()) })*
        }

        mod postgres {
            $(#[test] fn $name() { super::$name(&mut crate::work::place::Place::postgres()) })*
        }

        mod server {
            $(#[test] fn $name() { super::$name(&mut crate::work::place::Place::server()) })*
        }
    };
}

/// Longer than anything takes that is waited for.
const HANGS: Duration = Duration::from_secs(90);

/// Tries until there is something.
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < HANGS, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub struct Place {
    pub queue: Queue,
    pub server: Option<Server>,
    url: String,
    /// Where a database has to be dropped, and its name there.
    postgres: Option<(String, String)>,
    folder: TempDir,
    runtime: Runtime,
}

impl Place {
    pub fn sqlite() -> Place {
        let folder = tempfile::tempdir().unwrap();
        Place::at(sqlite_url(folder.path()), folder, None)
    }

    pub fn postgres() -> Place {
        let server = std::env::var("WINDLASS_TEST_POSTGRES")
            .expect("WINDLASS_TEST_POSTGRES is not set: run the tests with `cargo xtask test`");
        let folder = tempfile::tempdir().unwrap();
        // The folder's name is unique on this machine, and so is the database's.
        let unique = folder.path().file_name().unwrap().to_str().unwrap().trim_start_matches(".tmp").to_lowercase();
        let name = format!("windlass_work_{unique}_{}", std::process::id());
        execute(&server, format!("CREATE DATABASE {name}"));
        let (place, options) = server.split_once('?').map_or((&server[..], ""), |(place, options)| (place, options));
        let (place, _) = place.rsplit_once('/').expect("WINDLASS_TEST_POSTGRES names a database");
        let url = format!("{place}/{name}?{options}").trim_end_matches('?').to_owned();
        Place::at(url, folder, Some((server, name)))
    }

    pub fn server() -> Place {
        let mut place = Place::sqlite();
        place.server = Some(Server::start(&place.url));
        place
    }

    fn at(url: String, folder: TempDir, postgres: Option<(String, String)>) -> Place {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let queue = runtime.block_on(Queue::open(&url)).unwrap();
        Place { queue, server: None, url, postgres, folder, runtime }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What a command left in a file of the folder.
    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path().join(file)).unwrap()
    }

    pub fn write(&self, file: &str, contents: &str) {
        fs::write(self.path().join(file), contents).unwrap();
    }

    /// Waits for a file that has a whole line in it.
    pub fn wait_for(&self, file: &str) -> String {
        until(file, || {
            let text = fs::read_to_string(self.path().join(file)).ok()?;
            text.ends_with('\n').then(|| text.trim().to_owned())
        })
    }

    /// The same queue, for events that are larger than others accept.
    pub fn without_bounds(&self) -> Queue {
        let limits = Limits { description_bytes_max: usize::MAX, ..Limits::default() };
        self.block_on(Queue::options(&self.url).limits(limits).open()).unwrap()
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn publish(&self, event: NewEvent) -> i64 {
        self.block_on(self.queue.publish(event)).unwrap().event.id
    }

    /// An event with this payload.
    pub fn event(&self, payload: Value) -> i64 {
        self.publish(NewEvent::new("t").payload(&payload).unwrap())
    }

    /// How it stands with `main`, and its log, as JSON.
    pub fn show(&self, id: i64) -> Value {
        let (view, log) =
            self.block_on(async { (self.queue.get(id).await.unwrap(), self.queue.log(id).await.unwrap()) });
        let mut shown = json!(view.delivery("main").unwrap());
        shown["log"] = json!(log);
        shown
    }

    pub fn status(&self, id: i64) -> String {
        self.show(id)["status"].as_str().unwrap().to_owned()
    }

    pub fn actions(&self, id: i64) -> Vec<String> {
        let log = self.show(id)["log"].clone();
        log.as_array().unwrap().iter().map(|entry| entry["action"].as_str().unwrap().to_owned()).collect()
    }

    /// The last line of its log.
    pub fn end(&self, id: i64) -> Value {
        self.show(id)["log"].as_array().unwrap().last().unwrap().clone()
    }

    /// The binary, in the folder, with the options that lead here.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = windlass(&args[..1]);
        match &self.server {
            Some(server) => command.args(["--server", &format!("http://{}", server.address())]),
            None => command.args(["--database", &self.url]),
        };
        command.args(&args[1..]).current_dir(self.path());
        command
    }

    /// Exit code, stdout and stderr.
    pub fn run(&self, args: &[&str], stdin: &str) -> (i32, String, String) {
        use std::io::Write;
        let mut command = self.command(args);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = piped.spawn().unwrap();
        let mut input = process.stdin.take().unwrap();
        let stdin = stdin.to_owned();
        // It may end before it has read everything.
        let writing = std::thread::spawn(move || drop(input.write_all(stdin.as_bytes())));
        let output = process.wait_with_output().unwrap();
        writing.join().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Has a script run for all there is; what went to stderr.
    pub fn work_off(&self, args: &[&str], script: &str) -> String {
        let all = [&["work", "--until-empty"], args, &["--", "sh", "-c", script]].concat();
        let (code, stdout, stderr) = self.run(&all, "");
        assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
        stderr
    }

    /// Has a script run for what comes.
    pub fn work(&self, args: &[&str], script: &str) -> Working {
        let all = [&["work"], args, &["--", "sh", "-c", script]].concat();
        let mut process = self.command(&all).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        Working { process, stderr, seen: String::new() }
    }

    /// Ends the server at once, and starts another in its place.
    pub fn crash_server(&mut self) {
        let server = self.server.take().unwrap();
        let address = server.address().to_owned();
        server.signal("KILL");
        server.end();
        self.write("crashed", "yes\n");
        self.server = Some(Server::start_with(&self.url, &["--listen", &address]));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.server = None;
        self.runtime.block_on(self.queue.close());
        if let Some((server, name)) = self.postgres.take() {
            execute(&server, format!("DROP DATABASE {name} WITH (FORCE)"));
        }
    }
}

fn execute(url: &str, sql: String) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        connection.execute(AssertSqlSafe(sql)).await.unwrap();
        connection.close().await.unwrap();
    });
}

/// A running `windlass work`; killed if the test fails.
pub struct Working {
    process: Child,
    stderr: BufReader<ChildStderr>,
    seen: String,
}

impl Working {
    pub fn signal(&self, signal: &str) {
        self::signal(self.process.id(), signal);
    }

    /// Reads on until it says this.
    pub fn says(&mut self, what: &str) {
        while !self.seen.contains(what) {
            assert!(self.stderr.read_line(&mut self.seen).unwrap() > 0, "it ended without '{what}': {}", self.seen);
        }
    }

    /// Exit code (none if a signal ended it) and what it wrote to stderr.
    pub fn end(mut self) -> (Option<i32>, String) {
        let code = self.process.wait().unwrap().code();
        // A command that outlives it has its stderr still: not to its end, then.
        if code.is_some() {
            self.stderr.read_to_string(&mut self.seen).unwrap();
        }
        (code, std::mem::take(&mut self.seen))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        // It may have ended already, and this may be a panic: nothing more can be done here.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a process this signal.
pub fn signal(pid: u32, signal: &str) {
    let kill = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    assert!(kill.unwrap().success());
}

/// Whether there is a process of this number that has not ended.
pub fn lives(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}
