//! `GET /events/stream`.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use windlass::{ClaimRequest, NewEvent, NewToken, Report, Scope};

use crate::bed::Server;

/// One that listens.
struct Reader {
    connection: TcpStream,
    text: String,
}

impl Reader {
    /// Begins to listen; from now on nothing is missed.
    async fn start(server: &Server, path: &str) -> Reader {
        let connection = server.begin(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        let mut reader = Reader { connection, text: String::new() };
        while !reader.text.contains("\r\n\r\n") {
            assert!(reader.more().await, "{}", reader.text);
        }
        assert!(reader.text.starts_with("HTTP/1.1 200"), "{}", reader.text);
        reader
    }

    async fn more(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let count = self.connection.read(&mut bytes).await.unwrap();
        self.text += std::str::from_utf8(&bytes[..count]).unwrap();
        count > 0
    }

    /// What the first so many activities were.
    async fn told(&mut self, count: usize) -> Vec<Value> {
        loop {
            let told: Vec<Value> = self
                .text
                .split("event: activity\ndata: ")
                .skip(1)
                .filter_map(|rest| rest.split_once("\n\n"))
                .map(|(data, _)| serde_json::from_str(data).unwrap())
                .collect();
            if told.len() >= count {
                return told;
            }
            assert!(self.more().await, "{}", self.text);
        }
    }

    /// The first event of this name that was sent; its data.
    async fn first(&mut self, name: &str) -> Value {
        let begin = format!("event: {name}\ndata: ");
        loop {
            let found = self.text.split_once(&begin).and_then(|(_, rest)| rest.split_once("\n\n"));
            if let Some((data, _)) = found {
                return serde_json::from_str(data).unwrap();
            }
            assert!(self.more().await, "{}", self.text);
        }
    }
}

on_each_database! {
    // What the library does itself stands for what other processes do.
    async fn the_whole_life_of_an_event_is_told(server) {
        let mut reader = Reader::start(server, "/events/stream?tags=a").await;
        let id = server.queue.publish(NewEvent::new("t").tags(["a"]).max_retries(1)).await.unwrap().event.id;
        for delivery in server.queue.claim(ClaimRequest::new("w:1")).await.unwrap() {
            assert!(!server.queue.finish(&delivery, Report::failed("no")).await.unwrap().is_lost());
        }
        server.post(&format!("/dead-letters/{id}/redrive"), &json!({})).await.expect(200);
        server.queue.cancel(id, None).await.unwrap();
        let told = reader.told(4).await;
        let seen: Vec<_> = told.iter().map(|told| [&told["action"], &told["status"], &told["worker_id"]]).collect();
        let expected = [
            ["PUBLISHED", "PENDING", ""],
            ["FAILED", "FAILED", "w:1"],
            ["REDRIVEN", "PENDING", ""],
            ["CANCELLED", "CANCELLED", ""],
        ];
        for (seen, expected) in seen.iter().zip(expected) {
            assert_eq!(seen.map(|value| value.as_str().unwrap_or_default()), expected);
        }
        assert!(told.iter().all(|told| told["event_id"] == id && told["type"] == "t"), "{told:?}");
    }

    async fn who_cannot_be_told_everything_is_told_how_much_it_missed(server) {
        let mut reader = Reader::start(server, "/events/stream").await;
        server.queue.publish_all(vec![NewEvent::new("t"); 3_000]).await.unwrap();
        let missed = reader.first("missed").await["missed"].as_u64().unwrap();
        assert!((1..=2_000).contains(&missed), "{missed}");
        // And it goes on.
        let last = server.publish("last").await;
        let mut more = Reader::start(server, "/events/stream?tags=later").await;
        let later = server.publish("later").await;
        assert_eq!(more.first("activity").await["event_id"], later);
        while !reader.text.contains(&format!("\"event_id\":{last},")) {
            assert!(reader.more().await);
        }
    }

    async fn what_is_picked_is_told(server) {
        let mut reader = Reader::start(server, "/events/stream?status=PROCESSING").await;
        assert!(reader.text.contains("content-type: text/event-stream"), "{}", reader.text);
        assert!(reader.text.contains("cache-control: no-store"), "{}", reader.text);
        let id = server.publish_taken("a").await;
        let told = reader.first("activity").await;
        assert_eq!((&told["event_id"], &told["action"], &told["worker_id"]), (&json!(id), &json!("PICKED"), &json!("w:1")));
        assert_eq!((&told["status"], &told["attempt"]), (&json!("PROCESSING"), &json!(1)));
        assert_eq!((&told["subscription"], &told["tags"]), (&json!("main"), &json!("a")));
        assert_eq!(told["created_at"], "2025-12-24T10:30:00Z");
    }

    async fn only_what_is_asked_for_is_told(server) {
        server.post("/subscriptions", &json!({ "subscription": "audit", "tags": "b" })).await.expect(201);
        let of_order = ["types=order.*", "tags=b", "subscription=audit"];
        let of_event = ["types=event", "tags=x,a", "types=none,event&tags=a"];
        let mut readers = Vec::new();
        for query in of_order.iter().chain(&of_event) {
            readers.push(Reader::start(server, &format!("/events/stream?status=PROCESSING&{query}")).await);
        }
        let audit = json!({ "worker_id": "w", "subscription": "audit" });
        let order = server.publish_as(json!({ "type": "order.paid", "tags": "b" })).await;
        assert_eq!(server.claim_ids(&audit).await, [order]);
        server.claim(&json!({ "worker_id": "w" })).await;
        let event = server.publish_taken("a").await;
        for (place, reader) in readers.iter_mut().enumerate() {
            let expected = if place < of_order.len() { order } else { event };
            assert_eq!(reader.first("activity").await["event_id"], expected, "{place}");
        }
    }

    async fn a_namespace_is_told_of_its_own_only(server) {
        server.put_namespace("orders").await;
        let mut reader = Reader::start(server, "/namespaces/orders/events/stream?status=PROCESSING").await;
        server.publish_taken("a").await;
        let stored = server.post("/namespaces/orders/events", &json!({ "title": "t", "tags": "a" })).await.expect(201);
        server.get("/namespaces/orders/events/subscribe?tags=a&worker_id=w").await.expect(200);
        assert_eq!(reader.first("activity").await["event_id"], stored["id"]);
    }

    async fn a_stopping_server_says_good_bye(server) {
        let mut reader = Reader::start(server, "/events/stream").await;
        server.stop();
        assert_eq!(reader.first("bye").await, json!({ "reason": "shutting_down" }));
        while reader.more().await {}
        assert!(reader.text.ends_with("0\r\n\r\n"), "{}", reader.text);
        server.stopped().await;
    }

    async fn who_loses_its_token_is_told_no_more(server) {
        let created = server.queue.create_token(NewToken::new([Scope::Read])).await.unwrap();
        let head = format!("GET /events/stream HTTP/1.1\r\nauthorization: Bearer {}\r\n\r\n", created.secret);
        let mut reader = Reader { connection: server.begin(&head).await, text: String::new() };
        assert!(reader.more().await && reader.text.starts_with("HTTP/1.1 200"), "{}", reader.text);
        server.queue.revoke_token(&created.token.token_id).await.unwrap();
        assert_eq!(reader.first("bye").await, json!({ "reason": "wrong_token" }));
    }

    async fn a_bad_question_is_refused(server) {
        assert_eq!(server.get("/events/stream?types=a*b").await.bad_field(), "types");
        assert_eq!(server.get("/events/stream?status=DONE").await.bad_field(), "status");
        assert_eq!(server.get("/events/stream?status=FAILED,x").await.bad_field(), "status");
        server.get("/events/stream?state=FAILED").await.error(400, "invalid");
        server.get("/namespaces/nowhere/events/stream").await.error(404, "namespace_not_found");
        assert_eq!(server.send("HEAD", "/events/stream", "", "").await.status, 405);
    }

    async fn there_are_only_so_many_streams(server) {
        server.restart_with(|options| options.streams_max = 1).await;
        let reader = Reader::start(server, "/events/stream").await;
        let response = server.get("/events/stream").await;
        response.error(429, "too_many_streams");
        assert_eq!(response.header("retry-after"), Some("1"));
        drop(reader);
        crate::bed::until(async || {
            let connection = server.begin("GET /events/stream HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            let mut reader = Reader { connection, text: String::new() };
            reader.more().await;
            reader.text.starts_with("HTTP/1.1 200").then_some(())
        })
        .await;
    }
}
