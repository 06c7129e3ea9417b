//! `POST /events`.

use serde_json::{Value, json};

use crate::harness::JSON;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The request from the API contract.
fn send_email() -> Value {
    json!({
        "title": "Send Email Notification",
        "description": "Send welcome email to new user",
        "tags": "email,priority-high,notification",
        "payload": { "user_id": 12345, "email": "user@example.com", "variables": { "name": "Alice" } }
    })
}

on_each_database! {
    // H1
    async fn publish_response_is_as_documented(server) {
        let stored = server.post("/events", &send_email()).await.expect(201);
        let id = stored["id"].as_i64().unwrap();
        let expected = json!({
            "id": id,
            "type": "event",
            "title": "Send Email Notification",
            "description": "Send welcome email to new user",
            "tags": "email,priority-high,notification",
            "status": "PENDING",
            "payload": send_email()["payload"],
            "attempts": 0,
            "retry_count": 0,
            "max_retries": 3,
            "next_retry_at": null,
            "created_at": "2025-12-24T10:30:00Z",
            "updated_at": "2025-12-24T10:30:00Z"
        });
        assert_eq!(stored, expected);
        assert_eq!(server.get(&format!("/events/{id}")).await.expect(200), expected);
    }

    // H1
    async fn publish_requires_only_a_title(server) {
        let stored = server.post("/events", &json!({ "title": "t" })).await.expect(201);
        assert_eq!((&stored["tags"], &stored["payload"], &stored["description"]), (&json!(""), &Value::Null, &Value::Null));
        let error = server.post("/events", &json!({ "tags": "a" })).await.error(400, "invalid");
        assert_eq!(error, "title: is required for an event without a type");
    }

    // H1
    async fn payload_and_tags_are_returned_byte_for_byte(server) {
        let payload = r#"{ "big": 12345678901234567890123.10, "twice":1,"twice":2, "e":"\u00e9é" }"#;
        let body = format!(r#"{{"title":"t","tags":" b, a ,b","payload": {payload} }}"#);
        let stored = server.post_text("/events", &body).await;
        let id = stored.expect(201)["id"].clone();
        let taken = server.get("/events/subscribe?tags=a&worker_id=w:1").await;
        let shown = server.get(&format!("/events/{id}")).await;
        for response in [stored, taken, shown] {
            assert!(response.body.contains(&format!(r#""payload":{payload},"#)), "{response:?}");
            assert!(response.body.contains(r#""tags":" b, a ,b","#), "{response:?}");
        }
    }

    async fn optional_fields_are_stored_and_returned(server) {
        let body = json!({
            "title": "t", "tags": "a", "payload": [1], "type": "order.paid", "run_at": "2025-12-24T12:30:00.5+01:00",
            "expires_at": "2025-12-25T00:00:00Z", "group_id": "g", "key": "k", "priority": 7, "max_retries": 9,
            "metadata": { "tenant": "x" }, "producer": "node-1"
        });
        let stored = server.post("/events", &body).await.expect(201);
        let expected = json!({
            "id": stored["id"], "type": "order.paid", "title": "t", "description": null, "tags": "a",
            "status": "PENDING", "payload": [1], "attempts": 0, "retry_count": 0, "max_retries": 9,
            "next_retry_at": null, "created_at": "2025-12-24T10:30:00Z", "updated_at": "2025-12-24T10:30:00Z",
            "group_id": "g", "key": "k", "priority": 7, "run_at": "2025-12-24T11:30:00.500Z",
            "expires_at": "2025-12-25T00:00:00Z", "metadata": { "tenant": "x" }, "producer": "node-1"
        });
        assert_eq!(stored, expected);
        assert_eq!(server.get(&format!("/events/{}", stored["id"])).await.expect(200), expected);
        server.advance_secs(3601);
        let taken = server.subscribe("a", "w:1").await.unwrap();
        for field in ["type", "group_id", "key", "priority", "run_at", "expires_at", "metadata", "producer"] {
            assert_eq!(taken[field], expected[field], "{field}");
        }
    }

    async fn event_with_a_type_needs_no_title(server) {
        let stored = server.post("/events", &json!({ "type": "order.paid" })).await.expect(201);
        assert_eq!((&stored["type"], &stored["title"]), (&json!("order.paid"), &Value::Null));
    }

    async fn tags_can_be_a_list(server) {
        let stored = server.post("/events", &json!({ "title": "t", "tags": ["a", "b"] })).await.expect(201);
        assert_eq!(stored["tags"], "a,b");
        assert_eq!(server.subscribe("b", "w:1").await.unwrap()["id"], stored["id"]);
        for tags in [json!(["a,b"]), json!([""]), json!([1]), json!(1)] {
            let error = server.post("/events", &json!({ "title": "t", "tags": tags })).await.error(400, "invalid");
            assert!(error.contains("tags"), "{error}");
        }
    }

    async fn event_is_not_delivered_before_run_at(server) {
        let id = server.publish_as(json!({ "title": "t", "tags": "a", "run_at": "2025-12-24T10:31:00Z" })).await;
        server.advance_secs(59);
        assert_eq!(server.subscribe("a", "w:1").await, None);
        server.advance_secs(1);
        assert_eq!(server.subscribe("a", "w:1").await.unwrap()["id"], id);
    }

    async fn event_past_its_deadline_is_not_delivered(server) {
        server.publish_as(json!({ "title": "t", "tags": "a", "expires_at": "2025-12-24T10:31:00Z" })).await;
        server.advance_secs(60);
        assert_eq!(server.subscribe("a", "w:1").await, None);
    }

    async fn group_is_delivered_one_at_a_time_in_order(server) {
        let event = json!({ "title": "t", "tags": "a", "group_id": "g" });
        let (first, second) = (server.publish_as(event.clone()).await, server.publish_as(event).await);
        assert_eq!(server.subscribe("a", "w:1").await.unwrap()["id"], first);
        assert_eq!(server.subscribe("a", "w:2").await, None);
        server.complete(first, "w:1").await.expect(200);
        assert_eq!(server.subscribe("a", "w:2").await.unwrap()["id"], second);
    }

    async fn higher_priority_is_delivered_first(server) {
        let mut ids = Vec::new();
        for priority in [0, -1, 5] {
            ids.push(server.publish_as(json!({ "title": "t", "priority": priority })).await);
        }
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w", "max": 3 })).await, [ids[2], ids[0], ids[1]]);
    }

    async fn max_retries_of_an_event_overrides_the_policy(server) {
        let id = server.publish_as(json!({ "title": "t", "tags": "a", "max_retries": 1 })).await;
        server.subscribe("a", "w:1").await.unwrap();
        let body = server.fail(id, "w:1").await.expect(400);
        assert_eq!((&body["retry_count"], &body["max_retries"]), (&json!(1), &json!(1)));
    }

    async fn delayed_event_is_not_delivered_early(server) {
        server.post("/events", &json!({ "title": "t", "tags": "a", "delay_ms": 1500 })).await.expect(201);
        assert_eq!(server.subscribe("a", "w:1").await, None);
        server.advance_secs(2);
        assert!(server.subscribe("a", "w:1").await.is_some());
    }

    async fn duplicate_key_returns_the_first_event(server) {
        let body = json!({ "title": "first", "tags": "a", "key": "k" });
        let first = server.post("/events", &body).await.expect(201);
        server.subscribe("a", "w:1").await.unwrap();
        let again = server.post("/events", &json!({ "title": "second", "tags": "a", "key": "k" })).await.expect(200);
        assert_eq!((&again["id"], &again["title"], &again["status"]), (&first["id"], &first["title"], &json!("PROCESSING")));
        assert_eq!(server.subscribe("a", "w:1").await, None);
    }

    async fn idempotency_key_header_sets_the_key(server) {
        let headers = format!("{JSON}idempotency-key: k\r\n");
        let first = server.send("POST", "/events", &headers, r#"{"title":"first"}"#).await.expect(201);
        assert_eq!(first["key"], "k");
        let again = server.send("POST", "/events", &headers, r#"{"title":"second","key":"k"}"#).await.expect(200);
        assert_eq!((&again["id"], &again["title"]), (&first["id"], &json!("first")));
        let differs = server.send("POST", "/events", &headers, r#"{"title":"t","key":"other"}"#).await;
        assert_eq!(differs.error(400, "invalid"), "key: differs from the header Idempotency-Key");
        assert_eq!(server.get("/events").await.expect(200)["total"], 1);
    }

    async fn key_is_forgotten_after_its_window(server) {
        let event = json!({ "title": "t", "key": "k" });
        let first = server.publish_as(event.clone()).await;
        server.advance_secs(24 * 3600 + 1);
        assert_ne!(server.publish_as(event).await, first);
    }

    async fn duplicate_of_a_deleted_event_is_completed(server) {
        server.put("/namespaces/box", &json!({ "policy": { "preset": "outbox" } })).await.expect(201);
        let event = json!({ "title": "t", "tags": "a", "key": "k" });
        let first = server.post("/namespaces/box/events", &event).await.expect(201);
        server.get("/namespaces/box/events/subscribe?tags=a&worker_id=w:1").await.expect(200);
        let done = format!("/namespaces/box/events/{}/complete", first["id"]);
        server.post(&done, &json!({ "worker_id": "w:1" })).await.expect(200);
        let again = server.post("/namespaces/box/events", &event).await.expect(200);
        assert_eq!((&again["id"], &again["status"]), (&first["id"], &json!("COMPLETED")));
    }

    async fn trace_is_stored_and_delivered(server) {
        let headers = format!("{JSON}traceparent: {TRACE}\r\ntracestate: a=1\r\n");
        let body = r#"{"title":"t","tags":"a","metadata":{"tenant":"x"}}"#;
        let stored = server.send("POST", "/events", &headers, body).await.expect(201);
        assert_eq!(stored["metadata"], json!({ "tenant": "x", "traceparent": TRACE, "tracestate": "a=1" }));
        let taken = server.get("/events/subscribe?tags=a&worker_id=w:1").await;
        assert_eq!(taken.header("traceparent"), Some(TRACE));
        assert_eq!(taken.expect(200)["metadata"], stored["metadata"]);
    }

    async fn trace_in_the_metadata_takes_precedence(server) {
        let own = TRACE.replace('4', "5");
        let headers = format!("{JSON}traceparent: {TRACE}\r\n");
        let body = format!(r#"{{"title":"t","tags":"a","metadata":{{"traceparent":"{own}"}}}}"#);
        server.send("POST", "/events", &headers, &body).await.expect(201);
        let taken = server.get("/events/subscribe?tags=a&worker_id=w:1").await;
        assert_eq!(taken.header("traceparent"), Some(own.as_str()));
    }

    async fn malformed_trace_is_ignored(server) {
        let zeros = "0".repeat(32);
        let no_trace = format!("00-{zeros}-00f067aa0ba902b7-01");
        let no_parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", &zeros[..16]);
        for bad in ["x", "00-4bf9-00f0-01", &TRACE.to_uppercase(), &no_trace, &no_parent] {
            let headers = format!("{JSON}traceparent: {bad}\r\ntracestate: a=1\r\n");
            let stored = server.send("POST", "/events", &headers, r#"{"title":"t","tags":"a"}"#).await.expect(201);
            assert_eq!(stored.get("metadata"), None, "{bad}");
            let taken = server.get("/events/subscribe?tags=a&worker_id=w:1").await;
            assert_eq!((taken.status, taken.header("traceparent")), (200, None));
        }
    }

    async fn namespace_has_its_own_events_and_policy(server) {
        server.put("/namespaces/orders", &json!({ "policy": { "preset": "bus" } })).await.expect(201);
        let stored = server.post("/namespaces/orders/events", &send_email()).await.expect(201);
        assert_eq!(stored["max_retries"], 0);
        server.get(&format!("/events/{}", stored["id"])).await.error(404, "event_not_found");
        let error = server.post("/namespaces/nowhere/events", &send_email()).await.error(404, "namespace_not_found");
        assert_eq!(error, "namespace 'nowhere' does not exist; create it first");
        server.post("/namespaces/no%20where/events", &send_email()).await.error(400, "invalid");
    }

    // H13
    async fn payload_size_is_limited(server) {
        let body = |bytes: usize| format!(r#"{{"title":"t","tags":"a","payload":"{}"}}"#, "x".repeat(bytes - 2));
        server.post_text("/events", &body(1 << 20)).await.expect(201);
        let error = server.post_text("/events", &body((1 << 20) + 1)).await.error(413, "too_large");
        assert_eq!(error, "payload is 1048577 bytes; the limit is 1048576 bytes");
        // Larger than the buffers between client and server.
        let error = server.post_text("/events", &body(32 << 20)).await.error(413, "too_large");
        assert_eq!(error, "the request body is larger than 1179648 bytes");
        server.subscribe("a", "w:1").await.unwrap();
        assert_eq!(server.subscribe("a", "w:1").await, None);
    }
}
