//! `/doctor`.

use serde_json::{Value, json};
use windlass::{NewToken, Scope};
use windlass_server::Access;
use windlass_testkit::until;

use crate::harness::Server;

/// The finding of one check.
async fn finding(server: &Server, check: &str) -> Value {
    let answer = server.get("/doctor").await.expect(200);
    let findings = answer["findings"].as_array().unwrap().iter();
    findings.clone().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("no '{check}'")).clone()
}

async fn level(server: &Server, check: &str) -> Value {
    finding(server, check).await["level"].clone()
}

on_each_database! {
    async fn finding_has_summary_and_advice(server) {
        server.put_namespace("orders").await;
        assert_eq!(level(server, "paused").await, "ok");
        server.act("/namespaces/orders/pause").await.expect(200);
        let expected = json!({
            "check": "paused", "level": "notice", "summary": "1 paused: namespace 'orders'",
            "advice": "to resume: `windlass namespace resume orders`"
        });
        assert_eq!(finding(server, "paused").await, expected);
        server.act("/namespaces/orders/resume").await.expect(200);
        assert_eq!(level(server, "paused").await, "ok");
    }

    async fn overall_level_is_the_worst_finding(server) {
        let answer = server.get("/doctor").await.expect(200);
        let rank = |level: &Value| ["ok", "notice", "warning", "problem"].iter().position(|name| level == name).unwrap();
        let findings = answer["findings"].as_array().unwrap();
        let worst = findings.iter().map(|finding| rank(&finding["level"])).max().unwrap();
        assert_eq!(rank(&answer["level"]), worst);
        assert!(findings.len() > 15, "{findings:?}");
    }

    async fn open_access_is_reported(server) {
        assert_eq!(level(server, "access").await, "ok");
        server.restart_with(|options| options.access = Access::Open).await;
        let found = finding(server, "access").await;
        assert_eq!((&found["level"], found["advice"].is_string()), (&json!("warning"), true));
    }

    async fn token_limited_to_namespaces_cannot_diagnose(server) {
        let bound = NewToken::new([Scope::Admin]).namespaces(["default"]);
        let bound = server.queue.create_token(bound).await.unwrap().secret;
        let whole = server.queue.create_token(NewToken::new([Scope::Read])).await.unwrap().secret;
        let ask = async |token: &str| {
            server.send("GET", "/doctor", &format!("authorization: Bearer {token}\r\n"), "").await
        };
        until(async || (server.get("/doctor").await.status == 401).then_some(())).await;
        let error = ask(&bound).await.error(403, "other_namespace");
        assert_eq!(error, "the token is for some namespaces only, and this is about all of them");
        ask(&whole).await.expect(200);
    }

    async fn closed_queue_is_an_error(server) {
        server.queue.close().await;
        server.get("/doctor").await.error(503, "closed");
    }
}
