//! `GET /events/stream`.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use windlass::{ClaimRequest, NewEvent, NewToken, Report, Scope};

use crate::harness::Server;

/// A client of a stream.
struct StreamClient {
    connection: TcpStream,
    text: String,
}

impl StreamClient {
    /// Opens a stream. It includes all activity from now on.
    async fn start(server: &Server, path: &str) -> StreamClient {
        let connection = server.begin(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        let mut client = StreamClient { connection, text: String::new() };
        while !client.text.contains("\r\n\r\n") {
            assert!(client.more().await, "{}", client.text);
        }
        assert!(client.text.starts_with("HTTP/1.1 200"), "{}", client.text);
        client
    }

    async fn more(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let count = self.connection.read(&mut bytes).await.unwrap();
        self.text += std::str::from_utf8(&bytes[..count]).unwrap();
        count > 0
    }

    /// Waits for this many activities, and returns all received so far.
    async fn activities(&mut self, count: usize) -> Vec<Value> {
        loop {
            let activities: Vec<Value> = self
                .text
                .split("event: activity\ndata: ")
                .skip(1)
                .filter_map(|rest| rest.split_once("\n\n"))
                .map(|(data, _)| serde_json::from_str(data).unwrap())
                .collect();
            if activities.len() >= count {
                return activities;
            }
            assert!(self.more().await, "{}", self.text);
        }
    }

    /// Waits for a server-sent event of this name, and returns its data.
    async fn first_event(&mut self, name: &str) -> Value {
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
    // Changes made through the library represent changes by other processes.
    async fn stream_shows_the_whole_life_of_an_event(server) {
        let mut client = StreamClient::start(server, "/events/stream?tags=a").await;
        let id = server.queue.publish(NewEvent::new("t").tags(["a"]).max_retries(1)).await.unwrap().event.id;
        for delivery in server.queue.claim(ClaimRequest::new("w:1")).await.unwrap() {
            assert!(!server.queue.finish(&delivery, Report::failed("no")).await.unwrap().is_lost());
        }
        server.post(&format!("/dead-letters/{id}/redrive"), &json!({})).await.expect(200);
        server.queue.cancel(id, None).await.unwrap();
        let activities = client.activities(4).await;
        let seen: Vec<_> = activities.iter().map(|activity| [&activity["action"], &activity["status"], &activity["worker_id"]]).collect();
        let expected = [
            ["PUBLISHED", "PENDING", ""],
            ["FAILED", "FAILED", "w:1"],
            ["REDRIVEN", "PENDING", ""],
            ["CANCELLED", "CANCELLED", ""],
        ];
        for (seen, expected) in seen.iter().zip(expected) {
            assert_eq!(seen.map(|value| value.as_str().unwrap_or_default()), expected);
        }
        assert!(activities.iter().all(|activity| activity["event_id"] == id && activity["type"] == "t"), "{activities:?}");
    }

    async fn slow_reader_is_told_how_much_it_missed(server) {
        let mut client = StreamClient::start(server, "/events/stream").await;
        server.queue.publish_all(vec![NewEvent::new("t"); 3_000]).await.unwrap();
        let missed = client.first_event("missed").await["missed"].as_u64().unwrap();
        assert!((1..=2_000).contains(&missed), "{missed}");
        // The stream continues.
        let last = server.publish("last").await;
        let mut more = StreamClient::start(server, "/events/stream?tags=later").await;
        let later = server.publish("later").await;
        assert_eq!(more.first_event("activity").await["event_id"], later);
        while !client.text.contains(&format!("\"event_id\":{last},")) {
            assert!(client.more().await);
        }
    }

    async fn claims_are_streamed(server) {
        let mut client = StreamClient::start(server, "/events/stream?status=PROCESSING").await;
        assert!(client.text.contains("content-type: text/event-stream"), "{}", client.text);
        assert!(client.text.contains("cache-control: no-store"), "{}", client.text);
        let id = server.publish_claimed("a").await;
        let activity = client.first_event("activity").await;
        assert_eq!((&activity["event_id"], &activity["action"], &activity["worker_id"]), (&json!(id), &json!("PICKED"), &json!("w:1")));
        assert_eq!((&activity["status"], &activity["attempt"]), (&json!("PROCESSING"), &json!(1)));
        assert_eq!((&activity["subscription"], &activity["tags"]), (&json!("main"), &json!("a")));
        assert_eq!(activity["created_at"], "2025-12-24T10:30:00Z");
    }

    async fn stream_filters_apply(server) {
        server.post("/subscriptions", &json!({ "subscription": "audit", "tags": "b" })).await.expect(201);
        let matching_order = ["types=order.*", "tags=b", "subscription=audit"];
        let matching_event = ["types=event", "tags=x,a", "types=none,event&tags=a"];
        let mut clients = Vec::new();
        for query in matching_order.iter().chain(&matching_event) {
            clients.push(StreamClient::start(server, &format!("/events/stream?status=PROCESSING&{query}")).await);
        }
        let audit = json!({ "worker_id": "w", "subscription": "audit" });
        let order = server.publish_as(json!({ "type": "order.paid", "tags": "b" })).await;
        assert_eq!(server.claim_ids(&audit).await, [order]);
        server.claim(&json!({ "worker_id": "w" })).await;
        let event = server.publish_claimed("a").await;
        for (index, client) in clients.iter_mut().enumerate() {
            let expected = if index < matching_order.len() { order } else { event };
            assert_eq!(client.first_event("activity").await["event_id"], expected, "{index}");
        }
    }

    async fn stream_is_limited_to_its_namespace(server) {
        server.put_namespace("orders").await;
        let mut client = StreamClient::start(server, "/namespaces/orders/events/stream?status=PROCESSING").await;
        server.publish_claimed("a").await;
        let stored = server.post("/namespaces/orders/events", &json!({ "title": "t", "tags": "a" })).await.expect(201);
        server.get("/namespaces/orders/events/subscribe?tags=a&worker_id=w").await.expect(200);
        assert_eq!(client.first_event("activity").await["event_id"], stored["id"]);
    }

    async fn stream_ends_with_bye_on_shutdown(server) {
        let mut client = StreamClient::start(server, "/events/stream").await;
        server.stop();
        assert_eq!(client.first_event("bye").await, json!({ "reason": "shutting_down" }));
        while client.more().await {}
        assert!(client.text.ends_with("0\r\n\r\n"), "{}", client.text);
        server.stopped().await;
    }

    async fn stream_ends_when_the_token_is_revoked(server) {
        let created = server.queue.create_token(NewToken::new([Scope::Read])).await.unwrap();
        let head = format!("GET /events/stream HTTP/1.1\r\nauthorization: Bearer {}\r\n\r\n", created.secret);
        let mut client = StreamClient { connection: server.begin(&head).await, text: String::new() };
        assert!(client.more().await && client.text.starts_with("HTTP/1.1 200"), "{}", client.text);
        server.queue.revoke_token(&created.token.token_id).await.unwrap();
        assert_eq!(client.first_event("bye").await, json!({ "reason": "wrong_token" }));
    }

    async fn invalid_stream_filters_are_refused(server) {
        assert_eq!(server.get("/events/stream?types=a*b").await.bad_field(), "types");
        assert_eq!(server.get("/events/stream?status=DONE").await.bad_field(), "status");
        assert_eq!(server.get("/events/stream?status=FAILED,x").await.bad_field(), "status");
        server.get("/events/stream?state=FAILED").await.error(400, "invalid");
        server.get("/namespaces/nowhere/events/stream").await.error(404, "namespace_not_found");
        assert_eq!(server.send("HEAD", "/events/stream", "", "").await.status, 405);
    }

    async fn streams_are_limited(server) {
        server.restart_with(|options| options.streams_max = 1).await;
        let client = StreamClient::start(server, "/events/stream").await;
        let response = server.get("/events/stream").await;
        response.error(429, "too_many_streams");
        assert_eq!(response.header("retry-after"), Some("1"));
        drop(client);
        windlass_testkit::until(async || {
            let connection = server.begin("GET /events/stream HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            let mut client = StreamClient { connection, text: String::new() };
            client.more().await;
            client.text.starts_with("HTTP/1.1 200").then_some(())
        })
        .await;
    }
}
