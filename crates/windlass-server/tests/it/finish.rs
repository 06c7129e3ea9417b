//! `POST /events/{id}/complete` and `fail`.

use serde_json::{Value, json};

use crate::harness::Server;

/// Fails the event until its retries are exhausted, and returns the last response.
async fn exhaust_retries(server: &Server, id: i64) -> Value {
    for _ in 0..2 {
        assert_eq!(server.subscribe("a", "w:1").await.unwrap()["id"], id);
        server.fail(id, "w:1").await.expect(200);
        server.advance_secs(300);
    }
    server.subscribe("a", "w:1").await.unwrap();
    server.fail(id, "w:1").await.expect(400)
}

on_each_database! {
    // H3
    async fn completion_response_is_as_documented(server) {
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
        let shown = server.show(id).await;
        assert_eq!((&shown["status"], &shown["updated_at"]), (&json!("COMPLETED"), &json!("2025-12-24T10:30:15Z")));
    }

    // H4
    async fn failure_response_is_as_documented_and_event_retried(server) {
        let id = server.publish_claimed("a").await;
        server.advance_secs(15);
        let expected = json!({
            "event_id": id,
            "worker_id": "w:1",
            "action": "FAILED",
            "status_code": 500,
            "error_message": "Connection timeout",
            "execution_time_ms": 5000,
            "retry_scheduled": true,
            "next_retry_at": "2025-12-24T10:35:15Z",
            "created_at": "2025-12-24T10:30:15Z"
        });
        assert_eq!(server.fail(id, "w:1").await.expect(200), expected);
        let shown = server.show(id).await;
        assert_eq!((&shown["status"], &shown["retry_count"]), (&json!("PENDING"), &json!(1)));
        assert_eq!(shown["next_retry_at"], "2025-12-24T10:35:15Z");
        assert_eq!(shown["error_message"], "Connection timeout");
        server.advance_secs(300);
        assert_eq!(server.subscribe("a", "w:2").await.unwrap()["retry_count"], 1);
    }

    // H5
    async fn last_failure_is_stored_and_returned_as_an_error(server) {
        let id = server.publish("a").await;
        let expected = json!({
            "error": "Max retries exceeded", "code": "max_retries_exceeded", "retry_count": 3, "max_retries": 3
        });
        assert_eq!(exhaust_retries(server, id).await, expected);
        let shown = server.show(id).await;
        assert_eq!((&shown["status"], &shown["retry_count"]), (&json!("FAILED"), &json!(3)));
        assert_eq!(shown["next_retry_at"], Value::Null);
        assert_eq!(server.actions(id).await, ["PICKED", "FAILED"].repeat(3));
        let letter = server.get(&format!("/dead-letters/{id}")).await.expect(200);
        assert_eq!((&letter["reason"], &letter["retry_count"]), (&json!("Max retries exceeded"), &json!(3)));
    }

    // H5
    async fn repeated_last_failure_returns_the_recorded_report(server) {
        let id = server.publish("a").await;
        exhaust_retries(server, id).await;
        let before = server.show(id).await;
        server.advance_secs(60);
        let again = server.fail(id, "w:1").await.expect(200);
        assert_eq!((&again["retry_scheduled"], again.get("next_retry_at")), (&json!(false), None));
        assert_eq!(again["created_at"], "2025-12-24T10:40:00Z");
        assert_eq!(server.show(id).await, before);
        assert_eq!(server.get("/dead-letters").await.expect(200)["total"], 1);
    }

    async fn report_detail_is_stored_and_shown(server) {
        let id = server.publish_claimed("a").await;
        let detail = json!({ "exit_code": 1, "stderr": "ü\n\u{0}" });
        let report = json!({ "worker_id": "w:1", "retry_after_ms": 0, "detail": detail });
        server.post(&format!("/events/{id}/fail"), &report).await.expect(200);
        server.subscribe("a", "w:1").await.unwrap();
        server.post(&format!("/events/{id}/complete"), &json!({ "worker_id": "w:1", "detail": [1] })).await.expect(200);
        let logs = server.show(id).await["logs"].clone();
        let details: Vec<_> = logs.as_array().unwrap().iter().map(|entry| entry.get("detail")).collect();
        assert_eq!(details, [None, Some(&detail), None, Some(&json!([1]))]);
    }

    async fn oversized_detail_is_refused(server) {
        let id = server.publish_claimed("a").await;
        let report = json!({ "worker_id": "w:1", "detail": "x".repeat(65_535) });
        let refused = server.post(&format!("/events/{id}/complete"), &report).await.expect(413);
        let error = "detail is 65537 bytes; the limit is 65536 bytes";
        assert_eq!(refused, json!({ "error": error, "code": "too_large", "field": "detail" }));
        assert_eq!(server.actions(id).await, ["PICKED"]);
        let report = json!({ "worker_id": "w:1", "detail": "x".repeat(65_534) });
        server.post(&format!("/events/{id}/complete"), &report).await.expect(200);
    }

    // H10
    async fn repeated_completion_returns_the_recorded_report(server) {
        let id = server.publish_claimed("a").await;
        let first = server.complete(id, "w:1").await.expect(200);
        server.advance_secs(600);
        assert_eq!(server.complete(id, "w:1").await.expect(200), first);
        assert_eq!(server.actions(id).await, ["PICKED", "COMPLETED"]);
    }

    // H10
    async fn repeated_failure_counts_once(server) {
        let id = server.publish_claimed("a").await;
        let first = server.fail(id, "w:1").await.expect(200);
        server.advance_secs(10);
        assert_eq!(server.fail(id, "w:1").await.expect(200), first);
        assert_eq!(server.show(id).await["retry_count"], 1);
        assert_eq!(server.actions(id).await, ["PICKED", "FAILED"]);
    }

    // H10
    async fn failure_of_a_later_attempt_counts_again(server) {
        let id = server.publish_claimed("a").await;
        let first = server.fail(id, "w:1").await.expect(200);
        server.advance_secs(300);
        server.subscribe("a", "w:1").await.unwrap();
        let second = server.fail(id, "w:1").await.expect(200);
        assert_ne!(first["created_at"], second["created_at"]);
        assert_eq!(server.show(id).await["retry_count"], 2);
        assert_eq!(server.fail(id, "w:1").await.expect(200), second);
        assert_eq!(server.actions(id).await, ["PICKED", "FAILED", "PICKED", "FAILED"]);
    }

    // H10
    async fn different_report_after_completion_is_lost(server) {
        let id = server.publish_claimed("a").await;
        server.complete(id, "w:1").await.expect(200);
        server.fail(id, "w:1").await.error(409, "lost");
        assert_eq!(server.status(id).await, "COMPLETED");
    }

    // H10
    async fn recorded_report_survives_a_restart(server) {
        let id = server.publish_claimed("a").await;
        let first = server.fail(id, "w:1").await.expect(200);
        server.restart().await;
        assert_eq!(server.fail(id, "w:1").await.expect(200), first);
    }

    // H11
    async fn report_of_another_worker_changes_nothing(server) {
        let id = server.publish("a").await;
        let error = server.complete(id, "w:1").await.error(409, "lost");
        assert_eq!(error, format!("worker 'w:1' does not hold event {id}; nothing was changed"));

        server.subscribe("a", "w:1").await.unwrap();
        server.complete(id, "w:2").await.error(409, "lost");
        server.advance_secs(61);
        assert_eq!(server.subscribe("a", "w:2").await.unwrap()["id"], id);
        let before = server.show(id).await;
        server.complete(id, "w:1").await.error(409, "lost");
        server.fail(id, "w:1").await.error(409, "lost");
        assert_eq!(server.show(id).await, before);
        server.complete(id, "w:2").await.expect(200);
        server.complete(id, "w:1").await.error(409, "lost");
    }

    // H11
    async fn old_lease_of_the_same_worker_is_lost(server) {
        let id = server.publish("a").await;
        let old = server.subscribe("a", "w:1").await.unwrap()["lease"].clone();
        server.advance_secs(61);
        let new = server.subscribe("a", "w:1").await.unwrap()["lease"].clone();
        let before = server.show(id).await;
        for verb in ["complete", "fail", "release", "heartbeat", "start"] {
            let path = format!("/events/{id}/{verb}");
            let report = json!({ "worker_id": "w:1", "lease": old });
            let error = server.post(&path, &report).await.error(409, "lost");
            assert_eq!(error, format!("the lease on event {id} is not the current one; nothing was changed"));
        }
        assert_eq!(server.show(id).await, before);
        let done = server.post(&format!("/events/{id}/complete"), &json!({ "lease": new })).await.expect(200);
        assert_eq!(done["worker_id"], "w:1");
        server.post(&format!("/events/{id}/complete"), &json!({ "lease": new })).await.expect(200);
    }

    // H11
    async fn malformed_lease_is_refused(server) {
        let id = server.publish_claimed("a").await;
        for lease in ["", "x", "00c0ffee", "zzzzzzzzzzzzzzzz", "00c0ffee00c0ffee00"] {
            let report = json!({ "lease": lease });
            assert_eq!(server.post(&format!("/events/{id}/complete"), &report).await.bad_field(), "lease");
        }
    }

    async fn lost_report_escapes_the_worker_name(server) {
        let id = server.publish("a").await;
        let error = server.post(&format!("/events/{id}/fail"), &json!({ "worker_id": "it's me" })).await;
        assert!(error.error(409, "lost").starts_with("worker 'it\\'s me' does not hold"), "{error:?}");
    }

    async fn unknown_event_cannot_be_finished(server) {
        let error = server.complete(4711, "w:1").await.error(404, "event_not_found");
        assert_eq!(error, "event 4711 does not exist in namespace 'default'");
        server.fail(4711, "w:1").await.error(404, "event_not_found");
        server.complete(i64::MAX, "w:1").await.error(404, "event_not_found");
        server.complete(-1, "w:1").await.error(404, "event_not_found");
    }

    async fn report_requires_only_the_worker(server) {
        let id = server.publish_claimed("a").await;
        let path = format!("/events/{id}/complete");
        let response = server.post(&path, &json!({ "status_code": 200 })).await;
        let error = response.error(400, "invalid");
        assert_eq!(error, "worker_id: is required unless lease is given");
        let done = server.post(&path, &json!({ "worker_id": "w:1" })).await.expect(200);
        assert_eq!((&done["status_code"], &done["execution_time_ms"]), (&Value::Null, &Value::Null));
    }

    async fn completion_with_an_error_stores_it(server) {
        let id = server.publish_claimed("a").await;
        let report = json!({ "worker_id": "w:1", "error_message": "one address bounced" });
        let done = server.post(&format!("/events/{id}/complete"), &report).await.expect(200);
        assert_eq!(done["action"], "COMPLETED_WITH_ERRORS");
        assert_eq!(done["error_message"], "one address bounced");
        assert_eq!(server.status(id).await, "COMPLETED_WITH_ERRORS");
    }

    async fn failure_without_retry_is_dead_lettered(server) {
        let id = server.publish_claimed("a").await;
        let report = json!({ "worker_id": "w:1", "retry": false, "error_message": "no such user" });
        let failed = server.post(&format!("/events/{id}/fail"), &report).await.expect(200);
        assert_eq!((&failed["action"], &failed["retry_scheduled"]), (&json!("FAILED"), &json!(false)));
        assert_eq!(server.get(&format!("/dead-letters/{id}")).await.expect(200)["error"], "no such user");
    }

    async fn failure_sets_the_retry_delay(server) {
        let id = server.publish_claimed("a").await;
        let path = format!("/events/{id}/fail");
        let both = json!({ "worker_id": "w:1", "retry": false, "retry_after_ms": 1 });
        assert_eq!(server.post(&path, &both).await.bad_field(), "retry_after_ms");
        let report = json!({ "worker_id": "w:1", "retry": true, "retry_after_ms": 10_000 });
        let failed = server.post(&path, &report).await.expect(200);
        assert_eq!(failed["next_retry_at"], "2025-12-24T10:30:10Z");
        server.advance_secs(10);
        assert!(server.subscribe("a", "w:1").await.is_some());
    }

    async fn out_of_range_numbers_are_refused(server) {
        let id = server.publish_claimed("a").await;
        let cases = [
            (json!({ "worker_id": "w:1", "execution_time_ms": u64::MAX }), "execution_time_ms"),
            (json!({ "worker_id": "w:1", "status_code": 3_000_000_000u32 }), "status_code"),
            (json!({ "worker_id": "w:1", "retry_after_ms": u64::MAX }), "retry_after_ms"),
        ];
        for (report, field) in cases {
            let error = server.post(&format!("/events/{id}/fail"), &report).await.error(400, "invalid");
            assert!(error.contains(field), "{error}");
        }
        assert_eq!(server.status(id).await, "PROCESSING");
    }

    async fn any_error_message_is_stored(server) {
        let id = server.publish_claimed("a").await;
        let report = json!({ "worker_id": "w:1", "error_message": format!("a\0b{}", "é".repeat(40_000)) });
        server.post(&format!("/events/{id}/fail"), &report).await.expect(200);
        let message = server.show(id).await["error_message"].as_str().unwrap().to_owned();
        assert!(message.starts_with("a\u{fffd}bé") && message.len() <= 66_000, "{}", message.len());
    }

    async fn finish_is_limited_to_its_namespace(server) {
        server.put_namespace("orders").await;
        let id = server.publish_claimed("a").await;
        let report = json!({ "worker_id": "w:1" });
        server.post(&format!("/namespaces/orders/events/{id}/complete"), &report).await.error(404, "event_not_found");
        server.post(&format!("/namespaces/default/events/{id}/complete"), &report).await.expect(200);
    }
}
