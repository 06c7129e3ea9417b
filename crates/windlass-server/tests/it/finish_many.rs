//! `POST /events/finish`.

use serde_json::{Value, json};

on_each_database! {
    async fn each_report_has_its_own_result(server) {
        let good = server.publish_claimed("a").await;
        let failing = server.publish_claimed("b").await;
        let last = server.publish_as(json!({ "title": "t", "tags": "c", "max_retries": 1 })).await;
        server.subscribe("c", "w:1").await.unwrap();
        let waiting = server.publish("d").await;
        let request = json!({ "worker_id": "w:1", "items": [
            { "event_id": good, "outcome": "complete", "status_code": 200, "execution_time_ms": 7 },
            { "event_id": failing, "outcome": "fail", "error_message": "no", "retry_after_ms": 1000, "detail": {} },
            { "event_id": last, "outcome": "fail" },
            { "event_id": waiting, "outcome": "complete" },
            { "event_id": 4711, "outcome": "complete" },
            { "event_id": good, "outcome": "complete", "lease": "x" },
            { "event_id": good, "outcome": "complete", "delay_ms": 1 },
            { "event_id": failing, "outcome": "snooze" },
        ] });
        let results = server.post("/events/finish", &request).await.expect(200)["results"].clone();
        let results = results.as_array().unwrap();
        let summary = |result: &Value| {
            let said = [&result["report"]["action"], &result["failure"]["code"], &result["failure"]["field"]];
            let said: Vec<&str> = said.into_iter().filter_map(Value::as_str).collect();
            (result["event_id"].as_i64().unwrap(), result["status"].as_i64().unwrap(), said.join(" "))
        };
        assert_eq!(
            results.iter().map(summary).collect::<Vec<_>>(),
            [
                (good, 200, "COMPLETED".to_owned()),
                (failing, 200, "FAILED".into()),
                (last, 400, "max_retries_exceeded".into()),
                (waiting, 409, "lost".into()),
                (4711, 404, "event_not_found".into()),
                (good, 400, "invalid lease".into()),
                (good, 400, "invalid delay_ms".into()),
                (failing, 400, "invalid delay_ms".into()),
            ]
        );
        assert_eq!(results[0]["report"]["execution_time_ms"], 7);
        assert_eq!(results[1]["report"]["next_retry_at"], "2025-12-24T10:30:01Z");
        assert_eq!((&results[2]["failure"]["retry_count"], &results[2]["failure"]["max_retries"]), (&json!(1), &json!(1)));
        for (id, status) in [(good, "COMPLETED"), (failing, "PENDING"), (last, "FAILED"), (waiting, "PENDING")] {
            assert_eq!(server.status(id).await, status);
        }
    }

    async fn batch_accepts_every_outcome(server) {
        for tag in ["complete", "fail", "release", "snooze"] {
            let id = server.publish_claimed(tag).await;
            let mut item = json!({ "event_id": id, "outcome": tag });
            if tag == "snooze" {
                item["delay_ms"] = json!(60_000);
            }
            let request = json!({ "worker_id": "w:1", "items": [item] });
            assert_eq!(server.post("/events/finish", &request).await.expect(200)["results"][0]["status"], 200, "{tag}");
            let expected = ["COMPLETED", "FAILED", "RELEASED", "SNOOZED"];
            assert!(expected.contains(&server.actions(id).await[1].as_str()), "{tag}");
        }
    }

    async fn repeated_batch_returns_the_recorded_reports(server) {
        let id = server.publish_claimed("a").await;
        let request = json!({ "worker_id": "w:1", "items": [{ "event_id": id, "outcome": "complete" }] });
        let first = server.post("/events/finish", &request).await.expect(200);
        server.advance_secs(60);
        assert_eq!(server.post("/events/finish", &request).await.expect(200), first);
    }

    async fn duplicate_event_in_a_batch_is_finished_once(server) {
        let id = server.publish_claimed("a").await;
        let item = json!({ "event_id": id, "outcome": "fail" });
        let request = json!({ "worker_id": "w:1", "items": [item, item] });
        let results = server.post("/events/finish", &request).await.expect(200)["results"].clone();
        assert_eq!(results[0], results[1]);
        assert_eq!(server.show(id).await["retry_count"], 1);
    }

    async fn worker_of_an_item_overrides_the_batch(server) {
        let id = server.publish_claimed("a").await;
        let item = |worker: Value| json!({ "worker_id": "w:9", "items": [
            { "event_id": id, "outcome": "complete", "worker_id": worker }
        ] });
        let lost = server.post("/events/finish", &item(Value::Null)).await.expect(200);
        assert_eq!(lost["results"][0]["status"], 409);
        let done = server.post("/events/finish", &item(json!("w:1"))).await.expect(200);
        assert_eq!(done["results"][0]["status"], 200);
    }

    async fn subscription_of_an_item_overrides_the_batch(server) {
        server.post("/subscriptions", &json!({ "subscription": "audit" })).await.expect(201);
        let id = server.publish_claimed("a").await;
        server.claim(&json!({ "worker_id": "w:1", "subscription": "audit" })).await;
        let request = json!({ "worker_id": "w:1", "subscription": "audit", "items": [
            { "event_id": id, "outcome": "complete" }, { "event_id": id, "outcome": "fail", "subscription": "main" }
        ] });
        server.post("/events/finish", &request).await.expect(200);
        let deliveries = server.show(id).await["deliveries"].clone();
        assert_eq!((&deliveries[0]["status"], &deliveries[1]["status"]), (&json!("COMPLETED"), &json!("PENDING")));
    }

    async fn malformed_batch_is_refused_as_a_whole(server) {
        let id = server.publish_claimed("a").await;
        let good = json!({ "event_id": id, "outcome": "complete", "worker_id": "w:1" });
        let cases = [
            (json!({ "event_id": id, "outcome": "explode" }), "items[1].outcome: unknown variant `explode`"),
            (json!({ "event_id": "x", "outcome": "complete" }), "items[1].event_id: invalid type"),
            (json!({ "outcome": "complete" }), "items[1]: missing field `event_id`"),
            (json!({ "event_id": id, "outcome": "complete", "worker": "w" }), "items[1].worker: unknown field"),
        ];
        for (bad, expected) in cases {
            let error = server.post("/events/finish", &json!({ "items": [good, bad] })).await.error(400, "invalid");
            assert!(error.contains(expected), "{error}");
        }
        let items = vec![good; 10_001];
        let error = server.post("/events/finish", &json!({ "items": items })).await.error(400, "invalid");
        assert!(error.contains("items: has more than 10000 items, which is the limit"), "{error}");
        assert_eq!(server.status(id).await, "PROCESSING");
    }

    async fn empty_batch_is_accepted(server) {
        let none = server.post("/events/finish", &json!({ "items": [] })).await.expect(200);
        assert_eq!(none, json!({ "results": [] }));
    }
}
