//! `GET /events/{id}`.

use serde_json::{Value, json};

/// A log without the ids of its entries, which must grow.
fn without_ids(logs: &Value) -> Vec<Value> {
    let mut entries = logs.as_array().unwrap().clone();
    let ids: Vec<i64> = entries.iter().map(|entry| entry["id"].as_i64().unwrap()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    entries.iter_mut().for_each(|entry| drop(entry.as_object_mut().unwrap().remove("id")));
    entries
}

on_each_database! {
    // H7
    async fn the_whole_trail_is_shown_when_asked_for(server) {
        let id = server.publish("a").await;
        server.advance_secs(45);
        server.subscribe("a", "worker-02:8742").await.unwrap();
        server.advance_secs(30);
        server.complete(id, "worker-02:8742").await.expect(200);

        let shown = server.get(&format!("/events/{id}?include_logs=true")).await.expect(200);
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
    async fn an_event_nobody_has_taken_has_an_empty_log(server) {
        let id = server.publish("a").await;
        let shown = server.get(&format!("/namespaces/default/events/{id}?include_logs=true")).await.expect(200);
        assert_eq!((&shown["status"], &shown["logs"]), (&json!("PENDING"), &json!([])));
    }

    // H7
    async fn an_unknown_event_is_404(server) {
        let error = server.get("/events/4711").await.error(404, "event_not_found");
        assert_eq!(error, "event 4711 does not exist in namespace 'default'");
        assert_eq!(server.get("/events/first").await.error(400, "invalid"), "id: 'first' is not the number of an event");
        server.get("/events/1?include_logs=maybe").await.error(400, "invalid");
    }
}
