//! The test harness: a running server on its own database, with a clock that the test controls.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass::{Clock, Queue, TestClock};
use windlass_server::{ServeOptions, serve};
use windlass_testkit::{Database, Kind, run_on_two_threads, until};

use crate::http::{Response, head, request};

/// Creates the tests `sqlite::name` and `postgres::name` from each function.
macro_rules! on_each_database {
    ($(async fn $name:ident($server:ident) $body:block)*) => {
        $(async fn $name($server: &mut crate::harness::Server) $body)*

        mod sqlite {
            $(#[test] fn $name() { crate::harness::run(windlass_testkit::Kind::Sqlite, super::$name) })*
        }

        mod postgres {
            $(#[test] fn $name() { crate::harness::run(windlass_testkit::Kind::Postgres, super::$name) })*
        }
    };
}

/// Runs one test and removes its database, even if the test fails.
pub fn run(kind: Kind, test: impl AsyncFnOnce(&mut Server)) {
    let database = Database::empty(kind);
    run_on_two_threads(async || test(&mut Server::start(&database.url).await).await);
}

/// Like [`run`], with all tasks on one thread, so that thread-local settings apply to the whole test.
pub fn run_on_one_thread(kind: Kind, test: impl AsyncFnOnce(&mut Server)) {
    let database = Database::empty(kind);
    windlass_testkit::run_on_one_thread(async || test(&mut Server::start(&database.url).await).await);
}

/// A server whose clock stands at 2025-12-24T10:30:00Z until the test moves it.
pub struct Server {
    pub address: SocketAddr,
    pub queue: Queue,
    pub test_clock: TestClock,
    /// Options for the next start.
    pub options: ServeOptions,
    clock: Clock,
    pub url: String,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Server {
    async fn start(url: &str) -> Server {
        let (clock, test_clock) = Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
        let options = ServeOptions { maintain_every: Duration::from_millis(50), ..ServeOptions::default() };
        Server::start_at(url, clock, test_clock, options).await
    }

    async fn start_at(url: &str, clock: Clock, test_clock: TestClock, options: ServeOptions) -> Server {
        let queue = Queue::options(url).clock(clock.clone()).open().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(queue.clone(), listener, options.clone(), async { drop(stopped.await) }));
        Server { address, queue, test_clock, options, clock, url: url.to_owned(), stop: Some(stop), task }
    }

    /// Starts the shutdown of the server.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until the server has stopped.
    pub async fn stopped(&mut self) {
        (&mut self.task).await.unwrap().unwrap();
    }

    pub async fn restart(&mut self) {
        self.stop();
        self.stopped().await;
        self.start_again().await;
    }

    pub async fn start_again(&mut self) {
        *self = Server::start_at(&self.url, self.clock.clone(), self.test_clock.clone(), self.options.clone()).await;
    }

    pub fn advance_secs(&self, seconds: u64) {
        self.test_clock.advance(Duration::from_secs(seconds));
    }

    /// Sends a request. Each header ends with `\r\n`.
    pub async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        request(self.address, method, path, headers, body.as_bytes()).await
    }

    pub async fn get(&self, path: &str) -> Response {
        self.send("GET", path, "", "").await
    }

    pub async fn delete(&self, path: &str) -> Response {
        self.send("DELETE", path, "", "").await
    }

    /// Sends a POST without a body.
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

    /// Publishes an event with these tags and returns its id.
    pub async fn publish(&self, tags: &str) -> i64 {
        self.publish_as(json!({ "title": "An event", "tags": tags, "payload": { "n": 1 } })).await
    }

    /// Publishes this event and returns its id.
    pub async fn publish_as(&self, event: Value) -> i64 {
        self.post("/events", &event).await.expect(201)["id"].as_i64().unwrap()
    }

    /// The event that the worker claims for these tags, if any.
    pub async fn subscribe(&self, tags: &str, worker_id: &str) -> Option<Value> {
        let response = self.get(&format!("/events/subscribe?tags={tags}&worker_id={worker_id}")).await;
        match response.status {
            204 => None,
            _ => Some(response.expect(200)),
        }
    }

    /// The events of a claim.
    pub async fn claim(&self, request: &Value) -> Vec<Value> {
        self.post("/events/claim", request).await.expect(200)["events"].as_array().unwrap().clone()
    }

    /// The ids of the claimed events.
    pub async fn claim_ids(&self, request: &Value) -> Vec<i64> {
        self.claim(request).await.iter().map(|event| event["id"].as_i64().unwrap()).collect()
    }

    /// Publishes an event, lets `w:1` claim it, and returns its id.
    pub async fn publish_claimed(&self, tags: &str) -> i64 {
        let id = self.publish(tags).await;
        assert_eq!(self.subscribe(tags, "w:1").await.unwrap()["id"], id);
        id
    }

    /// Publishes an event of this type, makes it a dead letter, and returns its id.
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

    /// The event and its log.
    pub async fn show(&self, id: i64) -> Value {
        self.get(&format!("/events/{id}?include_logs=true")).await.expect(200)
    }

    pub async fn status(&self, id: i64) -> String {
        self.show(id).await["status"].as_str().unwrap().to_owned()
    }

    /// The actions in the log.
    pub async fn actions(&self, id: i64) -> Vec<String> {
        actions(&self.show(id).await)
    }

    pub async fn put_namespace(&self, namespace: &str) {
        self.put(&format!("/namespaces/{namespace}"), &json!({})).await.expect(201);
    }

    /// Sends a waiting claim for these tags on its own connection.
    pub async fn wait_for(&self, tags: &str) -> TcpStream {
        let body = json!({ "worker_id": "w:1", "tags": tags, "wait_ms": 60_000 }).to_string();
        self.begin(&(head("POST", "/events/claim", JSON, body.len()) + &body)).await
    }

    /// Waits until this many claims are waiting.
    pub async fn until_waiting(&self, claims: usize) {
        let line = format!("windlass_http_waiting_claims {claims}");
        until(async || self.get("/metrics").await.body.lines().any(|found| found == line).then_some(())).await;
    }

    /// Opens a connection and sends this text.
    pub async fn begin(&self, text: &str) -> TcpStream {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        connection.write_all(text.as_bytes()).await.unwrap();
        connection
    }

    /// Restarts the server with changed options.
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
