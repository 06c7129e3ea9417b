//! The overview.

use serde_json::json;
use windlass_testkit::until;

use super::{Browser, html, location};
use crate::harness::Server;

/// Waits until the overview contains these texts. Its data is cached for half a second.
async fn until_shows(server: &Server, texts: &[&str]) -> String {
    until(async || {
        let body = html(&Browser::without_token().get(server, "/ui/default").await, 200).to_owned();
        texts.iter().all(|text| body.contains(text)).then_some(body)
    })
    .await
}

on_each_database! {
    async fn overview_shows_numbers_attention_and_types(server) {
        server.publish_dead("order.paid").await;
        server.publish_claimed("a").await;
        server.publish_as(json!({ "type": "order.paid", "delay_ms": 60_000 })).await;
        server.publish_as(json!({ "type": "mail" })).await;
        server.queue.register_node(windlass::NewNode::new("shop-1")).await.unwrap();
        let body = until_shows(server, &["1 dead letter in the last hour.", "/ui/default/events?type=order.paid"]).await;
        let number = |label: &str| {
            let after = body.split(&format!(">{label}</a>")).nth(1).unwrap();
            after.split("value num\">").nth(1).unwrap().split('<').next().unwrap().to_owned()
        };
        let labels = ["Waiting", "Running", "Later", "Dead letters", "Completed", "Failed"];
        assert_eq!(labels.map(number), ["1", "1", "1", "1", "0", "1"], "{body}");
        assert!(body.contains(">1 delayed<"), "{body}");
        server.queue.pause().await.unwrap();
        server.queue.pause_type("x.*").await.unwrap();
        server.advance_secs(900);
        let texts = ["The namespace is paused", "Paused types: x.*.", "node is silent: shop-1.", "has been ready for 15 min and was not claimed"];
        until_shows(server, &texts).await;
    }

    async fn charts_show_samples(server) {
        let none = until_shows(server, &["Throughput"]).await;
        assert!(none.contains("Nothing in this time"), "{none}");
        server.publish_claimed("a").await;
        server.advance_secs(60);
        let body = until_shows(server, &["published 1/min"]).await;
        assert!(body.contains("role=\"img\"") && body.contains("<desc") && body.contains("class=\"line tone-2\""), "{body}");
        for range in ["1h", "6h", "24h", "7d"] {
            let response = Browser::without_token().get(server, &format!("/ui/default?range={range}")).await;
            assert!(html(&response, 200).contains(&format!("?range={range}\" aria-current")), "{range}");
        }
    }

    async fn namespace_is_paused_and_resumed(server) {
        let browser = Browser::without_token();
        for (verb, paused) in [("pause", true), ("resume", false)] {
            let path = format!("/ui/default/{verb}");
            assert!(html(&browser.get(server, "/ui/default").await, 200).contains(&format!("action=\"{path}\"")));
            assert!(html(&browser.post(server, &path, "").await, 200).contains("the namespace default?"));
            assert_eq!(server.queue.describe().await.unwrap().paused, !paused);
            assert_eq!(location(&browser.post(server, &path, "confirmed=yes").await), "/ui/default");
            assert_eq!(server.queue.describe().await.unwrap().paused, paused);
        }
    }
}
