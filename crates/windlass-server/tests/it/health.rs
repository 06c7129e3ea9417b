//! `/healthz`, `/readyz` and `/metrics`.

use serde_json::json;

on_each_database! {
    async fn liveness_does_not_depend_on_the_database(server) {
        let ok = json!({ "status": "ok" });
        assert_eq!(server.get("/healthz").await.expect(200), ok);
        assert_eq!(server.get("/readyz").await.expect(200), ok);
        server.queue.close().await;
        assert_eq!(server.get("/healthz").await.expect(200), ok);
        let response = server.get("/readyz").await;
        assert_eq!(response.error(503, "closed"), "the server is closing its database");
        assert_eq!(response.header("retry-after"), Some("1"));
    }

    async fn requests_are_counted(server) {
        server.publish("a").await;
        server.get("/nowhere").await.error(404, "unknown_path");
        let metrics = server.get("/metrics").await;
        assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        for line in [
            "windlass_http_requests_total{method=\"POST\",path=\"/events\",status=\"201\"} 1",
            "windlass_http_requests_total{method=\"GET\",path=\"none\",status=\"404\"} 1",
            "windlass_http_connections_refused_total 0",
            "windlass_http_waiting_claims 0",
        ] {
            assert!(metrics.body.lines().any(|found| found == line), "{line}: {}", metrics.body);
        }
    }
}
