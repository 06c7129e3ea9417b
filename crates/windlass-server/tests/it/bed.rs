//! What a test stands on: a running server on a database of its own, with a clock that it can move.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass::{Clock, ClockHand, Queue};
use windlass_server::{ServeOptions, serve};

use crate::http::{Response, request};

/// Makes `sqlite::name` and `postgres::name` out of each function.
macro_rules! on_each_database {
    ($(async fn $name:ident($server:ident) $body:block)*) => {
        $(async fn $name($server: &mut crate::bed::Server) $body)*

        mod sqlite {
            $(#[test] fn $name() { crate::bed::run(crate::bed::Database::sqlite(), super::$name) })*
        }

        mod postgres {
            $(#[test] fn $name() { crate::bed::run(crate::bed::Database::postgres(), super::$name) })*
        }
    };
}

/// Longer than any test takes.
const HANGS: Duration = Duration::from_secs(60);

/// Runs one test, and removes its database also when the test fails.
pub fn run(database: Database, test: impl AsyncFnOnce(&mut Server)) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let test = async { test(&mut Server::start(&database.url).await).await };
    let test = async { tokio::time::timeout(HANGS, test).await.expect("the test hangs") };
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(test)));
    runtime.shutdown_timeout(Duration::from_secs(5));
    database.remove();
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

pub struct Database {
    url: String,
    /// Where it has to be dropped, and its name there.
    server: Option<(String, String)>,
    _folder: TempDir,
}

impl Database {
    pub fn sqlite() -> Database {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("windlass.db").display());
        Database { url, server: None, _folder: folder }
    }

    pub fn postgres() -> Database {
        let server = match std::env::var("WINDLASS_TEST_POSTGRES") {
            Ok(url) if !url.is_empty() => url,
            _ => panic!("WINDLASS_TEST_POSTGRES is not set: run the tests with `cargo xtask test`"),
        };
        let folder = tempfile::tempdir().unwrap();
        // The folder's name is unique on this machine, and so is the database's.
        let unique = folder.path().file_name().unwrap().to_str().unwrap().trim_start_matches(".tmp").to_lowercase();
        let name = format!("windlass_server_{unique}_{}", std::process::id());
        execute(&server, format!("CREATE DATABASE {name}"));
        let (place, options) = server.split_once('?').map_or((&server[..], ""), |(place, options)| (place, options));
        let (place, _) = place.rsplit_once('/').expect("WINDLASS_TEST_POSTGRES names a database");
        let url = format!("{place}/{name}?{options}");
        Database { url: url.trim_end_matches('?').to_owned(), server: Some((server, name)), _folder: folder }
    }

    fn remove(self) {
        if let Some((server, name)) = self.server {
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

/// A server at 2025-12-24T10:30:00Z until the test moves the clock.
pub struct Server {
    pub address: SocketAddr,
    pub queue: Queue,
    pub hand: ClockHand,
    /// For the next start.
    pub options: ServeOptions,
    clock: Clock,
    url: String,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Server {
    async fn start(url: &str) -> Server {
        let (clock, hand) = Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
        let options = ServeOptions { maintain_every: Duration::from_millis(50), ..ServeOptions::default() };
        Server::start_at(url, clock, hand, options).await
    }

    async fn start_at(url: &str, clock: Clock, hand: ClockHand, options: ServeOptions) -> Server {
        let queue = Queue::options(url).clock(clock.clone()).open().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(queue.clone(), listener, options.clone(), async { drop(stopped.await) }));
        Server { address, queue, hand, options, clock, url: url.to_owned(), stop: Some(stop), task }
    }

    /// Tells the server to stop.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Until it has stopped.
    pub async fn stopped(&mut self) {
        (&mut self.task).await.unwrap().unwrap();
    }

    pub async fn restart(&mut self) {
        self.stop();
        self.stopped().await;
        self.start_again().await;
    }

    pub async fn start_again(&mut self) {
        *self = Server::start_at(&self.url, self.clock.clone(), self.hand.clone(), self.options.clone()).await;
    }

    pub fn advance_secs(&self, seconds: u64) {
        self.hand.advance(Duration::from_secs(seconds));
    }

    pub async fn get(&self, path: &str) -> Response {
        request(self.address, "GET", path, "", b"").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Response {
        self.post_text(path, &body.to_string()).await
    }

    pub async fn post_text(&self, path: &str, body: &str) -> Response {
        request(self.address, "POST", path, "content-type: application/json\r\n", body.as_bytes()).await
    }

    /// Publishes an event with these tags; its id.
    pub async fn publish(&self, tags: &str) -> i64 {
        let event = json!({ "title": "An event", "tags": tags, "payload": { "n": 1 } });
        self.post("/events", &event).await.expect(201)["id"].as_i64().unwrap()
    }

    /// What the worker is given for these tags, if anything.
    pub async fn subscribe(&self, tags: &str, worker_id: &str) -> Option<Value> {
        let response = self.get(&format!("/events/subscribe?tags={tags}&worker_id={worker_id}")).await;
        match response.status {
            204 => None,
            _ => Some(response.expect(200)),
        }
    }

    pub async fn complete(&self, id: i64, worker_id: &str) -> Response {
        let report = json!({ "worker_id": worker_id, "execution_time_ms": 1250, "status_code": 200 });
        self.post(&format!("/events/{id}/complete"), &report).await
    }
}
