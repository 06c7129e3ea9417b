//! `POST /events/{id}/complete`.

use serde_json::{Value, json};

on_each_database! {
    // H3
    async fn a_completed_event_is_answered_as_documented(server) {
        let id = server.publish("email").await;
        server.subscribe("email", "worker-02:8742").await.unwrap();
        server.advance_secs(15);
        let expected = json!({
            "event_id": id,
            "worker_id": "worker-02:8742",
            "action": "COMPLETED",
            "status_code": 200,
            "execution_time_ms": 1250,
            "created_at": "2025-12-24T10:30:15Z"
        });
        assert_eq!(server.complete(id, "worker-02:8742").await.expect(200), expected);
        let shown = server.get(&format!("/events/{id}")).await.expect(200);
        assert_eq!((&shown["status"], &shown["updated_at"]), (&json!("COMPLETED"), &json!("2025-12-24T10:30:15Z")));
    }

    // H10
    async fn a_repeated_completion_answers_with_the_recorded_one(server) {
        let id = server.publish("a").await;
        server.subscribe("a", "w:1").await.unwrap();
        let first = server.complete(id, "w:1").await.expect(200);
        server.advance_secs(600);
        assert_eq!(server.complete(id, "w:1").await.expect(200), first);
        let shown = server.get(&format!("/events/{id}?include_logs=true")).await.expect(200);
        assert_eq!(shown["logs"].as_array().unwrap().len(), 2);
    }

    // H11
    async fn a_worker_that_does_not_hold_the_event_changes_nothing(server) {
        let id = server.publish("a").await;
        let error = server.complete(id, "w:1").await.error(409, "lost");
        assert_eq!(error, format!("worker 'w:1' does not hold event {id}; nothing was changed"));

        server.subscribe("a", "w:1").await.unwrap();
        server.complete(id, "w:2").await.error(409, "lost");
        server.advance_secs(61);
        assert_eq!(server.subscribe("a", "w:2").await.unwrap()["id"], id);
        let before = server.get(&format!("/events/{id}?include_logs=true")).await.expect(200);
        server.complete(id, "w:1").await.error(409, "lost");
        assert_eq!(server.get(&format!("/events/{id}?include_logs=true")).await.expect(200), before);
        server.complete(id, "w:2").await.expect(200);
        server.complete(id, "w:1").await.error(409, "lost");
    }

    async fn an_unknown_event_cannot_be_completed(server) {
        let error = server.complete(4711, "w:1").await.error(404, "event_not_found");
        assert_eq!(error, "event 4711 does not exist in namespace 'default'");
    }

    async fn only_the_worker_is_required(server) {
        let id = server.publish("a").await;
        server.subscribe("a", "w:1").await.unwrap();
        let path = format!("/events/{id}/complete");
        let error = server.post(&path, &json!({ "status_code": 200 })).await.error(400, "invalid");
        assert!(error.contains("missing field `worker_id`"), "{error}");
        let done = server.post(&path, &json!({ "worker_id": "w:1" })).await.expect(200);
        assert_eq!((&done["status_code"], &done["execution_time_ms"]), (&Value::Null, &Value::Null));
    }

    async fn a_namespace_finishes_its_own_events_only(server) {
        server.queue.put_namespace("orders", None, None).await.unwrap();
        let id = server.publish("a").await;
        server.subscribe("a", "w:1").await.unwrap();
        let report = json!({ "worker_id": "w:1" });
        server.post(&format!("/namespaces/orders/events/{id}/complete"), &report).await.error(404, "event_not_found");
        server.post(&format!("/namespaces/default/events/{id}/complete"), &report).await.expect(200);
    }
}
