//! `/namespaces`, `/pause` and `/resume`.

use serde_json::{Value, json};

use crate::harness::Server;

async fn policy(server: &Server, namespace: &str) -> Value {
    server.get(&format!("/namespaces/{namespace}")).await.expect(200)["policy"].clone()
}

on_each_database! {
    async fn namespace_is_created_and_changed(server) {
        let created = server.put("/namespaces/orders", &json!({ "metadata": { "team": "x" } })).await.expect(201);
        let expected = json!({
            "namespace": "orders", "metadata": { "team": "x" }, "paused": false, "paused_types": [],
            "created_at": "2025-12-24T10:30:00Z",
            "policy": {
                "lease_ms": 60_000, "max_retries": 3, "backoff": { "kind": "fixed", "delay_ms": 300_000 },
                "exhausted": "dead_letter", "unrecoverable": "retry_others", "unhandled": "retry", "max_attempts": 20, "history": "keep",
                "group_failure": "block", "share_transaction": false, "handler_results": "with_outcome",
                "deadline_horizon_ms": null, "key_window_ms": 86_400_000, "expires_after_ms": null,
                "keep_completed_ms": 15_811_200_000_u64, "keep_failed_ms": null, "keep_expired_ms": null,
                "archive": false, "types": {}
            }
        });
        assert_eq!(created, expected);
        server.advance_secs(60);
        let changed = server.put("/namespaces/orders", &json!({ "policy": { "lease_ms": 5000 } })).await.expect(200);
        assert_eq!((&changed["policy"]["lease_ms"], &changed["metadata"]), (&json!(5000), &json!({ "team": "x" })));
        assert_eq!(changed["created_at"], expected["created_at"]);
        let changed = server.put("/namespaces/orders", &json!({ "metadata": {} })).await.expect(200);
        assert_eq!((&changed["policy"]["lease_ms"], &changed["metadata"]), (&json!(5000), &json!({})));
        assert_eq!(server.get("/namespaces/orders").await.expect(200), changed);
    }

    async fn namespaces_are_listed_by_name(server) {
        server.put_namespace("orders").await;
        server.put_namespace("billing").await;
        let list = server.get("/namespaces").await.expect(200)["namespaces"].clone();
        let names: Vec<_> = list.as_array().unwrap().iter().map(|namespace| &namespace["namespace"]).collect();
        assert_eq!(names, ["billing", "default", "orders"]);
        assert_eq!(list[2], server.get("/namespaces/orders").await.expect(200));
    }

    async fn unknown_or_invalid_namespace_is_refused(server) {
        server.get("/namespaces/nowhere").await.error(404, "namespace_not_found");
        for name in ["a%20b", "-a", "%C3%A4", "a%2Fb", "%00", &"x".repeat(64)] {
            assert_eq!(server.put(&format!("/namespaces/{name}"), &json!({})).await.bad_field(), "namespace");
            assert_eq!(server.get(&format!("/namespaces/{name}/events")).await.bad_field(), "namespace");
        }
        server.get("/namespaces/%FF/events").await.error(400, "invalid");
    }

    async fn preset_settings_can_be_overridden(server) {
        let request = json!({ "policy": {
            "preset": "bus", "lease_ms": 7000, "max_retries": 2, "backoff": { "kind": "lease" },
            "exhausted": "complete_with_errors", "unrecoverable": "finish", "unhandled": "dead_letter",
            "max_attempts": 5, "history": "none",
            "group_failure": "continue", "share_transaction": true, "handler_results": "immediately",
            "deadline_horizon_ms": 1, "key_window_ms": 2, "expires_after_ms": 3,
            "keep_completed_ms": null, "keep_failed_ms": 60_000, "keep_expired_ms": 60_001, "archive": true
        } });
        server.put("/namespaces/n", &request).await.expect(201);
        let mut expected = request["policy"].clone();
        expected.as_object_mut().unwrap().remove("preset");
        expected["types"] = json!({});
        assert_eq!(policy(server, "n").await, expected);
        server.put("/namespaces/n", &json!({ "policy": { "preset": "bus" } })).await.expect(200);
        let bus = policy(server, "n").await;
        assert_eq!((&bus["lease_ms"], &bus["max_retries"], &bus["history"]), (&json!(300_000), &json!(0), &json!("keep")));
    }

    async fn every_preset_is_accepted(server) {
        for preset in windlass::PRESETS {
            let request = json!({ "policy": { "preset": preset } });
            let put = server.put(&format!("/namespaces/{preset}"), &request).await;
            put.expect(if preset == "default" { 200 } else { 201 });
        }
        assert_eq!(policy(server, "queue").await["max_retries"], Value::Null);
    }

    async fn retry_limit_can_be_removed(server) {
        server.put("/namespaces/n", &json!({ "policy": { "max_retries": null } })).await.expect(201);
        assert_eq!(policy(server, "n").await["max_retries"], Value::Null);
        let stored = server.post("/namespaces/n/events", &json!({ "title": "t" })).await.expect(201);
        assert_eq!(stored["max_retries"], Value::Null);
        server.put("/namespaces/n", &json!({ "policy": {} })).await.expect(200);
        assert_eq!(policy(server, "n").await["max_retries"], 3);
    }

    async fn policy_can_be_overridden_by_type(server) {
        let request = json!({ "policy": { "types": {
            "order.*": { "max_retries": 1, "lease_ms": 1000 }, "order.paid": { "max_retries": null }
        } } });
        server.put("/namespaces/n", &request).await.expect(201);
        assert_eq!(policy(server, "n").await["types"], request["policy"]["types"]);
        for (event_type, max_retries) in [("order.sent", json!(1)), ("order.paid", Value::Null), ("user", json!(3))] {
            let stored = server.post("/namespaces/n/events", &json!({ "type": event_type })).await.expect(201);
            assert_eq!(stored["max_retries"], max_retries, "{event_type}");
        }
    }

    async fn invalid_settings_are_named(server) {
        for (policy, field) in [
            (json!({ "preset": "best" }), "preset"),
            (json!({ "lease_ms": 0 }), "lease_ms"),
            (json!({ "lease_ms": 604_800_001 }), "lease_ms"),
            (json!({ "max_retries": 10_001 }), "max_retries"),
            (json!({ "max_attempts": 0 }), "max_attempts"),
            (json!({ "key_window_ms": u64::MAX }), "key_window_ms"),
            (json!({ "keep_completed_ms": 59_999 }), "keep_completed_ms"),
            (json!({ "keep_failed_ms": u64::MAX }), "keep_failed_ms"),
            (json!({ "types": { "a": { "keep_expired_ms": 0 } } }), "keep_expired_ms"),
            (json!({ "types": { "a*b": {} } }), "types"),
            (json!({ "types": { "a": { "lease_ms": 0 } } }), "lease_ms"),
        ] {
            assert_eq!(server.put("/namespaces/n", &json!({ "policy": policy })).await.bad_field(), field, "{policy}");
        }
        for (request, expected) in [
            (json!({ "policy": { "backoff": { "kind": "often" } } }), "policy.backoff"),
            (json!({ "policy": { "exhausted": "never" } }), "policy.exhausted: unknown variant `never`"),
            (json!({ "policy": { "leas_ms": 1 } }), "policy.leas_ms: unknown field `leas_ms`"),
            (json!({ "policy": { "types": { "a": { "x": 1 } } } }), "policy.types.a.x: unknown field `x`"),
            (json!({ "metadata": [] }), "metadata: must be a JSON object"),
            (json!({ "polcy": {} }), "polcy: unknown field"),
        ] {
            let error = server.put("/namespaces/n", &request).await.error(400, "invalid");
            assert!(error.contains(expected), "{error}");
        }
        server.get("/namespaces/n").await.error(404, "namespace_not_found");
    }

    async fn namespaces_are_isolated(server) {
        server.put_namespace("orders").await;
        let id = server.publish_claimed("a").await;
        let at = |path: &str| format!("/namespaces/orders{path}");
        let report = json!({ "worker_id": "w:1" });
        for verb in ["complete", "fail", "release", "start", "heartbeat"] {
            server.post(&at(&format!("/events/{id}/{verb}")), &report).await.error(404, "event_not_found");
        }
        for verb in ["reset", "cancel"] {
            server.act(&at(&format!("/events/{id}/{verb}"))).await.error(404, "event_not_found");
        }
        let key = json!({ "title": "t", "key": "k" });
        let (here, there) = (server.post("/events", &key).await.expect(201), server.post(&at("/events"), &key).await);
        assert_ne!(here["id"], there.expect(201)["id"]);
        server.act(&at("/pause")).await.expect(200);
        assert!(server.subscribe("a", "w:1").await.is_none());
        assert_eq!(server.claim(&json!({ "worker_id": "w" })).await.len(), 1);
    }

    async fn paused_namespace_delivers_nothing(server) {
        let held = server.publish_claimed("a").await;
        let paused = server.act("/pause").await.expect(200);
        assert_eq!((&paused["namespace"], &paused["paused"]), (&json!("default"), &json!(true)));
        let id = server.publish("a").await;
        assert_eq!(server.subscribe("a", "w:2").await, None);
        assert_eq!(server.get("/stats").await.expect(200)["paused"], true);
        server.complete(held, "w:1").await.expect(200);
        assert_eq!(server.act("/resume").await.expect(200)["paused"], false);
        assert_eq!(server.subscribe("a", "w:2").await.unwrap()["id"], id);
    }

    async fn paused_type_is_not_delivered(server) {
        assert_eq!(server.act("/pause?type=order.*").await.expect(200)["paused_types"], json!(["order.*"]));
        let order = server.publish_as(json!({ "type": "order.paid" })).await;
        let user = server.publish_as(json!({ "type": "user" })).await;
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w", "max": 9 })).await, [user]);
        assert_eq!(server.act("/resume?type=order.*").await.expect(200)["paused_types"], json!([]));
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w", "max": 9 })).await, [order]);
        assert_eq!(server.act("/pause?type=a*b").await.bad_field(), "type");
        assert_eq!(server.act("/pause?type=").await.bad_field(), "type");
        server.act("/pause?tpye=a").await.error(400, "invalid");
        server.act("/namespaces/nowhere/pause").await.error(404, "namespace_not_found");
    }

    async fn resuming_without_a_pause_changes_nothing(server) {
        server.act("/resume?type=a%00b").await.error(400, "invalid");
        for path in ["/resume", "/resume?type=order.*"] {
            let resumed = server.act(path).await.expect(200);
            assert_eq!((&resumed["paused"], &resumed["paused_types"]), (&json!(false), &json!([])), "{path}");
        }
    }
}
