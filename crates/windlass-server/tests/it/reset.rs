//! `POST /events/{id}/reset`.

use serde_json::json;

on_each_database! {
    // H12
    async fn held_event_becomes_pending_after_reset(server) {
        let id = server.publish_claimed("a").await;
        server.advance_secs(5);
        let reset = server.act(&format!("/events/{id}/reset?reason=worker_timeout")).await.expect(200);
        assert_eq!((&reset["id"], &reset["status"], &reset["retry_count"]), (&json!(id), &json!("PENDING"), &json!(0)));
        let entry = server.show(id).await["logs"][1].clone();
        assert_eq!((&entry["action"], &entry["error_message"]), (&json!("RESET"), &json!("worker_timeout")));
        assert_eq!(entry["created_at"], "2025-12-24T10:30:05Z");
        server.complete(id, "w:1").await.error(409, "lost");
        assert_eq!(server.subscribe("a", "w:2").await.unwrap()["id"], id);
    }

    // H12
    async fn reset_without_a_reason_is_manual(server) {
        let id = server.publish_claimed("a").await;
        server.act(&format!("/events/{id}/reset")).await.expect(200);
        assert_eq!(server.show(id).await["logs"][1]["error_message"], "manual");
    }

    // H12
    async fn reset_redrives_a_failed_event(server) {
        let id = server.publish_dead("t").await;
        let reset = server.act(&format!("/events/{id}/reset")).await.expect(200);
        assert_eq!((&reset["status"], &reset["retry_count"]), (&json!("PENDING"), &json!(0)));
        assert_eq!(server.actions(id).await, ["PICKED", "FAILED", "REDRIVEN"]);
        server.get(&format!("/dead-letters/{id}")).await.error(404, "dead_letter_not_found");
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w" })).await, [id]);
    }

    // H12
    async fn pending_or_completed_event_cannot_be_reset(server) {
        let waiting = server.publish("b").await;
        let done = server.publish_claimed("a").await;
        server.complete(done, "w:1").await.expect(200);
        for (id, status) in [(waiting, "PENDING"), (done, "COMPLETED")] {
            let error = server.act(&format!("/events/{id}/reset")).await.error(409, "wrong_status");
            let allowed = "it can be reset only while PROCESSING, FAILED or EXPIRED";
            assert_eq!(error, format!("event {id} is {status}; {allowed}"));
        }
        server.act("/events/4711/reset").await.error(404, "event_not_found");
    }

    async fn reset_affects_only_its_subscription(server) {
        server.post("/subscriptions", &json!({ "subscription": "audit" })).await.expect(201);
        let id = server.publish_claimed("a").await;
        server.claim(&json!({ "worker_id": "w:1", "subscription": "audit" })).await;
        let reset = server.act(&format!("/events/{id}/reset?subscription=audit")).await.expect(200);
        assert_eq!(reset["status"], "PENDING");
        assert_eq!(server.status(id).await, "PROCESSING");
        let error = server.act(&format!("/events/{id}/reset?subscription=nobody")).await;
        error.error(404, "subscription_not_found");
    }

    async fn invalid_reset_reason_is_refused(server) {
        let id = server.publish_claimed("a").await;
        for reason in ["", "a%0Ab"] {
            assert_eq!(server.act(&format!("/events/{id}/reset?reason={reason}")).await.bad_field(), "reason");
        }
        assert_eq!(server.status(id).await, "PROCESSING");
    }
}
