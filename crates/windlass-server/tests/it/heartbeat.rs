//! `POST /events/{id}/start`, `heartbeat`, `release` and `snooze`.

use serde_json::json;

on_each_database! {
    // H9
    async fn start_is_recorded(server) {
        let id = server.publish_claimed("a").await;
        server.advance_secs(2);
        let started = server.post(&format!("/events/{id}/start"), &json!({ "worker_id": "w:1" })).await.expect(200);
        let expected = json!({
            "event_id": id, "worker_id": "w:1", "action": "STARTED", "created_at": "2025-12-24T10:30:02Z"
        });
        assert_eq!(started, expected);
        assert_eq!(server.actions(id).await, ["PICKED", "STARTED"]);
        assert_eq!(server.status(id).await, "PROCESSING");
    }

    async fn heartbeat_extends_the_lease(server) {
        let id = server.publish_claimed("a").await;
        let path = format!("/events/{id}/heartbeat");
        server.advance_secs(50);
        let held = server.post(&path, &json!({ "worker_id": "w:1" })).await.expect(200);
        assert_eq!(held, json!({ "event_id": id, "lease_expires_at": "2025-12-24T10:31:50Z" }));
        server.advance_secs(59);
        assert_eq!(server.subscribe("a", "w:2").await, None);
        let held = server.post(&path, &json!({ "worker_id": "w:1", "lease_ms": 600_000 })).await.expect(200);
        assert_eq!(held["lease_expires_at"], "2025-12-24T10:41:49Z");
        server.advance_secs(601);
        assert_eq!(server.subscribe("a", "w:2").await.unwrap()["id"], id);
        server.post(&path, &json!({ "worker_id": "w:1" })).await.error(409, "lost");
    }

    async fn heartbeat_lease_duration_is_limited(server) {
        let id = server.publish_claimed("a").await;
        for lease_ms in [0, 604_800_001] {
            let heartbeat = json!({ "worker_id": "w:1", "lease_ms": lease_ms });
            assert_eq!(server.post(&format!("/events/{id}/heartbeat"), &heartbeat).await.bad_field(), "lease_ms");
        }
    }

    async fn released_event_is_redelivered_immediately(server) {
        let id = server.publish_claimed("a").await;
        let released = server.post(&format!("/events/{id}/release"), &json!({ "worker_id": "w:1" })).await.expect(200);
        assert_eq!((&released["action"], released.get("retry_scheduled")), (&json!("RELEASED"), None));
        assert_eq!(server.subscribe("a", "w:2").await.unwrap()["id"], id);
        let shown = server.show(id).await;
        assert_eq!((&shown["retry_count"], &shown["status"]), (&json!(0), &json!("PROCESSING")));
        assert_eq!(server.actions(id).await, ["PICKED", "RELEASED", "PICKED"]);
    }

    async fn snoozed_event_is_redelivered_later(server) {
        let id = server.publish_claimed("a").await;
        let path = format!("/events/{id}/snooze");
        let error = server.post(&path, &json!({ "worker_id": "w:1" })).await.error(400, "invalid");
        assert!(error.contains("missing field `delay_ms`"), "{error}");
        let snooze = json!({ "worker_id": "w:1", "delay_ms": 60_000 });
        let snoozed = server.post(&path, &snooze).await.expect(200);
        assert_eq!(snoozed["action"], "SNOOZED");
        assert_eq!(snoozed["next_retry_at"], "2025-12-24T10:31:00Z");
        assert_eq!(server.post(&path, &snooze).await.expect(200), snoozed);
        assert_eq!(server.subscribe("a", "w:2").await, None);
        server.advance_secs(60);
        assert_eq!(server.subscribe("a", "w:2").await.unwrap()["retry_count"], 0);
    }

    // H11
    async fn signals_of_another_worker_are_refused(server) {
        let id = server.publish_claimed("a").await;
        let before = server.show(id).await;
        for verb in ["start", "heartbeat", "release", "snooze"] {
            let mut request = json!({ "worker_id": "w:2" });
            if verb == "snooze" {
                request["delay_ms"] = json!(1);
            }
            server.post(&format!("/events/{id}/{verb}"), &request).await.error(409, "lost");
            server.post(&format!("/events/4711/{verb}"), &request).await.error(404, "event_not_found");
            request.as_object_mut().unwrap().remove("worker_id");
            assert_eq!(server.post(&format!("/events/{id}/{verb}"), &request).await.bad_field(), "worker_id");
        }
        assert_eq!(server.show(id).await, before);
    }

    async fn lease_identifies_the_holder_without_worker(server) {
        let id = server.publish("a").await;
        let lease = server.subscribe("a", "w:1").await.unwrap()["lease"].clone();
        let request = json!({ "lease": lease });
        let started = server.post(&format!("/events/{id}/start"), &request).await.expect(200);
        assert_eq!(started.get("worker_id"), None);
        server.post(&format!("/events/{id}/heartbeat"), &request).await.expect(200);
        let released = server.post(&format!("/events/{id}/release"), &request).await.expect(200);
        assert_eq!(released["worker_id"], "w:1");
    }
}
