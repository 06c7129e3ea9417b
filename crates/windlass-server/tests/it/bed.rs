//! What a test stands on: a running server on a database of its own, with a clock that it can move.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass::{Clock, Queue, TestClock};
use windlass_server::{ServeOptions, serve};

use crate::http::{Response, head, request};

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
    run_on(Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(), database, test);
}

/// The same, with all of its tasks on one thread: what is set for a thread holds for the whole test.
pub fn run_on_one_thread(database: Database, test: impl AsyncFnOnce(&mut Server)) {
    run_on(Builder::new_current_thread().enable_all().build().unwrap(), database, test);
}

fn run_on(runtime: Runtime, database: Database, test: impl AsyncFnOnce(&mut Server)) {
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
    pub hand: TestClock,
    /// For the next start.
    pub options: ServeOptions,
    clock: Clock,
    pub url: String,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Server {
    async fn start(url: &str) -> Server {
        let (clock, hand) = Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
        let options = ServeOptions { maintain_every: Duration::from_millis(50), ..ServeOptions::default() };
        Server::start_at(url, clock, hand, options).await
    }

    async fn start_at(url: &str, clock: Clock, hand: TestClock, options: ServeOptions) -> Server {
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

    /// A request with any method, headers (each ending in `\r\n`) and body.
    pub async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        request(self.address, method, path, headers, body.as_bytes()).await
    }

    pub async fn get(&self, path: &str) -> Response {
        self.send("GET", path, "", "").await
    }

    pub async fn delete(&self, path: &str) -> Response {
        self.send("DELETE", path, "", "").await
    }

    /// A POST without a body.
    pub async fn act(&self, path: &str) -> Response {
        self.send("POST", path, "", "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Response {
        self.post_text(path, &body.to_string()).await
    }

    pub async fn post_text(&self, path: &str, body: &str) -> Response {
        self.send("POST", path, JSON, body).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Response {
        self.send("PUT", path, JSON, &body.to_string()).await
    }

    /// Publishes an event with these tags; its id.
    pub async fn publish(&self, tags: &str) -> i64 {
        self.publish_as(json!({ "title": "An event", "tags": tags, "payload": { "n": 1 } })).await
    }

    /// Publishes this event; its id.
    pub async fn publish_as(&self, event: Value) -> i64 {
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

    /// What a claim takes.
    pub async fn claim(&self, request: &Value) -> Vec<Value> {
        self.post("/events/claim", request).await.expect(200)["events"].as_array().unwrap().clone()
    }

    /// The ids of what a claim takes.
    pub async fn claim_ids(&self, request: &Value) -> Vec<i64> {
        self.claim(request).await.iter().map(|event| event["id"].as_i64().unwrap()).collect()
    }

    /// Publishes an event that `w:1` then takes; its id.
    pub async fn publish_taken(&self, tags: &str) -> i64 {
        let id = self.publish(tags).await;
        assert_eq!(self.subscribe(tags, "w:1").await.unwrap()["id"], id);
        id
    }

    /// Publishes an event of this type that fails for good; its id.
    pub async fn publish_dead(&self, event_type: &str) -> i64 {
        let id = self.publish_as(json!({ "type": event_type })).await;
        assert_eq!(self.claim_ids(&json!({ "worker_id": "w:1", "types": event_type })).await, [id]);
        let report = json!({ "worker_id": "w:1", "retry": false, "error_message": "no" });
        self.post(&format!("/events/{id}/fail"), &report).await.expect(200);
        id
    }

    pub async fn complete(&self, id: i64, worker_id: &str) -> Response {
        let report = json!({ "worker_id": worker_id, "execution_time_ms": 1250, "status_code": 200 });
        self.post(&format!("/events/{id}/complete"), &report).await
    }

    pub async fn fail(&self, id: i64, worker_id: &str) -> Response {
        let report = json!({
            "worker_id": worker_id, "execution_time_ms": 5000, "status_code": 500,
            "error_message": "Connection timeout"
        });
        self.post(&format!("/events/{id}/fail"), &report).await
    }

    /// The event with its log.
    pub async fn show(&self, id: i64) -> Value {
        self.get(&format!("/events/{id}?include_logs=true")).await.expect(200)
    }

    pub async fn status(&self, id: i64) -> String {
        self.show(id).await["status"].as_str().unwrap().to_owned()
    }

    /// What the log says happened.
    pub async fn actions(&self, id: i64) -> Vec<String> {
        actions(&self.show(id).await)
    }

    pub async fn put_namespace(&self, namespace: &str) {
        self.put(&format!("/namespaces/{namespace}"), &json!({})).await.expect(201);
    }

    /// A claim that waits for an event with these tags, on a connection of its own.
    pub async fn wait_for(&self, tags: &str) -> TcpStream {
        let body = json!({ "worker_id": "w:1", "tags": tags, "wait_ms": 60_000 }).to_string();
        self.begin(&(head("POST", "/events/claim", JSON, body.len()) + &body)).await
    }

    /// Until so many claims wait.
    pub async fn until_waiting(&self, claims: usize) {
        let line = format!("windlass_http_waiting_claims {claims}");
        until(async || self.get("/metrics").await.body.lines().any(|found| found == line).then_some(())).await;
    }

    /// A connection on which this was sent.
    pub async fn begin(&self, text: &str) -> TcpStream {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        connection.write_all(text.as_bytes()).await.unwrap();
        connection
    }

    /// Starts again with these options.
    pub async fn restart_with(&mut self, change: impl FnOnce(&mut ServeOptions)) {
        change(&mut self.options);
        self.restart().await;
    }
}

pub const JSON: &str = "content-type: application/json\r\n";

/// The actions in the log of an event.
pub fn actions(shown: &Value) -> Vec<String> {
    shown["logs"].as_array().unwrap().iter().map(|entry| entry["action"].as_str().unwrap().to_owned()).collect()
}

/// Tries until there is something.
pub async fn until<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
