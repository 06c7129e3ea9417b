//! `GET /events`, `GET /events/{id}`, `/stuck`, `/workers` and `/stats`.

use serde_json::{Value, json};

use crate::harness::Server;

/// The ids of a page and the total.
async fn listed(server: &Server, query: &str) -> (Vec<i64>, u64) {
    let list = server.get(&format!("/events{query}")).await.expect(200);
    let ids = list["events"].as_array().unwrap().iter().map(|event| event["id"].as_i64().unwrap()).collect();
    (ids, list["total"].as_u64().unwrap())
}

on_each_database! {
    // H7
    async fn unknown_event_is_404(server) {
        let error = server.get("/events/4711").await.error(404, "event_not_found");
        assert_eq!(error, "event 4711 does not exist in namespace 'default'");
        assert_eq!(server.get("/events/first").await.error(400, "invalid"), "id: 'first' is not the number of an event");
        for id in ["9223372036854775808", "1.5", "%00", "-"] {
            assert_eq!(server.get(&format!("/events/{id}")).await.bad_field(), "id");
        }
        server.get("/events/1?include_logs=maybe").await.error(400, "invalid");
    }

    // H8
    async fn list_is_newest_first_with_total(server) {
        let (first, second) = (server.publish("a").await, server.publish("b").await);
        server.advance_secs(1);
        server.subscribe("a", "w:1").await.unwrap();
        let event = |id: i64, tags: &str, status: &str, attempts: u32, updated_at: &str| json!({
            "id": id, "type": "event", "title": "An event", "status": status, "tags": tags, "attempts": attempts,
            "retry_count": 0, "created_at": "2025-12-24T10:30:00Z", "updated_at": updated_at
        });
        let expected = json!({
            "events": [
                event(second, "b", "PENDING", 0, "2025-12-24T10:30:00Z"),
                event(first, "a", "PROCESSING", 1, "2025-12-24T10:30:01Z"),
            ],
            "total": 2, "limit": 20, "offset": 0
        });
        assert_eq!(server.get("/events").await.expect(200), expected);
    }

    // H8
    async fn list_filters_can_be_combined(server) {
        let done = server.publish_claimed("a,x").await;
        server.complete(done, "w:1").await.expect(200);
        let held = server.publish_claimed("a,y").await;
        let b = server.publish("b").await;
        let typed = server.publish_as(json!({ "type": "order.paid", "tags": "b" })).await;
        for (query, expected) in [
            ("?status=PENDING", vec![typed, b]),
            ("?status=COMPLETED", vec![done]),
            ("?status=FAILED", vec![]),
            ("?tags=a", vec![held, done]),
            ("?tags=x,b", vec![typed, b, done]),
            ("?tags=a&status=PROCESSING", vec![held]),
            ("?types=order.*", vec![typed]),
            ("?types=event&tags=b&status=PENDING&limit=5&offset=0", vec![b]),
        ] {
            assert_eq!(listed(server, query).await, (expected.clone(), expected.len() as u64), "{query}");
        }
    }

    // H8
    async fn list_is_paginated(server) {
        let mut ids = Vec::new();
        for _ in 0..25 {
            ids.insert(0, server.publish("a").await);
        }
        assert_eq!(listed(server, "").await, (ids[..20].to_vec(), 25));
        assert_eq!(listed(server, "?limit=10&offset=20").await, (ids[20..].to_vec(), 25));
        assert_eq!(listed(server, "?tags=a&status=PENDING&limit=2&offset=1").await, (ids[1..3].to_vec(), 25));
        assert_eq!(listed(server, "?offset=100").await, (vec![], 25));
        let page = server.get("/events?limit=7&offset=3").await.expect(200);
        assert_eq!((&page["limit"], &page["offset"]), (&json!(7), &json!(3)));
    }

    // H8
    async fn invalid_status_or_number_is_refused(server) {
        assert_eq!(server.get("/events?status=DONE").await.bad_field(), "status");
        for query in ["limit=0", "limit=1001", "offset=18446744073709551615"] {
            let field = query.split('=').next().unwrap();
            assert_eq!(server.get(&format!("/events?{query}")).await.bad_field(), field);
        }
        for query in ["limit=x", "limit=-1", "limit=", "offset=-1", "offset=1e3", "state=PENDING", "limit=1&limit=2"] {
            server.get(&format!("/events?{query}")).await.error(400, "invalid");
        }
    }

    // H8
    async fn list_filters_are_limited(server) {
        assert_eq!(server.get(&format!("/events?tags={}", vec!["t"; 33].join(","))).await.bad_field(), "tags");
        assert_eq!(server.get("/events?types=a*b").await.bad_field(), "types");
        assert_eq!(server.get("/events?tags=a%07b").await.bad_field(), "tags");
        server.get("/events?subscription=nobody").await.error(404, "subscription_not_found");
        server.get("/namespaces/nowhere/events").await.error(404, "namespace_not_found");
    }

    // H14
    async fn silent_worker_is_stale(server) {
        let id = server.publish_claimed("a").await;
        server.advance_secs(10);
        server.publish_claimed("b").await;
        let worker = |last_seen_at: &str, stale: bool| json!({ "workers": [{
            "worker_id": "w:1", "held": 2, "oldest_picked_at": "2025-12-24T10:30:00Z",
            "last_seen_at": last_seen_at, "stale": stale
        }] });
        server.advance_secs(30);
        assert_eq!(server.get("/workers").await.expect(200), worker("2025-12-24T10:30:10Z", false));
        server.advance_secs(1);
        assert_eq!(server.get("/workers").await.expect(200), worker("2025-12-24T10:30:10Z", true));
        let patient = server.get("/workers?stale_after_ms=60000").await.expect(200);
        assert_eq!(patient["workers"][0]["stale"], false);
        server.post(&format!("/events/{id}/heartbeat"), &json!({ "worker_id": "w:1" })).await.expect(200);
        assert_eq!(server.get("/workers").await.expect(200), worker("2025-12-24T10:30:41Z", false));
    }

    // H14
    async fn worker_without_events_is_not_stale(server) {
        let id = server.publish_claimed("a").await;
        server.complete(id, "w:1").await.expect(200);
        server.advance_secs(600);
        let workers = server.get("/workers").await.expect(200)["workers"].clone();
        assert_eq!((&workers[0]["held"], &workers[0]["stale"]), (&json!(0), &json!(false)));
        server.advance_secs(3600);
        assert_eq!(server.get("/workers").await.expect(200), json!({ "workers": [] }));
    }

    // H14
    async fn stuck_lists_long_held_events_and_orphans(server) {
        let orphan = server.publish_claimed("a").await;
        server.advance_secs(5);
        let started = server.publish_claimed("b").await;
        server.post(&format!("/events/{started}/start"), &json!({ "worker_id": "w:1" })).await.expect(200);
        server.advance_secs(28);
        let stuck = server.get("/stuck").await.expect(200);
        let expected = json!({ "stuck": [{
            "event_id": orphan, "type": "event", "subscription": "main", "worker_id": "w:1", "attempts": 1,
            "picked_at": "2025-12-24T10:30:00Z", "started_at": null, "updated_at": "2025-12-24T10:30:00Z",
            "lease_expires_at": "2025-12-24T10:31:00Z"
        }] });
        assert_eq!(stuck, expected);
        server.advance_secs(10);
        let stuck = server.get("/stuck").await.expect(200)["stuck"].clone();
        assert_eq!((&stuck[0]["event_id"], &stuck[1]["event_id"]), (&json!(orphan), &json!(started)));
        assert_eq!(stuck[1]["started_at"], "2025-12-24T10:30:05Z");
        let all = server.get("/stuck?older_than_ms=1000&limit=1").await.expect(200);
        assert_eq!(all["stuck"].as_array().unwrap().len(), 1);
        assert_eq!(server.get("/stuck?older_than_ms=600000").await.expect(200), json!({ "stuck": [] }));
    }

    async fn extreme_durations_and_limits_are_handled(server) {
        server.publish_claimed("a").await;
        let max = u64::MAX;
        assert_eq!(server.get(&format!("/stuck?older_than_ms={max}")).await.expect(200), json!({ "stuck": [] }));
        assert_eq!(server.get(&format!("/workers?stale_after_ms={max}")).await.expect(200)["workers"][0]["stale"], false);
        assert_eq!(server.get("/stuck?limit=0").await.bad_field(), "limit");
        assert_eq!(server.get("/stuck?limit=1001").await.bad_field(), "limit");
    }

    async fn stats_count_current_and_recently_finished_events(server) {
        let done = server.publish_claimed("a").await;
        server.complete(done, "w:1").await.expect(200);
        server.publish_dead("order.paid").await;
        server.publish("a").await;
        server.publish("a").await;
        server.advance_secs(60);
        let row = |event_type: &str, status: &str, count: u64| json!({
            "subscription": "main", "type": event_type, "status": status, "count": count,
            "oldest_at": "2025-12-24T10:30:00Z"
        });
        let rows = [row("event", "PENDING", 2), row("event", "COMPLETED", 1), row("order.paid", "FAILED", 1)];
        let expected = json!({
            "namespace": "default", "since": "2025-12-24T09:31:00Z", "paused": false, "stats": rows
        });
        assert_eq!(server.get("/stats").await.expect(200), expected);
        let later = server.get("/stats?since=2025-12-24T10:30:30Z").await.expect(200);
        assert_eq!(later["stats"], json!([rows[0], rows[2]]));
        server.get("/stats?since=yesterday").await.error(400, "invalid");
    }

    async fn stats_accept_any_start_time(server) {
        server.publish("a").await;
        for since in ["0001-01-01T00:00:00Z", "-9999-01-01T00:00:00Z", "%2B99999-01-01T00:00:00Z"] {
            let stats = server.get(&format!("/stats?since={since}")).await.expect(200);
            assert_eq!(stats["stats"].as_array().unwrap().len(), 1, "{since}");
        }
    }

    async fn inspection_is_separate_per_namespace(server) {
        server.put_namespace("orders").await;
        let id = server.publish_claimed("a").await;
        server.advance_secs(60);
        let empty: [(&str, Value); 4] = [
            ("/events", json!({ "events": [], "total": 0, "limit": 20, "offset": 0 })),
            ("/stuck", json!({ "stuck": [] })),
            ("/workers", json!({ "workers": [] })),
            ("/stats?since=2025-12-24T10:00:00Z", json!({
                "namespace": "orders", "since": "2025-12-24T10:00:00Z", "paused": false, "stats": []
            })),
        ];
        for (path, expected) in empty {
            assert_eq!(server.get(&format!("/namespaces/orders{path}")).await.expect(200), expected);
            server.get(&format!("/namespaces/nowhere{path}")).await.error(404, "namespace_not_found");
        }
        server.get(&format!("/namespaces/orders/events/{id}")).await.error(404, "event_not_found");
    }
}
