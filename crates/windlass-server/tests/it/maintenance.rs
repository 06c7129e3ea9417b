//! Maintenance tasks of the server.

use serde_json::json;
use windlass_testkit::until;

use crate::harness::{Server, actions};

/// Repeats the attempt and advances the clock, so that every task becomes due.
async fn until_maintained<T>(server: &Server, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    until(async || {
        let found = attempt().await;
        server.advance_secs(60);
        found
    })
    .await
}

on_each_database! {
    async fn expired_leases_are_released_in_every_namespace(server) {
        server.put_namespace("orders").await;
        for prefix in ["", "/namespaces/orders"] {
            let stored = server.post(&format!("{prefix}/events"), &json!({ "title": "t", "tags": "a" })).await.expect(201);
            server.get(&format!("{prefix}/events/subscribe?tags=a&worker_id=w:1")).await.expect(200);
            server.advance_secs(61);
            let path = format!("{prefix}/events/{}?include_logs=true", stored["id"]);
            until_maintained(server, async || {
                let shown = server.get(&path).await.expect(200);
                (shown["status"] == "PENDING" && actions(&shown) == ["PICKED", "ABANDONED"]).then_some(())
            })
            .await;
        }
    }

    async fn events_past_their_deadline_expire(server) {
        let event = json!({ "title": "t", "tags": "a", "expires_at": "2025-12-24T10:31:00Z" });
        let id = server.publish_as(event).await;
        server.advance_secs(61);
        until_maintained(server, async || (server.actions(id).await == ["EXPIRED"]).then_some(())).await;
        assert_eq!(server.status(id).await, "EXPIRED");
        assert_eq!(server.subscribe("a", "w:1").await, None);
    }

    async fn old_nodes_are_pruned(server) {
        server.put("/nodes/n", &json!({})).await.expect(200);
        server.advance_secs(8 * 24 * 3600);
        until_maintained(server, async || server.get("/nodes").await.expect(200)["nodes"].as_array()?.is_empty().then_some(())).await;
    }

    async fn maintenance_runs_are_shown(server) {
        let release = until_maintained(server, async || {
            let shown = server.get("/stats/maintenance").await.expect(200);
            let tasks = shown["tasks"].as_array()?.clone();
            tasks.into_iter().find(|task| task["task"] == "release_expired" && task["runs"] != 0)
        })
        .await;
        assert_eq!((&release["every_ms"], &release["done"], &release["error"]), (&json!(10_000), &json!(0), &json!(null)));
        assert!(release["took_ms"].is_u64() && release["last_run_at"].is_string(), "{release}");
        server.put_namespace("orders").await;
        let other = server.get("/namespaces/orders/stats/maintenance").await.expect(200);
        assert_eq!(other["namespace"], "orders");
    }
}
