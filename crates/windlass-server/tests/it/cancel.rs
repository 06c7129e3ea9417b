//! `POST /events/{id}/cancel` and `POST /events/cancel`.

use serde_json::{Value, json};

on_each_database! {
    async fn pending_event_is_canceled(server) {
        let id = server.publish("a").await;
        let cancelled = server.act(&format!("/events/{id}/cancel")).await.expect(200);
        assert_eq!(cancelled, json!({ "event_id": id, "cancelled": 1 }));
        assert_eq!(server.subscribe("a", "w:1").await, None);
        assert_eq!(server.status(id).await, "CANCELLED");
        assert_eq!(server.actions(id).await, ["CANCELLED"]);
    }

    async fn held_or_finished_event_cannot_be_canceled(server) {
        let id = server.publish_claimed("a").await;
        let error = server.act(&format!("/events/{id}/cancel")).await.error(409, "wrong_status");
        assert_eq!(error, format!("event {id} is PROCESSING; it can be cancelled only while PENDING"));
        server.complete(id, "w:1").await.expect(200);
        server.act(&format!("/events/{id}/cancel")).await.error(409, "wrong_status");
        server.act("/events/4711/cancel").await.error(404, "event_not_found");
    }

    async fn one_subscription_can_be_canceled_alone(server) {
        server.post("/subscriptions", &json!({ "subscription": "audit" })).await.expect(201);
        let one = server.publish("a").await;
        server.act(&format!("/events/{one}/cancel?subscription=audit")).await.expect(200);
        assert_eq!(server.status(one).await, "PENDING");
        assert!(server.claim(&json!({ "worker_id": "w", "subscription": "audit" })).await.is_empty());
        let both = server.publish("b").await;
        assert_eq!(server.act(&format!("/events/{both}/cancel")).await.expect(200)["cancelled"], 2);
        let error = server.act(&format!("/events/{both}/cancel?subscription=nobody")).await;
        error.error(404, "subscription_not_found");
    }

    async fn all_matching_events_are_canceled(server) {
        let held = server.publish_claimed("a,x").await;
        let (a, b, c) = (server.publish("a").await, server.publish("b").await, server.publish("c").await);
        let cancel = async |request: Value| server.post("/events/cancel", &request).await;
        assert_eq!(cancel(json!({ "tags": "a,b" })).await.expect(200), json!({ "cancelled": 2 }));
        assert_eq!((server.status(a).await, server.status(b).await), ("CANCELLED".into(), "CANCELLED".into()));
        assert_eq!(cancel(json!({ "types": ["x*"] })).await.expect(200)["cancelled"], 0);
        assert_eq!(cancel(json!({ "event_ids": [a, held, c], "subscription": "main" })).await.expect(200)["cancelled"], 1);
        let d = server.publish("d").await;
        assert_eq!(cancel(json!({ "all": true })).await.expect(200)["cancelled"], 1);
        assert_eq!((server.status(d).await, server.status(held).await), ("CANCELLED".into(), "PROCESSING".into()));
        assert_eq!(cancel(json!({})).await.bad_field(), "all");
        assert_eq!(cancel(json!({ "all": true, "tags": "a" })).await.bad_field(), "all");
        assert_eq!(cancel(json!({ "types": "a*b" })).await.bad_field(), "types");
        cancel(json!({ "reason": "x" })).await.error(400, "invalid");
        cancel(json!({ "subscription": "nobody" })).await.error(404, "subscription_not_found");
    }
}
