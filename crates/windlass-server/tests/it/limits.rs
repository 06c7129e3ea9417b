//! Limits of the server, and requests beyond them.

use std::time::Duration;

use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windlass_testkit::{Kind, until};

use crate::harness::{JSON, Server, run};
use crate::http::{head, read};

/// Reads `100 Continue`: the server waits for the body.
async fn read_continue(connection: &mut TcpStream) {
    let mut interim_response = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    connection.read_exact(&mut interim_response).await.unwrap();
}

/// Sends only the head of a publish request.
async fn begin_publish(server: &Server, length: usize) -> TcpStream {
    let headers = format!("{JSON}expect: 100-continue\r\n");
    let mut connection = server.begin(&head("POST", "/events", &headers, length)).await;
    read_continue(&mut connection).await;
    connection
}

/// A lock on a table, held by another connection.
enum Lock {
    Sqlite(rusqlite::Connection),
    Postgres(PgConnection),
}

impl Lock {
    async fn take(server: &Server, table: &str) -> Lock {
        match server.url.strip_prefix("sqlite://") {
            Some(path) => {
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.busy_timeout(Duration::from_secs(10)).unwrap();
                connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
                Lock::Sqlite(connection)
            }
            None => {
                let mut connection = windlass_testkit::postgres::connect(&server.url).await;
                connection.execute("BEGIN").await.unwrap();
                let lock = format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
                connection.execute(sqlx::AssertSqlSafe(lock)).await.unwrap();
                Lock::Postgres(connection)
            }
        }
    }

    async fn release(self) {
        match self {
            Lock::Sqlite(connection) => connection.execute_batch("ROLLBACK").unwrap(),
            Lock::Postgres(connection) => connection.close().await.unwrap(),
        }
    }
}

