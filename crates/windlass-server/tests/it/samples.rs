//! `GET /samples`.

use serde_json::{Value, json};

use crate::harness::Server;

/// The samples without depth and age of the queue, which depend on when the maintenance task ran.
async fn samples(server: &Server, path: &str) -> Vec<Value> {
    let mut answer = server.get(path).await.expect(200);
    let samples = answer["samples"].as_array_mut().unwrap();
    for sample in samples.iter_mut().map(|sample| sample.as_object_mut().unwrap()) {
        let (depth, oldest_ms) = (sample.remove("depth").unwrap(), sample.remove("oldest_ms").unwrap());
        assert!(depth.is_null() && oldest_ms.is_null() || depth.is_u64() && oldest_ms.is_u64(), "{depth} {oldest_ms}");
    }
    samples.clone()
}

async fn publish(server: &Server, prefix: &str, event_type: &str) {
    server.post(&format!("{prefix}/events"), &json!({ "type": event_type })).await.expect(201);
}

on_each_database! {
    async fn samples_count_activity_per_minute(server) {
        publish(server, "", "a").await;
        publish(server, "", "b").await;
        server.advance_secs(60);
        publish(server, "", "a").await;
        let taken = server.post("/events/claim", &json!({ "worker_id": "w", "max": 3 })).await.expect(200);
        assert_eq!(taken["events"].as_array().unwrap().len(), 3);
        server.advance_secs(4);
        server.post("/events/1/complete", &json!({ "worker_id": "w" })).await.expect(200);
        server.post("/events/2/fail", &json!({ "worker_id": "w", "error_message": "no" })).await.expect(200);
        let first = json!({
            "at": "2025-12-24T10:30:00Z", "span_ms": 60_000, "type": null, "published": 2, "completed": 0, "failed": 0,
            "retried": 0, "expired": 0, "cancelled": 0, "wait_ms": null, "run_ms": null
        });
        let second = json!({
            "at": "2025-12-24T10:31:00Z", "span_ms": 60_000, "type": null, "published": 1, "completed": 1, "failed": 0,
            "retried": 1, "expired": 0, "cancelled": 0,
            "wait_ms": { "count": 3, "p50": 51_139.7, "p95": 64_096.4, "p99": 65_248.1 },
            "run_ms": { "count": 2, "p50": 3_496.2, "p95": 4_036.0, "p99": 4_084.0 }
        });
        let found = samples(server, "/samples").await;
        assert_eq!(found[0], first);
        assert_eq!(found[1], second);
        assert_eq!(found.len(), 2);
    }

    async fn samples_are_filtered_by_time_type_and_step(server) {
        publish(server, "", "order.paid").await;
        server.advance_secs(60);
        publish(server, "", "order.sent").await;
        publish(server, "", "mail").await;
        let published = async |query: &str| {
            let found = samples(server, &format!("/samples?{query}")).await;
            found.iter().map(|sample| (sample["type"].clone(), sample["published"].as_u64().unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(published("").await, [(Value::Null, 1), (Value::Null, 2)]);
        assert_eq!(published("step_ms=600000").await, [(Value::Null, 3)]);
        assert_eq!(published("step_ms=600000&types=order.*").await, [(Value::Null, 2)]);
        assert_eq!(published("step_ms=600000&types=mail,order.sent").await, [(Value::Null, 2)]);
        assert_eq!(published("from=2025-12-24T10:31:00Z").await, [(Value::Null, 2)]);
        assert_eq!(published("until=2025-12-24T10:31:00Z").await, [(Value::Null, 1)]);
        let by_type = [(json!("mail"), 1), (json!("order.paid"), 1), (json!("order.sent"), 1)];
        assert_eq!(published("step_ms=3600000&by_type=true").await, by_type);
    }

    async fn namespaces_are_separate(server) {
        server.put_namespace("orders").await;
        publish(server, "/namespaces/orders", "t").await;
        assert_eq!(samples(server, "/samples").await, Vec::<Value>::new());
        assert_eq!(samples(server, "/namespaces/orders/samples").await.len(), 1);
        server.get("/namespaces/nowhere/samples").await.error(404, "namespace_not_found");
    }

    async fn invalid_sample_queries_are_refused(server) {
        for (query, named) in [
            ("step_ms=1000", "step_ms"),
            ("step_ms=-1", "step_ms"),
            ("step_ms=18446744073709551615", "step_ms"),
            ("from=2025-01-01T00:00:00Z", "step_ms"),
            ("from=yesterday", "from"),
            ("from=2025-12-24T10:30:00Z&until=2025-12-24T10:30:00Z", "from"),
            ("types=a*b", "types"),
            ("by_type=perhaps", "by_type"),
            ("step=60000", "step"),
        ] {
            let error = server.get(&format!("/samples?{query}")).await.error(400, "invalid");
            assert!(error.contains(named), "{query}: {error}");
        }
        let ever = "/samples?from=0000-01-01T00:00:00Z&until=9999-12-31T23:59:59Z&step_ms=34560000000";
        assert_eq!(samples(server, ever).await, Vec::<Value>::new());
    }
}
