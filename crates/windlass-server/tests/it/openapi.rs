//! `/openapi.json`: it is complete and matches the server.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{JSON, Server};

/// Every operation: method, path and description.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            all.push((method.to_uppercase(), path.clone(), operation.clone()));
        }
    }
    all
}

async fn document(server: &Server) -> Value {
    server.get("/openapi.json").await.expect(200)
}

/// Calls `see` for every object in the value.
fn walk(value: &Value, see: &mut impl FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            see(object);
            object.values().for_each(|value| walk(value, see));
        }
        Value::Array(list) => list.iter().for_each(|value| walk(value, see)),
        _ => {}
    }
}

/// The schema of an operation's request body.
fn body_schema<'a>(document: &'a Value, operation: &'a Value) -> Option<&'a Value> {
    let schema = operation.pointer("/requestBody/content/application~1json/schema")?;
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')),
        None => Some(schema),
    }
}

/// The operations within a namespace.
const WITHIN: [&str; 53] = [
    "DELETE /dead-letters/{id}",
    "DELETE /nodes/{node_id}",
    "DELETE /schedules/{schedule_id}",
    "DELETE /subscriptions/{subscription}",
    "GET /dead-letters",
    "GET /dead-letters/{id}",
    "GET /events",
    "GET /events/search",
    "GET /events/stream",
    "GET /events/subscribe",
    "GET /events/{id}",
    "GET /events/{id}/explain",
    "GET /nodes",
    "GET /samples",
    "GET /schedules",
    "GET /schedules/preview",
    "GET /schedules/{schedule_id}",
    "GET /schedules/{schedule_id}/fires",
    "GET /stats",
    "GET /stats/maintenance",
    "GET /stuck",
    "GET /subscriptions",
    "GET /subscriptions/{subscription}",
    "GET /workers",
    "POST /dead-letters/purge",
    "POST /dead-letters/redrive",
    "POST /dead-letters/{id}/redrive",
    "POST /events",
    "POST /events/batch",
    "POST /events/cancel",
    "POST /events/claim",
    "POST /events/finish",
    "POST /events/{id}/cancel",
    "POST /events/{id}/complete",
    "POST /events/{id}/fail",
    "POST /events/{id}/heartbeat",
    "POST /events/{id}/release",
    "POST /events/{id}/reset",
    "POST /events/{id}/snooze",
    "POST /events/{id}/start",
    "POST /nodes/{node_id}/heartbeat",
    "POST /pause",
    "POST /resume",
    "POST /schedules",
    "POST /schedules/{schedule_id}/pause",
    "POST /schedules/{schedule_id}/resume",
    "POST /schedules/{schedule_id}/run",
    "POST /subscriptions",
    "POST /subscriptions/{subscription}/pause",
    "POST /subscriptions/{subscription}/resume",
    "PUT /nodes/{node_id}",
    "PUT /schedules/{schedule_id}",
    "PUT /schedules/{schedule_id}/runner",
];

/// The operations that exist only at the root.
const OUTSIDE: [&str; 7] = [
    "GET /doctor",
    "GET /healthz",
    "GET /metrics",
    "GET /namespaces",
    "GET /namespaces/{namespace}",
    "GET /readyz",
    "PUT /namespaces/{namespace}",
];