on_each_database! {
    async fn long_list_is_refused_while_parsing(server) {
        let many = format!(r#"{{"events":[{}]}}"#, vec!["{}"; 1_000_000].join(","));
        let error = server.post_text("/events/batch", &many).await.error(400, "invalid");
        assert!(error.contains("has more than 10000 items"), "{error}");
        let many = format!(r#"{{"items":[{}]}}"#, vec![r#"{"event_id":1,"outcome":"complete"}"#; 10_001].join(","));
        let error = server.post_text("/events/finish", &many).await.error(400, "invalid");
        assert!(error.contains("has more than 10000 items"), "{error}");
    }

    async fn response_size_is_limited_and_the_rest_stays(server) {
        let event = json!({ "type": "t", "payload": "x".repeat(1_000_000) });
        for _ in 0..4 {
            server.post("/events/batch", &json!({ "events": vec![&event; 10] })).await.expect(201);
        }
        let request = json!({ "worker_id": "w:1", "max": 100, "lease_ms": 600_000 });
        let first = server.claim_ids(&request).await;
        assert_eq!((first.len(), server.claim_ids(&request).await.len()), (33, 7));
        for id in &first {
            let dead = json!({ "worker_id": "w:1", "retry": false });
            server.post(&format!("/events/{id}/fail"), &dead).await.expect(200);
        }
        let page = server.get("/dead-letters?limit=100").await.expect(200);
        assert_eq!((page["dead_letters"].as_array().unwrap().len(), &page["total"]), (33, &json!(33)));
    }

    async fn connections_are_limited(server) {
        server.restart_with(|options| options.connections_max = 1).await;
        let mut only = server.begin("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(only.read(&mut [0; 1000]).await.unwrap() > 0);
        let response = server.post("/events", &json!({ "title": "t" })).await;
        let error = response.error(503, "overloaded");
        assert_eq!(error, "too many connections; try again later");
        assert_eq!(response.header("retry-after"), Some("1"));
        assert_eq!(response.header("content-length"), Some(response.body.len().to_string().as_str()));
        drop(only);
        until(async || (server.get("/healthz").await.status == 200).then_some(())).await;
        let metrics = until(async || Some(server.get("/metrics").await).filter(|answer| answer.status == 200)).await;
        assert!(!metrics.body.contains("windlass_http_connections_refused_total 0"), "{metrics:?}");
    }

    async fn waiting_claims_are_limited(server) {
        server.restart_with(|options| options.waiting_claims_max = 1).await;
        let waiting = server.wait_for("a").await;
        server.until_waiting(1).await;
        let claim = json!({ "worker_id": "w", "tags": "b", "wait_ms": 1 });
        let response = server.post("/events/claim", &claim).await;
        let error = response.error(429, "too_many_waiting");
        assert_eq!(error, "1 claims are already waiting; retry later, or with wait_ms=0");
        assert_eq!(response.header("retry-after"), Some("1"));
        assert!(server.claim(&json!({ "worker_id": "w", "wait_ms": 0 })).await.is_empty());
        server.publish("a").await;
        read(waiting).await.expect(200);
        server.until_waiting(0).await;
        assert!(server.claim(&claim).await.is_empty());
    }

    // H13
    async fn batch_body_size_is_limited(server) {
        server.restart_with(|options| options.batch_bytes_max = 2 << 20).await;
        let batch = |events: usize| json!({ "events": vec![json!({ "title": "t", "payload": "x".repeat(1 << 19) }); events] });
        server.post("/events/batch", &batch(3)).await.expect(201);
        let error = server.post("/events/batch", &batch(4)).await.error(413, "too_large");
        assert_eq!(error, "the request body is larger than 2097152 bytes");
        assert_eq!(server.get("/events").await.expect(200)["total"], 3);
    }

    async fn total_body_memory_is_limited(server) {
        server.restart_with(|options| options.bodies_bytes_max = 64 << 10).await;
        let event = json!({ "title": "t", "payload": "x".repeat(10 << 10) });
        // A `Content-Length` header alone reserves almost no memory.
        let announced = begin_publish(server, 60 << 10).await;
        server.post("/events", &event).await.expect(201);
        drop(announced);
        let (held, response) = until(async || {
            let mut held = begin_publish(server, 60 << 10).await;
            held.write_all(&[b' '; 59 << 10]).await.unwrap();
            let response = server.post("/events", &event).await;
            (response.status == 503).then_some((held, response))
        })
        .await;
        response.error(503, "overloaded");
        assert_eq!(response.header("retry-after"), Some("1"));
        drop(held);
        until(async || (server.post("/events", &event).await.status == 201).then_some(())).await;
    }

    async fn chunked_body_reserves_only_its_size(server) {
        server.restart_with(|options| options.bodies_bytes_max = 64 << 10).await;
        let head = format!("POST /events HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{JSON}transfer-encoding: chunked\r\n\r\n");
        let mut connection = server.begin(&head).await;
        let body = format!(r#"{{"title":"{}"}}"#, "x".repeat(300));
        for byte in body.chars() {
            connection.write_all(format!("1\r\n{byte}\r\n").as_bytes()).await.unwrap();
        }
        connection.write_all(b"0\r\n\r\n").await.unwrap();
        read(connection).await.expect(201);
    }

    async fn chunked_body_size_is_limited(server) {
        let head = format!("POST /events HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{JSON}transfer-encoding: chunked\r\n\r\n");
        let mut connection = server.begin(&head).await;
        let piece = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
        for _ in 0..3 {
            connection.write_all(piece.as_bytes()).await.unwrap();
        }
        connection.write_all(b"0\r\n\r\n").await.unwrap();
        read(connection).await.error(413, "too_large");
    }

    async fn oversized_request_head_is_refused(server) {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        let head = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(200 << 10));
        // The server may close the connection before it has read everything.
        let _ = connection.write_all(head.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
        server.get("/healthz").await.expect(200);
    }

    async fn malformed_http_is_refused(server) {
        for garbage in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "POST /events HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n"] {
            let mut answer = String::new();
            server.begin(garbage).await.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 505"), "{garbage}: {answer}");
        }
    }

    async fn slow_or_idle_connection_is_closed(server) {
        server.restart_with(|options| options.idle_timeout = Duration::from_millis(100)).await;
        let mut slow = server.begin("GET /healthz HTTP/1.1\r\nhost: loc").await;
        let mut idle = server.begin("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        let mut answer = String::new();
        slow.read_to_string(&mut answer).await.unwrap();
        assert!(!answer.contains("200 OK"), "{answer}");
        let mut answer = String::new();
        idle.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }

    async fn slow_request_times_out(server) {
        server.restart_with(|options| options.request_timeout = Duration::from_millis(300)).await;
        server.publish("a").await;
        let lock = Lock::take(server, "windlass.events").await;
        let response = server.post("/events", &json!({ "title": "t", "tags": "a" })).await;
        let error = response.error(503, "timed_out");
        assert_eq!(error, "no response within 0 s; the request may or may not have taken effect");
        assert_eq!(response.header("retry-after"), Some("1"));
        server.get("/healthz").await.expect(200);
        lock.release().await;
        until(async || (server.post("/events", &json!({ "title": "t" })).await.status == 201).then_some(())).await;
    }

    async fn waiting_claim_ends_when_the_server_stops(server) {
        let waiting = server.wait_for("a").await;
        server.until_waiting(1).await;
        server.stop();
        let response = read(waiting).await;
        let error = response.error(503, "shutting_down");
        assert_eq!(error, "the server is shutting down; retry the claim");
        server.stopped().await;
    }

    async fn missing_body_stores_nothing(server) {
        drop(begin_publish(server, 1000).await);
        assert_eq!(server.get("/events").await.expect(200)["total"], 0);
    }
}

/// PostgreSQL only: on SQLite a lock does not block readers.
#[test]
fn slow_token_read_times_out() {
    run(Kind::Postgres, async |server: &mut Server| {
        server.restart_with(|options| options.request_timeout = Duration::from_millis(300)).await;
        let lock = Lock::take(server, "windlass.api_tokens").await;
        server.get("/events").await.error(503, "timed_out");
        server.get("/healthz").await.expect(200);
        lock.release().await;
        until(async || (server.get("/events").await.status == 200).then_some(())).await;
    });
}

/// PostgreSQL only: SQLite has no connections to lose.
#[test]
fn server_recovers_after_losing_its_connections() {
    run(Kind::Postgres, async |server: &mut Server| {
        let id = server.publish_claimed("a").await;
        let waiting = server.wait_for("later").await;
        server.until_waiting(1).await;
        let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
        windlass_testkit::postgres::execute(&server.url, all).await;
        until(async || (server.complete(id, "w:1").await.status == 200).then_some(())).await;
        until(async || (server.get("/readyz").await.status == 200).then_some(())).await;
        let later = until(async || {
            let stored = server.post("/events", &json!({ "title": "t", "tags": "later", "key": "k" })).await;
            matches!(stored.status, 200 | 201).then(|| stored.json()["id"].clone())
        })
        .await;
        let response = read(waiting).await;
        match response.status {
            200 => assert_eq!(response.json()["events"][0]["id"], later),
            _ => drop(response.error(503, "database_unavailable")),
        }
    });
}
