//! Dead letters: list, redrive, purge.

use serde_json::{Value, json};

use super::{Browser, html, location};
use crate::harness::Server;

async fn page(server: &Server, query: &str) -> String {
    html(&Browser::without_token().get(server, &format!("/ui/default/dead-letters{query}")).await, 200).to_owned()
}

async fn total(server: &Server) -> Value {
    server.get("/dead-letters").await.expect(200)["total"].clone()
}

/// Creates this many dead letters of this type.
async fn create_dead_letters(server: &Server, event_type: &str, many: usize) {
    let events: Vec<_> = (0..many).map(|n| json!({ "type": event_type, "payload": n })).collect();
    server.post("/events/batch", &json!({ "events": events })).await.expect(201);
    let claim = json!({ "worker_id": "w:1", "types": event_type, "max": 1_000 });
    loop {
        let taken = server.claim_ids(&claim).await;
        if taken.is_empty() {
            return;
        }
        let fail = |id: i64| json!({ "event_id": id, "outcome": "fail", "retry": false, "error_message": "no" });
        let items: Vec<_> = taken.into_iter().map(fail).collect();
        server.post("/events/finish", &json!({ "worker_id": "w:1", "items": items })).await.expect(200);
    }
}

on_each_database! {
    async fn dead_letters_are_listed_with_their_groups(server) {
        let mail = server.publish_dead("mail").await;
        server.publish_dead("order.paid").await;
        server.publish_dead("order.paid").await;
        let body = page(server, "").await;
        assert!(body.contains("3 in all") && body.contains("Redrive all 3") && body.contains("Delete all 3"), "{body}");
        assert!(body.contains("/ui/default/dead-letters?type=order.paid&#38;reason=Handler+error"), "{body}");
        let body = page(server, "?type=mail&reason=Handler+error").await;
        assert!(body.contains("1 match") && body.contains(&format!("/ui/default/events/{mail}\"")), "{body}");
        assert!(page(server, "?reason=Other").await.contains("No dead letter matches"));
        assert!(page(server, "?status=EXPIRED").await.contains("No dead letter matches"));
        assert!(page(server, "?until=2025-12-24T10:30").await.contains("No dead letter matches"));
    }

    async fn thousands_are_redriven_by_one_confirmation(server) {
        create_dead_letters(server, "order.paid", 1_200).await;
        create_dead_letters(server, "mail", 2).await;
        assert_eq!(total(server).await, 1_202);
        let browser = Browser::without_token();
        let form = "what=matching&type=order.*&back=%2Fui%2Fdefault%2Fdead-letters%3Ftype%3Dorder.*";
        let asked = browser.post(server, "/ui/default/dead-letters/redrive", form).await;
        assert!(html(&asked, 200).contains("Redrive 1,200 dead letters?"), "{asked:?}");
        assert_eq!(total(server).await, 1_202);
        let done = browser.post(server, "/ui/default/dead-letters/redrive", &format!("{form}&confirmed=yes")).await;
        assert_eq!(location(&done), "/ui/default/dead-letters?type=order.*");
        assert_eq!(total(server).await, 2);
        assert_eq!(server.get("/events?status=PENDING").await.expect(200)["total"], 1_200);
        assert!(page(server, "").await.contains("1–2 of 2"));
    }

    async fn later_dead_letters_are_not_purged(server) {
        server.publish_dead("a").await;
        let browser = Browser::without_token();
        let asked = browser.post(server, "/ui/default/dead-letters/purge", "what=matching").await;
        let body = html(&asked, 200);
        assert!(body.contains("Delete 1 dead letter?"), "{body}");
        let at = body.split("name=\"asked_at\" value=\"").nth(1).unwrap().split('"').next().unwrap();
        let at = at.replace("&#43;", "%2B").replace('+', "%2B");
        server.advance_secs(60);
        let later = server.publish_dead("a").await;
        let form = format!("what=matching&asked_at={at}&confirmed=yes");
        browser.post(server, "/ui/default/dead-letters/purge", &form).await;
        assert_eq!(total(server).await, 1);
        assert_eq!(server.get("/dead-letters").await.expect(200)["dead_letters"][0]["event_id"], later);
    }

    async fn selection_is_redriven_for_its_subscription(server) {
        server.post("/subscriptions", &json!({ "subscription": "audit" })).await.expect(201);
        let [one, two] = [server.publish_dead("a").await, server.publish_dead("a").await];
        assert_eq!(server.claim(&json!({ "worker_id": "w:1", "subscription": "audit", "max": 2 })).await.len(), 2);
        for id in [one, two] {
            let report = json!({ "worker_id": "w:1", "subscription": "audit", "retry": false, "error_message": "no" });
            server.post(&format!("/events/{id}/fail"), &report).await.expect(200);
        }
        assert_eq!(total(server).await, 4);
        let browser = Browser::without_token();
        let form = format!("id={one}%3Amain&id={two}%3Aaudit");
        let asked = browser.post(server, "/ui/default/dead-letters/redrive", &form).await;
        assert!(html(&asked, 200).contains("Redrive 2 dead letters?"), "{asked:?}");
        browser.post(server, "/ui/default/dead-letters/redrive", &format!("{form}&confirmed=yes")).await;
        let left = server.get("/dead-letters").await.expect(200);
        let mut left: Vec<_> = left["dead_letters"].as_array().unwrap().iter().map(|letter| (letter["event_id"].as_i64().unwrap(), letter["subscription"].as_str().unwrap())).collect();
        left.sort_unstable();
        assert_eq!(left, [(one, "audit"), (two, "main")]);
        let none = browser.post(server, "/ui/default/dead-letters/purge", "what=selected").await;
        assert!(html(&none, 400).contains("select at least one dead letter first"));
    }
}
