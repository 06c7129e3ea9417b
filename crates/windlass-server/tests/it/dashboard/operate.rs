//! Nodes, subscriptions, types, namespaces and policies: pages and forms.

use serde_json::json;
use windlass::{NewNode, NewToken, Scope};
use windlass_testkit::until;

use super::{Browser, html, location};

on_each_database! {
    async fn stuck_events_are_reset(server) {
        let patient = json!({ "policy": { "lease_ms": 3_600_000 } });
        server.put("/namespaces/default", &patient).await.expect(200);
        let (first, second) = (server.publish_claimed("a").await, server.publish_claimed("b").await);
        let browser = Browser::without_token();
        assert!(html(&browser.get(server, "/ui/default/nodes").await, 200).contains("Nothing is stuck"));
        server.advance_secs(600);
        let page = browser.get(server, "/ui/default/nodes").await;
        let body = html(&page, 200);
        assert!(body.contains(&format!("value=\"{first}/main\"")) && body.contains("10 min ago"), "{body}");
        // Workers are cached, so the page may show the previous state.
        let is_stale = async || browser.get(server, "/ui/default/nodes").await.body.contains(">stale<").then_some(());
        until(is_stale).await;
        assert!(html(&browser.get(server, "/ui/default/nodes?minutes=15").await, 200).contains("Nothing is stuck"));

        let form = format!("id={first}%2Fmain&id={second}%2Fmain&minutes=5");
        let asked = browser.post(server, "/ui/default/nodes", &form).await;
        assert!(html(&asked, 200).contains("Reset 2 events?"), "{asked:?}");
        assert_eq!(server.status(first).await, "PROCESSING");
        server.complete(second, "w:1").await.expect(200);
        let done = browser.post(server, "/ui/default/nodes", &format!("{form}&confirmed=yes")).await;
        assert_eq!(location(&done), "/ui/default/nodes?minutes=5");
        assert!(done.header("set-cookie").unwrap().contains("1%20event%20reset"), "{done:?}");
        assert_eq!((server.status(first).await, server.status(second).await), ("PENDING".into(), "COMPLETED".into()));
        html(&browser.post(server, "/ui/default/nodes", "id=x&confirmed=yes").await, 400);
    }

    async fn nodes_page_shows_liveness(server) {
        let node = |id: &str| NewNode::new(id).event_types(["order.*"]).description("<b>bold</b>");
        server.queue.register_node(node("old")).await.unwrap();
        server.queue.register_node(node("gone")).await.unwrap();
        server.queue.stop_node("gone").await.unwrap();
        server.advance_secs(100);
        server.queue.register_node(node("new")).await.unwrap();
        let page = Browser::without_token().get(server, "/ui/default/nodes").await;
        let body = html(&page, 200);
        for word in [">alive<", ">silent<", ">stopped<", "order.*", "3 nodes"] {
            assert!(body.contains(word), "{word}: {body}");
        }
        assert!(!body.contains("<b>bold"), "{body}");
    }

    async fn nodes_page_shows_consumers(server) {
        assert!(server.claim(&json!({ "worker_id": "w:7", "types": "order.*", "tags": "eu" })).await.is_empty());
        server.queue.record_consumers_once().await.unwrap();
        let browser = Browser::without_token();
        let page = browser.get(server, "/ui/default/nodes").await;
        let body = html(&page, 200);
        for word in [">order.*<", ">eu<", ">w:7<", ">active<"] {
            assert!(body.contains(word), "{word}: {body}");
        }
        server.advance_secs(120);
        assert!(html(&browser.get(server, "/ui/default/nodes").await, 200).contains(">inactive<"));
    }

    async fn subscriptions_are_added_paused_and_removed(server) {
        let (browser, path) = (Browser::without_token(), "/ui/default/subscriptions");
        let add = "action=add&subscription=audit&types=order.*%2C%20refund.paid&tags=eu&hours=24";
        assert_eq!(location(&browser.post(server, path, add).await), path);
        let added = server.get("/subscriptions/audit").await.expect(200);
        assert_eq!((&added["types"], &added["tags"]), (&json!(["order.*", "refund.paid"]), &json!(["eu"])));
        assert_eq!(added["starts_at"], "2025-12-23T10:30:00Z");
        let again = browser.post(server, path, add).await;
        let again = html(&again, 400);
        assert!(again.contains("already exists") && again.contains("value=\"audit\""), "{again}");
        html(&browser.post(server, path, "action=add&subscription=a%2Fb").await, 400);
        html(&browser.post(server, path, "action=add&subscription=b&hours=x").await, 400);
        html(&browser.post(server, path, "action=add&subscription=b&hours=4000000000").await, 400);

        let asked = browser.post(server, path, "action=pause&name=audit").await;
        assert!(html(&asked, 200).contains("Pause the subscription “audit”?"));
        assert_eq!(server.get("/subscriptions/audit").await.expect(200)["paused"], false);
        location(&browser.post(server, path, "action=pause&name=audit&confirmed=yes").await);
        assert_eq!(server.get("/subscriptions/audit").await.expect(200)["paused"], true);
        location(&browser.post(server, path, "action=resume&name=audit&confirmed=yes").await);
        assert_eq!(server.get("/subscriptions/audit").await.expect(200)["paused"], false);
        assert!(html(&browser.post(server, path, "action=remove&name=audit").await, 200).contains("Remove"));
        location(&browser.post(server, path, "action=remove&name=audit&confirmed=yes").await);
        server.get("/subscriptions/audit").await.error(404, "subscription_not_found");
        html(&browser.post(server, path, "action=pause&name=audit&confirmed=yes").await, 404);
        html(&browser.post(server, path, "action=explode&name=audit").await, 400);
    }

    async fn subscriptions_page_shows_delivery_counts(server) {
        server.publish("a").await;
        server.publish_claimed("b").await;
        server.publish_dead("c").await;
        let page = Browser::without_token().get(server, "/ui/default/subscriptions").await;
        let body = html(&page, 200);
        for cell in ["data-label=\"Waiting\">1<", "data-label=\"Running\">1<", "?subscription=main\">1<"] {
            assert!(body.contains(cell), "{cell}: {body}");
        }
    }

    async fn types_are_paused_and_resumed(server) {
        let (browser, path) = (Browser::without_token(), "/ui/default/subscriptions");
        let paused = async || server.get("/namespaces/default").await.expect(200)["paused_types"].clone();
        html(&browser.post(server, path, "action=pause_type&type=").await, 400);
        assert!(html(&browser.post(server, path, "action=pause_type&type=order.*").await, 200).contains("order.*?"));
        assert_eq!(paused().await, json!([]));
        location(&browser.post(server, path, "action=pause_type&type=order.*&confirmed=yes").await);
        assert_eq!(paused().await, json!(["order.*"]));
        location(&browser.post(server, path, "action=resume_type&name=order.*&confirmed=yes").await);
        assert_eq!(paused().await, json!([]));
    }

    async fn namespaces_are_created_if_the_token_allows(server) {
        let path = "/ui/default/namespaces";
        let new = NewToken::new([Scope::Admin]).namespaces(["default"]);
        let bound = Browser::with_token(&server.queue.create_token(new).await.unwrap().secret);
        let all = Browser::with_token(&super::token(server, [Scope::Admin]).await);
        assert_eq!(location(&all.post(server, path, "name=orders&preset=bus").await), "/ui/orders/settings");
        let made = server.queue.in_namespace("orders").unwrap().describe().await.unwrap();
        assert_eq!(made.policy.base.lease_ms, 300_000);
        for form in ["name=orders", "name=", "name=a%20b", "name=new&preset=nothing"] {
            html(&all.post(server, path, form).await, 400);
        }
        let list = all.get(server, path).await;
        assert!(html(&list, 200).contains("2 namespaces"), "{list:?}");

        html(&bound.post(server, path, "name=others").await, 403);
        assert!(server.queue.in_namespace("others").unwrap().describe().await.is_err());
        let list = bound.get(server, path).await;
        assert!(html(&list, 200).contains("1 namespace<") && !list.body.contains("orders"), "{list:?}");
    }

    async fn policy_is_changed_as_json(server) {
        let (browser, path) = (Browser::without_token(), "/ui/default/settings");
        assert!(html(&browser.get(server, path).await, 200).contains("&#34;lease_ms&#34;: 60000"));
        let form = "policy=%7B%22lease_ms%22%3A%2090000%7D";
        assert!(html(&browser.post(server, path, form).await, 200).contains("Change the policy"));
        assert_eq!(server.queue.describe().await.unwrap().policy.base.lease_ms, 60_000);
        location(&browser.post(server, path, &format!("{form}&confirmed=yes")).await);
        assert_eq!(server.queue.describe().await.unwrap().policy.base.lease_ms, 90_000);
        for bad in ["policy=", "policy=%7B%22lease%22%3A1%7D", "policy=%7B%22lease_ms%22%3A0%7D"] {
            let response = browser.post(server, path, &format!("{bad}&confirmed=yes")).await;
            assert!(html(&response, 400).contains("policy-error"), "{response:?}");
        }
        assert_eq!(server.queue.describe().await.unwrap().policy.base.lease_ms, 90_000);
    }

    async fn maintenance_tasks_are_shown(server) {
        server.queue.maintain_once().await.unwrap();
        let page = Browser::without_token().get(server, "/ui/default/health").await;
        let body = html(&page, 200);
        assert!(body.contains("<code>release_expired</code>") && body.contains(">fine<"), "{body}");
        assert!(body.contains("/ui/default/health/findings"), "{body}");
        let page = Browser::without_token().get(server, "/ui/default/health/findings").await;
        let body = html(&page, 200);
        assert!(body.contains("<code>database</code>") && body.contains("Answers within"), "{body}");
    }
}
