//! `GET /events/subscribe` and `POST /events/claim`.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use windlass_testkit::until;

use crate::http::{head, read, request};

on_each_database! {
    // H2
    async fn subscribe_claims_one_event_with_any_of_the_tags(server) {
        let id = server.publish("email,priority-high").await;
        let other = server.publish("payment").await;
        let mut taken = server.subscribe("notification,email", "worker-02:8742").await.unwrap();
        let lease = taken.as_object_mut().unwrap().remove("lease").unwrap();
        let lease = lease.as_str().unwrap();
        assert!(lease.len() == 16 && lease.bytes().all(|byte| byte.is_ascii_hexdigit()), "{lease}");
        let expected = json!({
            "id": id,
            "type": "event",
            "title": "An event",
            "description": null,
            "tags": "email,priority-high",
            "status": "PROCESSING",
            "payload": { "n": 1 },
            "attempt": 1,
            "retry_count": 0,
            "max_retries": 3,
            "lease_expires_at": "2025-12-24T10:31:00Z",
            "created_at": "2025-12-24T10:30:00Z"
        });
        assert_eq!(taken, expected);
        assert_eq!(server.subscribe("notification,email", "worker-03:1").await, None);
        assert_eq!(server.subscribe("payment", "worker-03:1").await.unwrap()["id"], other);
        let shown = server.show(id).await;
        assert_eq!((&shown["status"], &shown["worker_id"]), (&json!("PROCESSING"), &json!("worker-02:8742")));
        assert_eq!(shown["lease_expires_at"], "2025-12-24T10:31:00Z");
    }

    // H2
    async fn subscribe_without_a_ready_event_is_204(server) {
        let response = server.get("/events/subscribe?tags=a&worker_id=w:1").await;
        assert_eq!((response.status, response.body.as_str()), (204, ""));
        assert!(!response.head.contains("content-type"), "{response:?}");
        assert_eq!(response.header("cache-control"), Some("no-store"));
    }

    // H2
    async fn subscribe_requires_tags_and_worker(server) {
        server.publish("a").await;
        let tags = "tags: is required: the tags to subscribe to, as in `tags=email,sms`";
        let worker = "worker_id: is required: the worker's name, as in `worker_id=host:pid`";
        let cases = [
            ("?worker_id=w:1", tags),
            ("?tags=&worker_id=w:1", tags),
            ("?tags=,%20,&worker_id=w:1", tags),
            ("?tags=a", worker),
            ("?tags=a&worker_id=", worker),
        ];
        for (query, expected) in cases {
            assert_eq!(server.get(&format!("/events/subscribe{query}")).await.error(400, "invalid"), expected);
        }
        let error = server.get("/events/subscribe?tags=a&worker_id=w:1&wait=5").await.error(400, "invalid");
        assert!(error.starts_with("query string: wait: unknown field `wait`, expected one of `tags`"), "{error}");
        assert!(server.subscribe("a", "w:1").await.is_some());
    }

    // H2
    async fn missing_parameter_is_named(server) {
        assert_eq!(server.get("/events/subscribe?worker_id=w:1").await.bad_field(), "tags");
        assert_eq!(server.get("/events/subscribe?tags=a").await.bad_field(), "worker_id");
    }

    async fn head_claims_nothing(server) {
        server.publish("a").await;
        let response = request(server.address, "HEAD", "/events/subscribe?tags=a&worker_id=w:1", "", b"").await;
        assert_eq!(response.status, 405);
        assert!(server.subscribe("a", "w:1").await.is_some());
    }

    // H6
    async fn failed_event_is_not_redelivered_before_its_retry_time(server) {
        let id = server.publish_claimed("a").await;
        server.fail(id, "w:1").await.expect(200);
        server.advance_secs(299);
        assert_eq!(server.subscribe("a", "w:2").await, None);
        server.advance_secs(1);
        let taken = server.subscribe("a", "w:2").await.unwrap();
        assert_eq!((&taken["id"], &taken["retry_count"], &taken["attempt"]), (&json!(id), &json!(1), &json!(2)));
    }

    // H6
    async fn event_without_retries_left_is_not_redelivered(server) {
        let id = server.publish_as(json!({ "title": "t", "tags": "a", "max_retries": 1 })).await;
        server.subscribe("a", "w:1").await.unwrap();
        assert_eq!(server.fail(id, "w:1").await.status, 400);
        server.advance_secs(3600);
        assert_eq!(server.subscribe("a", "w:1").await, None);
        assert!(server.claim(&json!({ "worker_id": "w:1" })).await.is_empty());
    }

    // H15
    // O4
    async fn run_of_a_group_is_claimed_in_order(server) {
        let event = |n: usize| json!({ "title": "t", "tags": "", "group_id": "g", "payload": n });
        let events: Vec<Value> = (0..4).map(event).collect();
        server.post("/events/batch", &json!({ "events": events })).await.expect(201);
        let claim = |group_run: usize| json!({ "worker_id": "w", "max": 10, "group_run": group_run });
        let error = server.post("/events/claim", &claim(1_001)).await.error(400, "invalid");
        assert!(error.starts_with("group_run: "), "{error}");
        let claimed = server.post("/events/claim", &claim(3)).await.expect(200);
        let claimed = claimed["events"].as_array().unwrap();
        assert_eq!(claimed.iter().map(|event| &event["payload"]).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(claimed.iter().all(|event| event["lease"] == claimed[0]["lease"]));
        assert_eq!(server.post("/events/claim", &claim(3)).await.expect(200), json!({ "events": [] }));
    }

    async fn rare_tag_is_claimed_among_many_events(server) {
        for batch in 0..5 {
            let event = |n: usize| json!({ "title": "t", "tags": format!("other-{},bulk", (batch * 1_000 + n) % 100) });
            let events: Vec<Value> = (0..1_000).map(event).collect();
            server.post("/events/batch", &json!({ "events": events })).await.expect(201);
        }
        let id = server.publish("rare").await;
        assert_eq!(server.subscribe("rare", "w:1").await.unwrap()["id"], id);
        assert_eq!(server.subscribe("rare", "w:1").await, None);
        assert_eq!(server.subscribe("rare,other-7", "w:1").await.unwrap()["tags"], "other-7,bulk");
    }

    async fn claim_returns_at_most_max_events(server) {
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(server.publish("a").await);
        }
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w:1" })).await, ids[..1]);
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w:1", "max": 3 })).await, ids[1..4]);
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w:1", "max": 3 })).await, ids[4..]);
        assert_eq!(server.post("/events/claim", &json!({ "worker_id": "w" })).await.expect(200), json!({ "events": [] }));
    }

    async fn claim_filters_by_types_and_tags(server) {
        let paid = server.publish_as(json!({ "type": "order.paid", "tags": "a,b" })).await;
        let sent = server.publish_as(json!({ "type": "order.sent", "tags": "c" })).await;
        let user = server.publish_as(json!({ "type": "user.created", "tags": "c" })).await;
        let claim = async |types: Value, tags: Value| {
            server.claim_ids(&json!({ "worker_id": "w", "max": 10, "types": types, "tags": tags })).await
        };
        assert!(claim(json!("order"), json!([])).await.is_empty());
        assert!(claim(json!("user.*"), json!("a,b")).await.is_empty());
        assert_eq!(claim(json!(["order.*"]), json!(["c", "d"])).await, [sent]);
        assert_eq!(claim(json!("user.created, order.paid"), Value::Null).await, [paid, user]);
    }

    async fn subscribe_filters_by_types(server) {
        server.publish_as(json!({ "type": "order.paid", "tags": "a" })).await;
        let user = server.publish_as(json!({ "type": "user.created", "tags": "a" })).await;
        let taken = server.get("/events/subscribe?tags=a&types=user.*&worker_id=w&lease_ms=5000").await.expect(200);
        assert_eq!((&taken["id"], &taken["lease_expires_at"]), (&json!(user), &json!("2025-12-24T10:30:05Z")));
    }

    async fn claim_sets_the_lease_duration(server) {
        let id = server.publish("a").await;
        let taken = server.claim(&json!({ "worker_id": "w:1", "lease_ms": 600_000 })).await;
        assert_eq!(taken[0]["lease_expires_at"], "2025-12-24T10:40:00Z");
        server.advance_secs(599);
        assert!(server.claim(&json!({ "worker_id": "w:2" })).await.is_empty());
        server.advance_secs(1);
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w:2" })).await, [id]);
    }

    async fn claim_beyond_a_limit_names_the_field(server) {
        let cases = [
            (json!({ "worker_id": "w", "max": 0 }), "max"),
            (json!({ "worker_id": "w", "max": 1001 }), "max"),
            (json!({ "worker_id": "w", "wait_ms": 60_001 }), "wait_ms"),
            (json!({ "worker_id": "w", "lease_ms": 0 }), "lease_ms"),
            (json!({ "worker_id": "w", "lease_ms": 604_800_001 }), "lease_ms"),
            (json!({ "worker_id": "" }), "worker_id"),
            (json!({ "worker_id": "a\nb" }), "worker_id"),
            (json!({ "worker_id": "w".repeat(201) }), "worker_id"),
            (json!({ "worker_id": "w", "types": "a*b" }), "types"),
            (json!({ "worker_id": "w", "tags": vec!["t"; 33] }), "tags"),
        ];
        for (request, field) in cases {
            let response = server.post("/events/claim", &request).await;
            let code = if field == "worker_id" && response.body.contains("too_large") { "too_large" } else { "invalid" };
            response.error(400, code);
            assert_eq!(response.json()["field"], field, "{response:?}");
        }
        let error = server.post("/events/claim", &json!({ "max": 1 })).await.error(400, "invalid");
        assert!(error.contains("missing field `worker_id`"), "{error}");
    }

    async fn waiting_claim_receives_a_new_event(server) {
        let waiting = server.wait_for("a").await;
        server.until_waiting(1).await;
        server.publish("b").await;
        let id = server.publish("a").await;
        assert_eq!(read(waiting).await.expect(200)["events"][0]["id"], id);
        server.until_waiting(0).await;
    }

    async fn waiting_subscribe_receives_a_new_event(server) {
        let mut waiting = TcpStream::connect(server.address).await.unwrap();
        let path = "/events/subscribe?tags=a&worker_id=w:1&wait_ms=60000";
        waiting.write_all(head("GET", path, "", 0).as_bytes()).await.unwrap();
        server.until_waiting(1).await;
        let id = server.publish("a").await;
        assert_eq!(read(waiting).await.expect(200)["id"], id);
    }

    async fn waiting_claim_times_out_empty(server) {
        assert!(server.claim(&json!({ "worker_id": "w", "wait_ms": 1 })).await.is_empty());
        assert_eq!(server.get("/events/subscribe?tags=a&worker_id=w&wait_ms=1").await.status, 204);
    }

    async fn disconnected_client_claims_nothing(server) {
        let gone = server.wait_for("a").await;
        server.until_waiting(1).await;
        drop(gone);
        server.until_waiting(0).await;
        let id = server.publish("a").await;
        let taken = until(async || server.subscribe("a", "w:2").await).await;
        assert_eq!(taken["id"], id);
    }

    async fn claim_is_limited_to_its_namespace(server) {
        server.put_namespace("orders").await;
        server.publish("a").await;
        let subscribe = "/namespaces/orders/events/subscribe?tags=a&worker_id=w:1";
        assert_eq!(server.get(subscribe).await.status, 204);
        let event = json!({ "title": "t", "tags": "a" });
        let stored = server.post("/namespaces/orders/events", &event).await.expect(201);
        assert_eq!(server.get(subscribe).await.expect(200)["id"], stored["id"]);
    }

    async fn unknown_subscription_or_namespace_is_404(server) {
        let claim = json!({ "worker_id": "w", "subscription": "nobody" });
        server.post("/events/claim", &claim).await.error(404, "subscription_not_found");
        let error = server.get("/namespaces/x/events/subscribe?tags=a&worker_id=w").await;
        error.error(404, "namespace_not_found");
    }
}
