//! What the server does by itself.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bed::Server;

/// Asks for the event until it has this status.
async fn until_status(server: &Server, path: &str, status: &str) -> Value {
    loop {
        let shown = server.get(path).await.expect(200);
        if shown["status"] == status {
            return shown;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn actions(shown: &Value) -> Vec<&str> {
    shown["logs"].as_array().unwrap().iter().map(|entry| entry["action"].as_str().unwrap()).collect()
}

on_each_database! {
    async fn abandoned_events_come_back_in_every_namespace(server) {
        server.queue.put_namespace("orders", None, None).await.unwrap();
        for prefix in ["", "/namespaces/orders"] {
            let stored = server.post(&format!("{prefix}/events"), &json!({ "title": "t", "tags": "a" })).await.expect(201);
            server.get(&format!("{prefix}/events/subscribe?tags=a&worker_id=w:1")).await.expect(200);
            server.advance_secs(61);
            let path = format!("{prefix}/events/{}?include_logs=true", stored["id"]);
            // A run-out lease reads as PENDING at once; the log shows who saw to it.
            while actions(&until_status(server, &path, "PENDING").await) != ["PICKED", "ABANDONED"] {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn events_past_their_deadline_expire(server) {
        let event = json!({ "title": "t", "tags": "a", "expires_at": "2025-12-24T10:31:00Z" });
        let id = server.post("/events", &event).await.expect(201)["id"].clone();
        server.advance_secs(61);
        let shown = until_status(server, &format!("/events/{id}?include_logs=true"), "EXPIRED").await;
        assert_eq!(actions(&shown), ["EXPIRED"]);
        assert_eq!(server.subscribe("a", "w:1").await, None);
    }
}
