//! Test data for all pages.

use serde_json::{Value, json};
use windlass::NewNode;

use crate::harness::Server;

/// HTML that would run if it were not escaped.
pub const UNSAFE_HTML: &str = "<script>alert(1)</script>";

/// Fills the namespace `default`, and returns the id of a dead letter.
pub async fn set(server: &Server) -> i64 {
    subscriptions_and_schedules(server).await;
    server.advance_secs(120);
    let failed = events(server).await;
    nodes(server).await;
    server.advance_secs(400);
    server.queue.fire_schedules_once().await.unwrap();
    server.queue.maintain_once().await.unwrap();
    server.queue.record_consumers_once().await.unwrap();
    failed
}

async fn subscriptions_and_schedules(server: &Server) {
    server.put_namespace("staging").await;
    let patient = json!({ "policy": { "types": { "import.*": { "lease_ms": 3_600_000 } } } });
    server.put("/namespaces/default", &patient).await.expect(200);
    server.post("/subscriptions", &json!({ "subscription": "audit", "types": "order.*, refund.*" })).await.expect(201);
    server.post("/subscriptions", &json!({ "subscription": "search-index", "tags": "catalogue" })).await.expect(201);
    server.act("/subscriptions/search-index/pause").await.expect(200);
    server.act("/pause?type=newsletter.*").await.expect(200);
    for (name, cron, zone) in [
        ("daily report", "0 6 * * MON-FRI", "Europe/Berlin"),
        ("heartbeat of the warehouse", "* * * * *", "UTC"),
        ("stocktaking", "0-30/10 8-17 * * 1-5", "America/Argentina/ComodRivadavia"),
    ] {
        let schedule = json!({
            "name": name, "cron": cron, "timezone": zone, "type": "report.due", "title": "Report of {{tick.date}}",
            "payload": { "day": "{{tick.date}}", "recipients": ["ops@example.org"] }
        });
        server.post("/schedules", &schedule).await.expect(201);
    }
}

async fn events(server: &Server) -> i64 {
    for n in 0..8 {
        let id =
            server.publish_as(json!({ "type": "order.paid", "title": format!("Order {n}"), "tags": "shop" })).await;
        assert_eq!(server.subscribe("shop", "shop-worker:1").await.unwrap()["id"], id);
        server.complete(id, "shop-worker:1").await.expect(200);
    }
    server.publish_as(json!({ "type": "order.shipped", "group_id": "order-7", "tags": "warehouse" })).await;
    server.publish_as(json!({ "type": "order.shipped", "group_id": "order-7", "tags": "warehouse" })).await;
    server
        .publish_as(json!({ "type": "newsletter.sent", "title": "The news of a long and eventful week. ".repeat(10) }))
        .await;
    server.publish_as(json!({ "type": "page.changed", "tags": "catalogue", "delay_ms": 3_600_000 })).await;
    let long = "a-type-with-a-name-that-is-as-long-as-they-come.and-then-some.and-more.and-even-more.created";
    server.publish_as(json!({ "type": long, "title": UNSAFE_HTML, "payload": { "html": UNSAFE_HTML } })).await;
    server.publish_as(json!({ "type": "import.run", "title": "Import", "tags": "import" })).await;
    assert!(server.subscribe("import", "importer@build-host-17.example.org:4711").await.is_some());
    failed(server).await
}

async fn failed(server: &Server) -> i64 {
    let payment = json!({ "type": "payment.settle", "title": "Settle order 7", "payload": { "order": 7 } });
    let id = server.publish_as(payment).await;
    assert_eq!(server.claim_ids(&json!({ "worker_id": "pay:1", "types": "payment.*" })).await, [id]);
    let report = json!({
        "worker_id": "pay:1", "retry": false, "status_code": 502, "execution_time_ms": 2_150,
        "error_message": "the bank did not answer: 502 Bad Gateway"
    });
    server.post(&format!("/events/{id}/fail"), &report).await.expect(200);
    id
}

async fn nodes(server: &Server) {
    let shop = NewNode::new("shop-api-1").display_name("Shop").event_types(["order.paid", "order.shipped"]);
    server.queue.register_node(shop).await.unwrap();
    server.queue.register_node(NewNode::new("mailer-2").description("Sends what customers read")).await.unwrap();
    server.queue.stop_node("mailer-2").await.unwrap();
}

/// Creates many dead letters of one type, as a broken dependency would.
pub async fn dead_letters(server: &Server, count: usize) {
    let events: Vec<Value> = (0..count).map(|n| json!({ "type": "mail.send", "payload": { "n": n } })).collect();
    server.post("/events/batch", &json!({ "events": events })).await.expect(201);
    let claim = json!({ "worker_id": "mail:1", "types": "mail.send", "max": count });
    let taken = server.claim(&claim).await;
    assert_eq!(taken.len(), count);
    let failures: Vec<Value> = taken
        .iter()
        .map(|event| {
            let (id, lease) = (&event["id"], &event["lease"]);
            json!({ "event_id": id, "lease": lease, "outcome": "fail", "retry": false, "error_message": "no route to mail.example.org" })
        })
        .collect();
    server.post("/events/finish", &json!({ "worker_id": "mail:1", "items": failures })).await.expect(200);
}
