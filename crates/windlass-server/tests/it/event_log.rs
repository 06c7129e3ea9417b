//! The log of an event.

use serde_json::{Value, json};

/// A log without the ids of its entries, which must increase.
fn without_ids(logs: &Value) -> Vec<Value> {
    let mut entries = logs.as_array().unwrap().clone();
    let ids: Vec<i64> = entries.iter().map(|entry| entry["id"].as_i64().unwrap()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    entries.iter_mut().for_each(|entry| drop(entry.as_object_mut().unwrap().remove("id")));
    entries
}

on_each_database! {
    // H7
    async fn log_is_shown_on_request(server) {
        let id = server.publish("a").await;
        server.advance_secs(45);
        server.subscribe("a", "worker-02:8742").await.unwrap();
        server.advance_secs(30);
        server.complete(id, "worker-02:8742").await.expect(200);

        let shown = server.show(id).await;
        assert_eq!((&shown["status"], &shown["updated_at"]), (&json!("COMPLETED"), &json!("2025-12-24T10:31:15Z")));
        assert_eq!(
            without_ids(&shown["logs"]),
            [
                json!({
                    "event_id": id,
                    "worker_id": "worker-02:8742",
                    "action": "PICKED",
                    "created_at": "2025-12-24T10:30:45Z"
                }),
                json!({
                    "event_id": id,
                    "worker_id": "worker-02:8742",
                    "action": "COMPLETED",
                    "status_code": 200,
                    "execution_time_ms": 1250,
                    "created_at": "2025-12-24T10:31:15Z"
                }),
            ]
        );
        for query in ["", "?include_logs=false"] {
            assert_eq!(server.get(&format!("/events/{id}{query}")).await.expect(200).get("logs"), None);
        }
    }

    // H7
    async fn unclaimed_event_has_an_empty_log(server) {
        let id = server.publish("a").await;
        let shown = server.get(&format!("/namespaces/default/events/{id}?include_logs=true")).await.expect(200);
        assert_eq!((&shown["status"], &shown["logs"]), (&json!("PENDING"), &json!([])));
    }

    // H9: the example of the API contract, from the first worker's failure to the second one's success.
    async fn log_shows_failure_and_later_success(server) {
        let (first, second) = ("worker-01:4211", "worker-02:8742");
        let id = server.publish("email,notification").await;
        server.advance_secs(5);
        server.subscribe("email", first).await.unwrap();
        server.advance_secs(1);
        server.post(&format!("/events/{id}/start"), &json!({ "worker_id": first })).await.expect(200);
        server.advance_secs(4);
        let report = json!({
            "worker_id": first, "status_code": 503, "execution_time_ms": 4000, "error_message": "Service Unavailable"
        });
        let failed = server.post(&format!("/events/{id}/fail"), &report).await.expect(200);
        assert_eq!(failed["next_retry_at"], "2025-12-24T10:35:10Z");
        assert_eq!(server.subscribe("email", second).await, None);
        server.advance_secs(300);
        server.subscribe("email", second).await.unwrap();
        server.post(&format!("/events/{id}/start"), &json!({ "worker_id": second })).await.expect(200);
        server.advance_secs(2);
        server.complete(id, second).await.expect(200);

        let shown = server.show(id).await;
        assert_eq!((&shown["status"], &shown["retry_count"], &shown["attempts"]), (&json!("COMPLETED"), &json!(1), &json!(2)));
        assert_eq!(shown["next_retry_at"], Value::Null);
        let at = |time: &str| format!("2025-12-24T{time}Z");
        assert_eq!(
            without_ids(&shown["logs"]),
            [
                json!({ "event_id": id, "worker_id": first, "action": "PICKED", "created_at": at("10:30:05") }),
                json!({ "event_id": id, "worker_id": first, "action": "STARTED", "created_at": at("10:30:06") }),
                json!({
                    "event_id": id, "worker_id": first, "action": "FAILED", "status_code": 503,
                    "error_message": "Service Unavailable", "execution_time_ms": 4000, "created_at": at("10:30:10")
                }),
                json!({ "event_id": id, "worker_id": second, "action": "PICKED", "created_at": at("10:35:10") }),
                json!({ "event_id": id, "worker_id": second, "action": "STARTED", "created_at": at("10:35:10") }),
                json!({
                    "event_id": id, "worker_id": second, "action": "COMPLETED", "status_code": 200,
                    "execution_time_ms": 1250, "created_at": at("10:35:12")
                }),
            ]
        );
    }
}
