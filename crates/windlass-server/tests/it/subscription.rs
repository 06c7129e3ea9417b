//! `/subscriptions`.

use serde_json::{Value, json};

on_each_database! {
    async fn subscription_is_added_listed_and_shown(server) {
        let request = json!({
            "subscription": "audit", "types": ["order.*", "user"], "tags": "a, b",
            "policy": { "lease_ms": 1000, "max_retries": null }
        });
        let added = server.post("/subscriptions", &request).await.expect(201);
        let expected = json!({
            "subscription": "audit", "types": ["order.*", "user"], "tags": ["a", "b"],
            "policy": { "lease_ms": 1000, "max_retries": null }, "paused": false,
            "starts_at": "2025-12-24T10:30:00Z", "created_at": "2025-12-24T10:30:00Z"
        });
        assert_eq!(added, expected);
        assert_eq!(server.get("/subscriptions/audit").await.expect(200), expected);
        let list = server.get("/subscriptions").await.expect(200)["subscriptions"].clone();
        assert_eq!((list.as_array().unwrap().len(), &list[0]), (2, &expected));
        assert_eq!(list[1]["subscription"], "main");
        let error = server.post("/subscriptions", &request).await.error(409, "exists");
        assert_eq!(error, "subscription 'audit' exists already");
        server.get("/subscriptions/nobody").await.error(404, "subscription_not_found");
    }

    async fn each_subscription_has_its_own_delivery(server) {
        server.post("/subscriptions", &json!({ "subscription": "audit" })).await.expect(201);
        let id = server.publish_claimed("a").await;
        let audit = json!({ "worker_id": "w:1", "subscription": "audit" });
        assert_eq!(server.claim_ids(&audit).await, [id]);
        server.complete(id, "w:1").await.expect(200);
        let report = json!({ "worker_id": "w:1", "subscription": "audit", "error_message": "no" });
        server.post(&format!("/events/{id}/start"), &audit).await.expect(200);
        server.post(&format!("/events/{id}/heartbeat"), &audit).await.expect(200);
        server.post(&format!("/events/{id}/fail"), &report).await.expect(200);
        let shown = server.get(&format!("/events/{id}?include_logs=true")).await.expect(200);
        assert_eq!(shown["status"], "COMPLETED");
        assert_eq!(crate::harness::actions(&shown), ["PICKED", "COMPLETED"]);
        let statuses: Vec<Value> = shown["deliveries"].as_array().unwrap().iter().map(|d| d["status"].clone()).collect();
        assert_eq!(statuses, ["PENDING", "COMPLETED"]);
        let shown = server.get(&format!("/events/{id}?include_logs=true&subscription=audit")).await.expect(200);
        assert_eq!((&shown["status"], &shown["retry_count"]), (&json!("PENDING"), &json!(1)));
        assert_eq!(crate::harness::actions(&shown), ["PICKED", "STARTED", "FAILED"]);
        let list = server.get("/events?subscription=audit&status=PENDING").await.expect(200);
        assert_eq!(list["total"], 1);
    }

    async fn subscription_filters_apply(server) {
        let request = json!({ "subscription": "audit", "types": "order.*", "tags": ["vip"] });
        server.post("/subscriptions", &request).await.expect(201);
        server.publish_as(json!({ "type": "order.paid" })).await;
        server.publish_as(json!({ "type": "user", "tags": "vip" })).await;
        let vip = server.publish_as(json!({ "type": "order.paid", "tags": "a,vip" })).await;
        let claim = json!({ "worker_id": "w", "subscription": "audit", "max": 9 });
        assert_eq!(server.claim_ids(&claim).await, [vip]);
        let other = server.get("/events/1?subscription=audit").await;
        other.error(404, "event_not_found");
    }

    async fn past_events_are_backfilled_on_request(server) {
        server.publish("a").await;
        server.advance_secs(60);
        let late = server.publish("a").await;
        server.advance_secs(60);
        let add = async |name: &str, since: Value| {
            let request = json!({ "subscription": name, "since": since });
            server.post("/subscriptions", &request).await.expect(201);
            server.claim_ids(&json!({ "worker_id": "w", "subscription": name, "max": 9 })).await
        };
        assert!(add("none", Value::Null).await.is_empty());
        assert_eq!(add("some", json!("2025-12-24T10:31:00Z")).await, [late]);
        assert_eq!(add("all", json!("-9999-01-01T00:00:00Z")).await.len(), 2);
    }

    async fn removing_a_subscription_removes_its_deliveries(server) {
        server.post("/subscriptions", &json!({ "subscription": "audit" })).await.expect(201);
        let id = server.publish("a").await;
        let removed = server.delete("/subscriptions/audit").await;
        assert_eq!((removed.status, removed.body.as_str()), (204, ""));
        server.delete("/subscriptions/audit").await.error(404, "subscription_not_found");
        let claim = json!({ "worker_id": "w", "subscription": "audit" });
        server.post("/events/claim", &claim).await.error(404, "subscription_not_found");
        assert_eq!(server.subscribe("a", "w").await.unwrap()["id"], id);
    }

    async fn main_subscription_cannot_be_removed(server) {
        let error = server.delete("/subscriptions/main").await.error(400, "invalid");
        assert_eq!(error, "subscription: 'main' belongs to every namespace and cannot be removed");
        assert_eq!(server.get("/subscriptions/main").await.expect(200)["subscription"], "main");
        server.post("/subscriptions", &json!({ "subscription": "main" })).await.error(409, "exists");
    }

    async fn paused_subscription_accumulates_deliveries(server) {
        server.post("/subscriptions", &json!({ "subscription": "audit" })).await.expect(201);
        assert_eq!(server.act("/subscriptions/audit/pause").await.expect(200)["paused"], true);
        let id = server.publish("a").await;
        let claim = json!({ "worker_id": "w", "subscription": "audit" });
        assert!(server.claim(&claim).await.is_empty());
        assert_eq!(server.subscribe("a", "w").await.unwrap()["id"], id);
        assert_eq!(server.act("/subscriptions/audit/resume").await.expect(200)["paused"], false);
        assert_eq!(server.claim_ids(&claim).await, [id]);
        for verb in ["pause", "resume"] {
            let error = server.act(&format!("/subscriptions/nobody/{verb}")).await;
            error.error(404, "subscription_not_found");
        }
    }

    async fn invalid_subscription_is_refused(server) {
        for (request, field) in [
            (json!({ "subscription": "a b" }), "subscription"),
            (json!({ "subscription": "x", "types": "a*b" }), "types"),
            (json!({ "subscription": "x", "tags": ["a\tb"] }), "tags"),
            (json!({ "subscription": "x", "policy": { "lease_ms": 0 } }), "lease_ms"),
        ] {
            assert_eq!(server.post("/subscriptions", &request).await.bad_field(), field, "{request}");
        }
        server.post("/subscriptions", &json!({})).await.error(400, "invalid");
        server.post("/subscriptions", &json!({ "subscription": "x", "filter": 1 })).await.error(400, "invalid");
        let nowhere = server.post("/namespaces/nowhere/subscriptions", &json!({ "subscription": "x" })).await;
        nowhere.error(404, "namespace_not_found");
    }

    async fn invalid_subscription_name_is_not_found(server) {
        for name in ["%00", "a%20b", "%F0%9F%98%80"] {
            server.get(&format!("/subscriptions/{name}")).await.error(404, "subscription_not_found");
            server.delete(&format!("/subscriptions/{name}")).await.error(404, "subscription_not_found");
        }
    }
}
