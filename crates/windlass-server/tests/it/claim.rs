//! `GET /events/subscribe`.

use serde_json::json;

use crate::http::request;

on_each_database! {
    // H2
    async fn one_event_with_any_of_the_tags_is_handed_out(server) {
        let id = server.publish("email,priority-high").await;
        let other = server.publish("payment").await;
        let taken = server.subscribe("notification,email", "worker-02:8742").await.unwrap();
        let expected = json!({
            "id": id,
            "title": "An event",
            "tags": "email,priority-high",
            "status": "PROCESSING",
            "payload": { "n": 1 },
            "retry_count": 0,
            "max_retries": 3,
            "created_at": "2025-12-24T10:30:00Z"
        });
        assert_eq!(taken, expected);
        assert_eq!(server.subscribe("notification,email", "worker-03:1").await, None);
        assert_eq!(server.subscribe("payment", "worker-03:1").await.unwrap()["id"], other);
    }

    // H2
    async fn with_nothing_to_take_the_answer_is_204_and_empty(server) {
        let response = server.get("/events/subscribe?tags=a&worker_id=w:1").await;
        assert_eq!((response.status, response.body.as_str()), (204, ""));
        assert!(!response.head.contains("content-type"), "{response:?}");
        assert!(response.head.contains("cache-control: no-store"), "{response:?}");
    }

    // H2
    async fn tags_and_worker_are_required(server) {
        let cases = [
            ("?worker_id=w:1", "tags: is required: the tags to subscribe to, as in `tags=email,sms`"),
            ("?tags=&worker_id=w:1", "tags: is required: the tags to subscribe to, as in `tags=email,sms`"),
            ("?tags=a", "worker_id: is required: who takes the event, as in `worker_id=host:pid`"),
            ("?tags=a,,b&worker_id=w:1", "tags: must not be empty"),
            ("?tags=a&worker_id=w:1&wait=5", "query string: wait: unknown field `wait`, expected `tags` or `worker_id`"),
        ];
        for (query, expected) in cases {
            assert_eq!(server.get(&format!("/events/subscribe{query}")).await.error(400, "invalid"), expected);
        }
    }

    async fn head_takes_nothing(server) {
        server.publish("a").await;
        let response = request(server.address, "HEAD", "/events/subscribe?tags=a&worker_id=w:1", "", b"").await;
        assert_eq!(response.status, 405);
        assert!(server.subscribe("a", "w:1").await.is_some());
    }

    async fn a_namespace_hands_out_its_own_events_only(server) {
        server.queue.put_namespace("orders", None, None).await.unwrap();
        server.publish("a").await;
        let subscribe = "/namespaces/orders/events/subscribe?tags=a&worker_id=w:1";
        assert_eq!(server.get(subscribe).await.status, 204);
        let event = json!({ "title": "t", "tags": "a" });
        let stored = server.post("/namespaces/orders/events", &event).await.expect(201);
        assert_eq!(server.get(subscribe).await.expect(200)["id"], stored["id"]);
    }
}
