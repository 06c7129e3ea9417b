//! `/dead-letters`.

use serde_json::{Value, json};

use crate::harness::Server;

/// The ids of the matching dead letters.
async fn listed(server: &Server, query: &str) -> Vec<i64> {
    let list = server.get(&format!("/dead-letters{query}")).await.expect(200);
    list["dead_letters"].as_array().unwrap().iter().map(|letter| letter["event_id"].as_i64().unwrap()).collect()
}

/// Publishes an event, lets it expire, and returns its id.
async fn publish_expired(server: &Server) -> i64 {
    let expires_at = server.queue.clock().now() + std::time::Duration::from_secs(1);
    let id = server.publish_as(json!({ "type": "late", "expires_at": expires_at })).await;
    server.advance_secs(2);
    server.queue.expire_once().await.unwrap();
    assert_eq!(server.status(id).await, "EXPIRED");
    id
}

on_each_database! {
    async fn dead_letter_has_event_and_reason(server) {
        let event = json!({ "title": "t", "tags": "a", "payload": [1], "priority": 2, "max_retries": 1 });
        let id = server.publish_as(event).await;
        server.subscribe("a", "w:1").await.unwrap();
        server.advance_secs(5);
        assert_eq!(server.fail(id, "w:1").await.status, 400);
        let expected = json!({
            "event_id": id, "type": "event", "title": "t", "description": null, "tags": "a", "payload": [1],
            "subscription": "main", "status": "FAILED", "reason": "Max retries exceeded",
            "error": "Connection timeout", "attempts": 1, "retry_count": 1, "max_retries": 1,
            "failed_at": "2025-12-24T10:30:05Z", "created_at": "2025-12-24T10:30:00Z", "priority": 2
        });
        assert_eq!(server.get(&format!("/dead-letters/{id}")).await.expect(200), expected);
        let list = json!({ "dead_letters": [expected], "total": 1, "limit": 20, "offset": 0 });
        assert_eq!(server.get("/dead-letters").await.expect(200), list);
    }

    async fn each_dead_letter_filter_works_alone(server) {
        let expired = publish_expired(server).await;
        let paid = server.publish_dead("order.paid").await;
        server.advance_secs(10);
        let sent = server.publish_dead("order.sent").await;
        assert_eq!(listed(server, "").await, [sent, paid, expired]);
        assert_eq!(listed(server, "?status=EXPIRED").await, [expired]);
        assert_eq!(listed(server, "?status=FAILED").await, [sent, paid]);
        assert_eq!(listed(server, "?types=order.*").await, [sent, paid]);
        assert_eq!(listed(server, "?types=order.sent,late").await, [sent, expired]);
        assert_eq!(listed(server, "?reason=Handler%20error").await, [sent, paid]);
        assert_eq!(listed(server, "?failed_before=2025-12-24T10:30:05Z").await, [paid, expired]);
        assert_eq!(listed(server, "?subscription=main").await, [sent, paid, expired]);
        assert_eq!(listed(server, "?limit=1&offset=1").await, [paid]);
        assert!(listed(server, "?status=COMPLETED").await.is_empty());
    }

    async fn invalid_dead_letter_filters_are_refused(server) {
        assert_eq!(server.get("/dead-letters?status=DEAD").await.bad_field(), "status");
        assert_eq!(server.get("/dead-letters?limit=0").await.bad_field(), "limit");
        assert_eq!(server.get("/dead-letters?types=a*b").await.bad_field(), "types");
        server.get("/dead-letters?failed_before=never").await.error(400, "invalid");
        server.get("/dead-letters?subscription=nobody").await.error(404, "subscription_not_found");
        assert!(listed(server, "?failed_before=-9999-01-01T00:00:00Z").await.is_empty());
        server.get("/dead-letters?reason=a%00b").await.error(400, "invalid");
        let purge = server.post("/dead-letters/purge", &json!({ "reason": "a\0b" })).await;
        assert_eq!(purge.bad_field(), "reason");
        assert!(listed(server, &format!("?reason={}", "x".repeat(10_000))).await.is_empty());
    }

    async fn single_dead_letter_is_redriven(server) {
        let (id, other) = (server.publish_dead("t").await, server.publish_dead("t").await);
        let redriven = server.act(&format!("/dead-letters/{id}/redrive")).await.expect(200);
        assert_eq!(redriven, json!({ "redriven": 1 }));
        assert_eq!(listed(server, "").await, [other]);
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w", "max": 9 })).await, [id]);
        let error = server.act(&format!("/dead-letters/{id}/redrive")).await.error(404, "dead_letter_not_found");
        assert_eq!(error, format!("event {id} is not among the dead letters of namespace 'default'"));
    }

    async fn single_dead_letter_is_purged_and_its_event_stays(server) {
        let (id, other) = (server.publish_dead("t").await, server.publish_dead("t").await);
        assert_eq!(server.delete(&format!("/dead-letters/{id}")).await.expect(200), json!({ "purged": 1 }));
        assert_eq!(listed(server, "").await, [other]);
        assert_eq!(server.status(id).await, "FAILED");
        server.delete(&format!("/dead-letters/{id}")).await.error(404, "dead_letter_not_found");
        server.get(&format!("/dead-letters/{id}")).await.error(404, "dead_letter_not_found");
    }

    async fn dead_letters_are_redriven_by_filter(server) {
        let mut ids = Vec::new();
        for event_type in ["a.1", "a.2", "b", "c", "d"] {
            ids.push(server.publish_dead(event_type).await);
        }
        let redrive = async |filter: Value| server.post("/dead-letters/redrive", &filter).await.expect(200)["redriven"].clone();
        assert_eq!(redrive(json!({ "types": "a.*" })).await, 2);
        assert_eq!(redrive(json!({ "event_ids": [ids[2], ids[0], 4711] })).await, 1);
        assert_eq!(redrive(json!({ "status": "EXPIRED" })).await, 0);
        assert_eq!(redrive(json!({ "reason": "no" })).await, 0);
        assert_eq!(redrive(json!({ "failed_before": "2025-12-24T10:30:00Z" })).await, 0);
        assert_eq!(redrive(json!({ "subscription": "main", "types": ["c"] })).await, 1);
        assert_eq!(redrive(json!({ "all": true })).await, 1);
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w", "max": 9 })).await, ids);
    }

    async fn dead_letters_are_purged_by_filter(server) {
        for event_type in ["a.1", "a.2", "b"] {
            server.publish_dead(event_type).await;
        }
        let purge = async |filter: Value| server.post("/dead-letters/purge", &filter).await.expect(200)["purged"].clone();
        assert_eq!(purge(json!({ "types": "a.*", "status": "FAILED", "reason": "Handler error" })).await, 2);
        assert_eq!(purge(json!({ "failed_before": "2025-12-24T10:30:00Z" })).await, 0);
        assert_eq!(purge(json!({ "all": true })).await, 1);
        assert!(listed(server, "").await.is_empty());
    }

    async fn all_must_be_requested_explicitly(server) {
        let id = server.publish_dead("t").await;
        for path in ["/dead-letters/redrive", "/dead-letters/purge"] {
            for filter in [json!({}), json!({ "all": false }), json!({ "event_ids": [] }), json!({ "types": "" })] {
                let error = server.post(path, &filter).await.error(400, "invalid");
                assert_eq!(error, "all: must be true if no filter is given");
            }
            let error = server.post(path, &json!({ "all": true, "types": "t" })).await.error(400, "invalid");
            assert_eq!(error, "all: is not allowed with a filter");
            server.post(path, &json!({ "state": "FAILED" })).await.error(400, "invalid");
            server.post(path, &json!({ "status": "DEAD" })).await.error(400, "invalid");
            server.post(path, &json!({ "subscription": "nobody" })).await.error(404, "subscription_not_found");
            assert_eq!(server.post(path, &json!({ "event_ids": vec![1; 1001] })).await.bad_field(), "event_ids");
        }
        assert_eq!(listed(server, "").await, [id]);
    }

    async fn dead_letters_are_separate_per_subscription(server) {
        server.post("/subscriptions", &json!({ "subscription": "audit" })).await.expect(201);
        let id = server.publish("a").await;
        server.claim(&json!({ "worker_id": "w", "subscription": "audit" })).await;
        let report = json!({ "worker_id": "w", "subscription": "audit", "retry": false });
        server.post(&format!("/events/{id}/fail"), &report).await.expect(200);
        assert!(listed(server, "?subscription=main").await.is_empty());
        assert_eq!(listed(server, "?subscription=audit").await, [id]);
        let main = format!("/dead-letters/{id}?subscription=main");
        server.get(&main).await.error(404, "dead_letter_not_found");
        server.delete(&main).await.error(404, "dead_letter_not_found");
        let letter = server.get(&format!("/dead-letters/{id}")).await.expect(200);
        assert_eq!(letter["subscription"], "audit");
        server.act(&format!("/dead-letters/{id}/redrive?subscription=audit")).await.expect(200);
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w", "subscription": "audit" })).await, [id]);
    }

    async fn dead_letters_are_separate_per_namespace(server) {
        server.put_namespace("orders").await;
        let id = server.publish_dead("t").await;
        let list = server.get("/namespaces/orders/dead-letters").await.expect(200);
        assert_eq!(list["total"], 0);
        let all = json!({ "all": true });
        let purged = server.post("/namespaces/orders/dead-letters/purge", &all).await.expect(200);
        assert_eq!(purged, json!({ "purged": 0 }));
        assert_eq!(listed(server, "").await, [id]);
    }
}
