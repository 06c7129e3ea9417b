//! `GET /events/{id}/explain`.

use serde_json::{Value, json};

on_each_database! {
    async fn group_wait_names_the_event_ahead(server) {
        let first = server.publish_as(json!({ "title": "t", "group_id": "g" })).await;
        let second = server.publish_as(json!({ "title": "t", "group_id": "g" })).await;
        let explanation = server.get(&format!("/events/{second}/explain")).await.expect(200);
        assert_eq!(explanation, json!({
            "reason": "behind_group", "until": null, "behind": first,
            "sentence": format!("It waits in its group behind event {first}, which has not been claimed yet."),
            "advice": format!("See event {first}: when it has finished, this one can run."),
        }));
    }

    async fn explanation_knows_which_consumers_match(server) {
        let id = server.publish_as(json!({ "type": "order.paid", "tags": "email" })).await;
        let reason = async || server.get(&format!("/events/{id}/explain")).await.expect(200)["reason"].clone();
        assert_eq!(reason().await, "no_worker");
        server.claim(&json!({ "worker_id": "w:1", "types": "user.*" })).await;
        server.queue.record_consumers_once().await.unwrap();
        assert_eq!(reason().await, "no_worker");
        let workers = server.get("/workers?include_consumers=true").await.expect(200);
        let consumer = &workers["consumers"][0];
        assert_eq!((&consumer["worker_id"], &consumer["types"], &consumer["tags"]), (&json!("w:1"), &json!(["user.*"]), &json!([])));
        assert_eq!((&consumer["subscription"], &consumer["seen_at"]), (&json!("main"), &json!("2025-12-24T10:30:00Z")));
        assert_eq!(server.get("/workers").await.expect(200)["consumers"], Value::Null);
        server.claim(&json!({ "worker_id": "w:2", "types": "order.*", "tags": "sms,email" })).await;
        server.post(&format!("/events/{id}/release"), &json!({ "worker_id": "w:2" })).await.expect(200);
        server.queue.record_consumers_once().await.unwrap();
        assert_eq!(reason().await, "about_to_run");
    }

    async fn unknown_event_is_not_explained(server) {
        server.get("/events/4711/explain").await.error(404, "event_not_found");
        let id = server.publish("a").await;
        server.get(&format!("/events/{id}/explain?subscription=nobody")).await.error(404, "subscription_not_found");
        assert_eq!(server.get("/events/x/explain").await.bad_field(), "id");
    }
}
