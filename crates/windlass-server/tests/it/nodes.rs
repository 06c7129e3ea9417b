//! `/nodes`.

use serde_json::{Value, json};

use crate::harness::Server;

async fn nodes(server: &Server, prefix: &str) -> Vec<(String, String)> {
    let list = server.get(&format!("{prefix}/nodes")).await.expect(200)["nodes"].clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(|node| (text(&node["node_id"]), text(&node["status"]))).collect()
}

fn pair(id: &str, status: &str) -> (String, String) {
    (id.to_owned(), status.to_owned())
}

on_each_database! {
    // C2
    async fn node_is_registered_and_listed(server) {
        let request = json!({
            "display_name": "Shop API", "description": "Takes orders.", "metadata": { "zone": "b" },
            "event_types": ["order.paid", "a.*"]
        });
        let expected = json!({
            "node_id": "api-1", "display_name": "Shop API", "description": "Takes orders.",
            "metadata": { "zone": "b" }, "event_types": ["a.*", "order.paid"],
            "registered_at": "2025-12-24T10:30:00Z", "last_heartbeat": "2025-12-24T10:30:00Z", "stopped_at": null,
            "status": "alive"
        });
        assert_eq!(server.put("/nodes/api-1", &request).await.expect(200), expected);
        assert_eq!(server.get("/nodes").await.expect(200), json!({ "nodes": [expected] }));
        server.advance_secs(7);
        let again = server.put("/nodes/api-1", &json!({})).await.expect(200);
        assert_eq!((&again["display_name"], &again["metadata"]), (&Value::Null, &json!({})));
        assert_eq!(again["registered_at"], "2025-12-24T10:30:00Z");
        assert_eq!(again["last_heartbeat"], "2025-12-24T10:30:07Z");
    }

    // C2
    async fn silent_node_is_stale_until_its_heartbeat(server) {
        server.put("/nodes/n", &json!({})).await.expect(200);
        server.advance_secs(90);
        assert_eq!(nodes(server, "").await, [pair("n", "stale")]);
        let heartbeat = server.act("/nodes/n/heartbeat").await.expect(200);
        assert_eq!(heartbeat, json!({ "node_id": "n", "last_heartbeat": "2025-12-24T10:31:30Z" }));
        assert_eq!(nodes(server, "").await, [pair("n", "alive")]);
        let stopped = server.delete("/nodes/n").await;
        assert_eq!((stopped.status, stopped.body.as_str()), (204, ""));
        assert_eq!(nodes(server, "").await, [pair("n", "stopped")]);
        server.put("/nodes/n", &json!({})).await.expect(200);
        assert_eq!(nodes(server, "").await, [pair("n", "alive")]);
    }

    async fn namespaces_are_separate(server) {
        server.put_namespace("orders").await;
        server.put("/namespaces/orders/nodes/n", &json!({})).await.expect(200);
        assert_eq!(nodes(server, "").await, []);
        assert_eq!(nodes(server, "/namespaces/orders").await, [pair("n", "alive")]);
        let error = server.act("/nodes/n/heartbeat").await.error(404, "node_not_found");
        assert_eq!(error, "node 'n' is not registered in namespace 'default'");
        server.delete("/nodes/n").await.error(404, "node_not_found");
        server.act("/namespaces/orders/nodes/n/heartbeat").await.expect(200);
        server.put("/namespaces/nowhere/nodes/n", &json!({})).await.error(404, "namespace_not_found");
        server.get("/namespaces/nowhere/nodes").await.error(404, "namespace_not_found");
        server.act("/namespaces/nowhere/nodes/n/heartbeat").await.error(404, "namespace_not_found");
    }

    // C2
    async fn invalid_characters_of_a_node_id_are_replaced(server) {
        assert_eq!(server.put("/nodes/my%20node", &json!({})).await.expect(200)["node_id"], "my-node");
        assert_eq!(server.act("/nodes/my%20node/heartbeat").await.expect(200)["node_id"], "my-node");
        let made_up = server.put("/nodes/%00", &json!({})).await.expect(200)["node_id"].clone();
        assert!(made_up.as_str().unwrap().contains('-'), "{made_up}");
        server.act("/nodes/%00/heartbeat").await.error(404, "node_not_found");
        server.delete("/nodes/%F0%9F%98%80").await.error(404, "node_not_found");
    }

    async fn invalid_node_is_refused(server) {
        for (request, field) in [
            (json!({ "display_name": "\0" }), "display_name"),
            (json!({ "description": "\0" }), "description"),
            (json!({ "metadata": [1] }), "metadata"),
            (json!({ "event_types": "a*b" }), "event_types"),
        ] {
            assert_eq!(server.put("/nodes/n", &request).await.bad_field(), field, "{request}");
        }
        server.put("/nodes/n", &json!({ "name": "x" })).await.error(400, "invalid");
        let long = json!({ "display_name": "x".repeat(1_001) });
        server.put("/nodes/n", &long).await.error(400, "too_large");
        let large = json!({ "metadata": { "a": "x".repeat(20_000) } });
        server.put("/nodes/n", &large).await.error(413, "too_large");
        assert_eq!(nodes(server, "").await, []);
    }
}
