//! `POST /events/batch`.

use serde_json::{Value, json};

use crate::harness::{JSON, Server};

async fn total(server: &Server) -> Value {
    server.get("/events").await.expect(200)["total"].clone()
}

on_each_database! {
    async fn idempotency_key_for_a_batch_is_refused(server) {
        let headers = "content-type: application/json\r\nidempotency-key: k\r\n";
        let response = server.send("POST", "/events/batch", headers, r#"{"events":[{"title":"t"}]}"#).await;
        assert_eq!(response.bad_field(), "key");
        assert_eq!(server.get("/events").await.expect(200)["total"], 0);
    }

    async fn batch_is_stored_in_order(server) {
        let events: Vec<Value> = (0..3).map(|n| json!({ "title": "t", "tags": ["a"], "payload": n })).collect();
        let stored = server.post("/events/batch", &json!({ "events": events })).await.expect(201);
        let ids: Vec<i64> = stored["events"].as_array().unwrap().iter().map(|e| e["id"].as_i64().unwrap()).collect();
        let first = json!({ "id": ids[0], "duplicate": false, "created_at": "2025-12-24T10:30:00Z" });
        assert_eq!(stored["events"][0], first);
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w", "max": 10 })).await, ids);
    }

    async fn invalid_event_of_a_batch_is_named_and_nothing_stored(server) {
        let cases = [
            (json!({ "title": "t", "tags": "a,,b" }), "events[1]: tags: must not be empty"),
            (json!({ "tags": "a" }), "events[1]: title: is required for an event without a type"),
            (json!({ "title": "t", "metadata": [1] }), "events[1]: metadata: must be a JSON object"),
        ];
        for (bad, expected) in cases {
            let events = json!({ "events": [{ "title": "t" }, bad, { "title": "t" }] });
            let response = server.post("/events/batch", &events).await;
            assert_eq!(response.error(400, "invalid"), expected);
            assert!(response.json()["field"].is_string(), "{response:?}");
        }
        let events = json!({ "events": [{ "title": "t" }, { "title": "t", "titel": 1 }] });
        let error = server.post("/events/batch", &events).await.error(400, "invalid");
        assert!(error.contains("events[1].titel: unknown field"), "{error}");
        assert_eq!(total(server).await, 0);
    }

    async fn duplicates_in_a_batch_are_detected_by_key(server) {
        let first = server.publish_as(json!({ "title": "t", "key": "k" })).await;
        let events = json!({ "events": [
            { "title": "t", "key": "k" }, { "title": "t", "key": "new" }, { "title": "t", "key": "new" }
        ] });
        let stored = server.post("/events/batch", &events).await.expect(201)["events"].clone();
        let duplicates: Vec<_> = stored.as_array().unwrap().iter().map(|event| &event["duplicate"]).collect();
        assert_eq!(duplicates, [true, false, true]);
        assert_eq!((&stored[0]["id"], &stored[1]["id"]), (&json!(first), &stored[2]["id"]));
        assert_eq!(total(server).await, 2);
    }

    async fn trace_is_added_to_every_event_of_a_batch(server) {
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let headers = format!("{JSON}traceparent: {trace}\r\n");
        let body = r#"{"events":[{"title":"a"},{"title":"b"}]}"#;
        server.send("POST", "/events/batch", &headers, body).await.expect(201);
        for event in server.claim(&json!({ "worker_id": "w", "max": 2 })).await {
            assert_eq!(event["metadata"]["traceparent"], trace);
        }
    }

    async fn batch_size_is_limited_and_may_be_zero(server) {
        assert_eq!(server.post("/events/batch", &json!({ "events": [] })).await.expect(201), json!({ "events": [] }));
        let events = vec![json!({ "title": "t" }); 10_001];
        let error = server.post("/events/batch", &json!({ "events": events })).await.error(400, "invalid");
        assert!(error.contains("events: has more than 10000 items, which is the limit"), "{error}");
        server.post("/events/batch", &json!({})).await.error(400, "invalid");
    }

    // H13
    async fn oversized_payload_refuses_the_batch(server) {
        let events = json!({ "events": [{ "title": "t" }, { "title": "t", "payload": "x".repeat(1 << 20) }] });
        let error = server.post("/events/batch", &events).await.error(413, "too_large");
        assert_eq!(error, "events[1]: payload is 1048578 bytes; the limit is 1048576 bytes");
        assert_eq!(total(server).await, 0);
    }
}
