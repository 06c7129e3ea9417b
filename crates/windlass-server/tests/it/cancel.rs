//! `POST /events/{id}/cancel`.

use serde_json::json;

on_each_database! {
    async fn a_waiting_event_is_called_off(server) {
        let id = server.publish("a").await;
        let cancelled = server.act(&format!("/events/{id}/cancel")).await.expect(200);
        assert_eq!(cancelled, json!({ "event_id": id, "cancelled": 1 }));
        assert_eq!(server.subscribe("a", "w:1").await, None);
        assert_eq!(server.status(id).await, "CANCELLED");
        assert_eq!(server.actions(id).await, ["CANCELLED"]);
    }

    async fn what_is_held_or_done_goes_on(server) {
        let id = server.publish_taken("a").await;
        let error = server.act(&format!("/events/{id}/cancel")).await.error(409, "wrong_status");
        assert_eq!(error, format!("event {id} is PROCESSING; it can be cancelled only while PENDING"));
        server.complete(id, "w:1").await.expect(200);
        server.act(&format!("/events/{id}/cancel")).await.error(409, "wrong_status");
        server.act("/events/4711/cancel").await.error(404, "event_not_found");
    }

    async fn one_subscription_can_be_left_out(server) {
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
}
