//! `POST /events`.

use serde_json::{Value, json};

/// The request of the source document.
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
    async fn a_published_event_is_answered_as_documented(server) {
        let stored = server.post("/events", &send_email()).await.expect(201);
        let id = stored["id"].as_i64().unwrap();
        let expected = json!({
            "id": id,
            "title": "Send Email Notification",
            "description": "Send welcome email to new user",
            "tags": "email,priority-high,notification",
            "status": "PENDING",
            "payload": send_email()["payload"],
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
    async fn only_the_title_is_required(server) {
        let stored = server.post("/events", &json!({ "title": "t" })).await.expect(201);
        assert_eq!((&stored["tags"], &stored["payload"], &stored["description"]), (&json!(""), &Value::Null, &Value::Null));
        let error = server.post("/events", &json!({ "tags": "a" })).await.error(400, "invalid");
        assert!(error.contains("missing field `title` at line 1 column 12"), "{error}");
    }

    // H1
    async fn payload_and_tags_come_back_byte_for_byte(server) {
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

    async fn every_further_field_is_taken(server) {
        let body = json!({
            "title": "t", "tags": "a", "payload": [1], "type": "order.paid", "run_at": "2025-12-24T12:30:00.5+01:00",
            "expires_at": "2025-12-25T00:00:00Z", "group_id": "g", "key": "k", "priority": 7, "max_retries": 9,
            "metadata": { "trace": "x" }
        });
        let stored = server.post("/events", &body).await.expect(201);
        assert_eq!(stored["max_retries"], 9);
        let event = server.queue.get(stored["id"].as_i64().unwrap()).await.unwrap().event;
        assert_eq!(event.event_type, "order.paid");
        assert_eq!(event.run_at, Some("2025-12-24T11:30:00.5Z".parse().unwrap()));
        assert_eq!(event.expires_at, Some("2025-12-25T00:00:00Z".parse().unwrap()));
        assert_eq!((event.group_id.as_deref(), event.key.as_deref(), event.priority), (Some("g"), Some("k"), 7));
        assert_eq!(event.metadata.unwrap().get(), r#"{"trace":"x"}"#);
    }

    async fn the_type_is_event_unless_given(server) {
        let id = server.publish("a").await;
        assert_eq!(server.queue.get(id).await.unwrap().event.event_type, "event");
    }

    async fn a_delayed_event_is_not_handed_out_early(server) {
        server.post("/events", &json!({ "title": "t", "tags": "a", "delay_ms": 1500 })).await.expect(201);
        assert_eq!(server.subscribe("a", "w:1").await, None);
        server.advance_secs(2);
        assert!(server.subscribe("a", "w:1").await.is_some());
    }

    async fn a_key_seen_before_answers_with_the_first_event_as_it_stands(server) {
        let body = json!({ "title": "first", "tags": "a", "key": "k" });
        let first = server.post("/events", &body).await.expect(201);
        server.subscribe("a", "w:1").await.unwrap();
        let again = server.post("/events", &json!({ "title": "second", "tags": "a", "key": "k" })).await.expect(200);
        assert_eq!((&again["id"], &again["title"], &again["status"]), (&first["id"], &first["title"], &json!("PROCESSING")));
        assert_eq!(server.subscribe("a", "w:1").await, None);
    }

    async fn a_namespace_has_its_own_events_and_policy(server) {
        let policy = windlass::Policy::preset("bus").unwrap();
        server.queue.put_namespace("orders", Some(policy.into()), None).await.unwrap();
        let stored = server.post("/namespaces/orders/events", &send_email()).await.expect(201);
        assert_eq!(stored["max_retries"], 0);
        server.get(&format!("/events/{}", stored["id"])).await.error(404, "event_not_found");
        let error = server.post("/namespaces/nowhere/events", &send_email()).await.error(404, "namespace_not_found");
        assert_eq!(error, "namespace 'nowhere' does not exist; create it first");
        server.post("/namespaces/no%20where/events", &send_email()).await.error(400, "invalid");
    }

    // H13
    async fn a_large_payload_is_taken_and_a_larger_one_refused(server) {
        let body = |bytes: usize| format!(r#"{{"title":"t","tags":"a","payload":"{}"}}"#, "x".repeat(bytes - 2));
        server.post_text("/events", &body(1 << 20)).await.expect(201);
        let error = server.post_text("/events", &body((1 << 20) + 1)).await.error(413, "too_large");
        assert_eq!(error, "payload is 1048577 bytes; the limit is 1048576 bytes");
        // So large that it does not fit into the buffers between client and server.
        let error = server.post_text("/events", &body(32 << 20)).await.error(413, "too_large");
        assert_eq!(error, "the request body is larger than 1179648 bytes");
        server.subscribe("a", "w:1").await.unwrap();
        assert_eq!(server.subscribe("a", "w:1").await, None);
    }
}
