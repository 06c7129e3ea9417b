//! `GET /events/search`.

use serde_json::{Value, json};

use crate::harness::Server;

async fn page(server: &Server, query: &str) -> (Vec<i64>, Value) {
    let found = server.get(&format!("/events/search{query}")).await.expect(200);
    let ids = found["events"].as_array().unwrap().iter().map(|event| event["event_id"].as_i64().unwrap()).collect();
    (ids, found["next"].clone())
}

on_each_database! {
    async fn search_results_have_no_payload(server) {
        let event = json!({ "type": "order.paid", "title": "Paid", "tags": "a, b", "group_id": "g", "payload": { "n": "needle" } });
        let id = server.publish_as(event).await;
        let expected = json!({
            "events": [{
                "event_id": id, "type": "order.paid", "title": "Paid", "tags": "a, b", "group_id": "g",
                "created_at": "2025-12-24T10:30:00Z",
                "delivery": {
                    "subscription": "main", "status": "PENDING", "attempts": 0, "retry_count": 0, "max_retries": 3,
                    "ready_at": "2025-12-24T10:30:00Z", "next_retry_at": null, "worker_id": null, "picked_at": null,
                    "started_at": null, "lease_expires_at": null, "error_message": null,
                    "updated_at": "2025-12-24T10:30:00Z"
                }
            }],
            "next": null, "looked_at": 1
        });
        assert_eq!(server.get("/events/search?text=NEEDLE").await.expect(200), expected);
    }

    async fn each_search_parameter_filters(server) {
        let first = server.publish_as(json!({ "type": "order.paid", "tags": "a", "group_id": "g", "key": "k", "title": "x" })).await;
        server.advance_secs(60);
        let second = server.publish_as(json!({ "type": "order.sent", "tags": "b", "title": "x" })).await;
        server.post("/events/claim", &json!({ "worker_id": "w", "tags": "a" })).await.expect(200);
        for (query, expected) in [
            ("", vec![second, first]),
            ("?status=PROCESSING", vec![first]),
            ("?types=order.sent,user", vec![second]),
            ("?tags=a", vec![first]),
            ("?text=x", vec![second, first]),
            ("?group_id=g", vec![first]),
            ("?key=k", vec![first]),
            ("?created_from=2025-12-24T10:31:00Z", vec![second]),
            ("?created_before=2025-12-24T10:31:00Z", vec![first]),
            ("?subscription=main&types=order.*", vec![second, first]),
            ("?text=nowhere", vec![]),
        ] {
            assert_eq!(page(server, query).await.0, expected, "{query}");
        }
        assert_eq!(page(server, &format!("?text={first}")).await.0[0], first);
        let (ids, next) = page(server, "?limit=1").await;
        assert_eq!(ids, [second]);
        let (ids, next) = page(server, &format!("?limit=1&before={next}")).await;
        assert_eq!(ids, [first]);
        assert_eq!(page(server, &format!("?limit=1&before={}", next.as_i64().unwrap_or(first))).await, (vec![], Value::Null));
    }

    async fn invalid_search_parameters_are_named(server) {
        for (query, field) in [
            ("status=DONE", "status"),
            ("types=a*b", "types"),
            ("tags=a%07", "tags"),
            ("group_id=", "group_id"),
            ("key=a%07", "key"),
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("created_from=2025-12-24T10:30:00Z&created_before=2025-12-24T10:30:00Z", "created_from"),
        ] {
            assert_eq!(server.get(&format!("/events/search?{query}")).await.bad_field(), field, "{query}");
        }
        server.get("/events/search?before=x").await.error(400, "invalid");
        server.get("/events/search?offset=1").await.error(400, "invalid");
        server.get("/events/search?subscription=nobody").await.error(404, "subscription_not_found");
    }
}