on_each_database! {
    async fn document_lists_exactly_the_known_paths(server) {
        let document = document(server).await;
        let found: BTreeSet<String> = operations(&document).into_iter().map(|(m, path, _)| format!("{m} {path}")).collect();
        let nested = |line: &&str| line.replacen(" /", " /namespaces/{namespace}/", 1);
        let mut expected: BTreeSet<String> = WITHIN.iter().map(nested).collect();
        expected.extend(WITHIN.iter().chain(&OUTSIDE).map(|line| (*line).to_owned()));
        assert_eq!(found, expected);
    }

    async fn every_operation_is_complete(server) {
        let document = document(server).await;
        assert_eq!(document["openapi"], "3.1.0");
        assert!(document["info"]["title"].is_string() && document["info"]["version"].is_string());
        let mut ids = BTreeSet::new();
        for (method, path, operation) in operations(&document) {
            let place = format!("{method} {path}");
            assert!(ids.insert(operation["operationId"].as_str().expect(&place).to_owned()), "{place}");
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{place}");
            assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{place}");
            let security = operation["security"][0].as_object().expect(&place);
            let open = matches!(path.as_str(), "/healthz" | "/readyz");
            assert_eq!(security.is_empty(), open, "{place}");
            assert!(open || security["token"].as_array().is_some_and(|scopes| scopes.len() == 1), "{place}");
        }
        assert!(document["components"]["securitySchemes"]["token"].is_object());
    }

    async fn every_reference_resolves(server) {
        let document = document(server).await;
        let mut references = 0;
        walk(&document, &mut |object| {
            if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
                references += 1;
                assert!(document.pointer(reference.strip_prefix('#').unwrap()).is_some(), "{reference}");
            }
        });
        assert!(references > 100, "{references}");
    }

    async fn error_responses_use_the_error_schema(server) {
        for (method, path, operation) in operations(&document(server).await) {
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(response["description"].is_string(), "{method} {path} {status}");
                let schema = response.pointer("/content/application~1json/schema/$ref");
                let expected = json!("#/components/schemas/ErrorBody");
                assert_eq!(schema == Some(&expected), status.as_str() >= "400", "{method} {path} {status}");
            }
        }
    }

    async fn path_parameters_are_declared(server) {
        for (method, path, operation) in operations(&document(server).await) {
            let in_path: BTreeSet<&str> = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            let params = operation["parameters"].as_array().into_iter().flatten().filter(|param| param["in"] == "path");
            let declared: Vec<&str> = params.map(|param| param["name"].as_str().unwrap()).collect();
            assert_eq!(declared.len(), in_path.len(), "{method} {path}");
            assert_eq!(declared.into_iter().collect::<BTreeSet<_>>(), in_path, "{method} {path}");
        }
    }

    async fn every_documented_path_is_served(server) {
        let event = server.publish_claimed("a").await.to_string();
        for (method, path, operation) in operations(&document(server).await) {
            if path.ends_with("/events/stream") {
                // The stream is endless; stream.rs tests it.
                continue;
            }
            let filled = path.replace("{namespace}", "default").replace("{id}", &event).replace("{subscription}", "main");
            let has_body = operation["requestBody"].is_object();
            let (headers, body) = if has_body { (JSON, "{}") } else { ("", "") };
            let response = server.send(&method, &filled, headers, body).await;
            let code = serde_json::from_str::<Value>(&response.body).map_or(Value::Null, |body| body["code"].clone());
            assert!(code != "unknown_path" && response.status != 405, "{method} {path}: {response:?}");
            let documented = operation["responses"].get(response.status.to_string()).is_some();
            assert!(documented, "{method} {path}: {response:?}");
        }
    }

    async fn request_body_examples_are_accepted(server) {
        server.post("/subscriptions", &json!({ "subscription": "other" })).await.expect(201);
        let schedule = json!({ "name": "a", "cron": "@daily", "type": "t" });
        let schedule = server.post("/schedules", &schedule).await.expect(201)["id"].clone();
        let document = document(server).await;
        let mut tried = 0;
        for (method, path, operation) in operations(&document) {
            let Some(example) = body_schema(&document, &operation).and_then(|schema| schema.get("example")) else { continue };
            // The worker in the example does not hold the event, so the request is valid but refused.
            let filled = path.replace("{namespace}", "default").replace("{id}", "1").replace("{subscription}", "other");
            let filled = filled.replace("{schedule_id}", schedule.as_str().unwrap());
            let response = server.send(&method, &filled, JSON, &example.to_string()).await;
            let understood = matches!(response.status, 200 | 201) || matches!(response.json()["code"].as_str(), Some("event_not_found" | "lost" | "exists"));
            assert!(understood, "{method} {path} {example}: {response:?}");
            tried += 1;
        }
        assert!(tried >= 29, "{tried}");
    }

    async fn documented_query_parameters_are_accepted(server) {
        for (method, path, operation) in operations(&document(server).await) {
            let params = operation["parameters"].as_array().into_iter().flatten().filter(|param| param["in"] == "query");
            for param in params.filter(|_| !path.ends_with("/stream")) {
                let name = param["name"].as_str().unwrap();
                let filled = path.replace("{namespace}", "default").replace("{id}", "1").replace("{subscription}", "main");
                // No value is valid for every parameter. An unknown parameter is refused by name.
                let response = server.send(&method, &format!("{filled}?{name}=%00"), "", "").await;
                assert!(!response.body.contains("unknown field"), "{method} {path} {name}: {response:?}");
                assert_ne!(response.status, 500, "{method} {path} {name}: {response:?}");
            }
        }
    }
}
