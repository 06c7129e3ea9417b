//! The OpenAPI document: made from the handlers, and completed here with what they all share.

use std::collections::HashMap;

use axum::http::Method;
use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;
use windlass::Scope;

use crate::auth::{Need, Needs};
use crate::error::CODES;

const DESCRIPTION: &str = "\
A durable, at-least-once event queue and bus in your own relational database. Every path that is about events is there \
twice: at the root for the namespace `default`, and under `/namespaces/{namespace}` for any.";

/// What can happen to any request; with a body, more.
const ERRORS: [(&str, &str); 6] = [
    ("400", "Bad input; nothing was changed."),
    ("401", "An API token is needed."),
    ("403", "The API token does not allow this."),
    ("405", "The path does not answer to this method."),
    ("500", "The database failed."),
    ("503", "Not now: the database is away, or the server is overloaded or about to stop."),
];
const BODY_ERRORS: [(&str, &str); 3] = [
    ("408", "The body came too slowly."),
    ("413", "The body, or a field in it, is too large."),
    ("415", "The body is not JSON, or does not say so."),
];

/// What a namespace or a subscription may be called.
const IDENTIFIER: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$";

/// The whole document.
pub(crate) fn document(api: &OpenApi) -> Value {
    // A document that was made from types can always be written.
    let mut document = serde_json::to_value(api).unwrap_or_default();
    document["openapi"] = json!("3.1.0");
    document["info"] = json!({
        "title": "Windlass", "version": env!("CARGO_PKG_VERSION"), "description": DESCRIPTION,
        "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
    });
    document["components"]["securitySchemes"]["token"] = json!({
        "type": "http", "scheme": "bearer",
        "description": "An API token, made by `windlass token create`. A server on loopback without any token asks for \
                        none. The scopes are publish, consume, read and admin; consume includes read, admin everything.",
    });
    document["components"]["schemas"]["ErrorBody"]["properties"]["code"]["enum"] = json!(CODES);
    for (path, operation) in operations(&mut document) {
        complete(&path, operation);
    }
    document
}

/// Every operation, with its path.
fn operations(document: &mut Value) -> impl Iterator<Item = (String, &mut Map<String, Value>)> {
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    paths.flat_map(|(path, item)| {
        let methods = item.as_object_mut().into_iter().flatten();
        methods.filter_map(move |(_, operation)| Some((path.clone(), operation.as_object_mut()?)))
    })
}

fn complete(path: &str, operation: &mut Map<String, Value>) {
    if path.starts_with("/namespaces/{namespace}/") {
        let id = format!("{}_in_namespace", operation["operationId"].as_str().unwrap_or_default());
        operation.insert("operationId".into(), json!(id));
        let namespace = json!({
            "name": "namespace", "in": "path", "required": true, "description": "The namespace.",
        });
        let params = operation.entry("parameters").or_insert_with(|| json!([]));
        params.as_array_mut().into_iter().for_each(|params| params.insert(0, namespace.clone()));
    }
    for param in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        if param["in"] == "path" && (param["name"] == "namespace" || param["name"] == "subscription") {
            param["schema"] = json!({ "type": "string", "pattern": IDENTIFIER });
        }
    }
    let has_body = operation.contains_key("requestBody");
    let errors = ERRORS.iter().chain(BODY_ERRORS.iter().filter(|_| has_body));
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
    for (status, description) in errors {
        responses.entry(*status).or_insert_with(|| json!({ "description": description }));
    }
    for (status, response) in responses {
        if status.as_str() >= "400" {
            let schema = json!({ "schema": { "$ref": "#/components/schemas/ErrorBody" } });
            response["content"] = json!({ "application/json": schema });
        }
        if matches!(status.as_str(), "429" | "503") {
            let header = json!({ "schema": { "type": "integer" }, "description": "Seconds to wait." });
            response["headers"]["retry-after"] = header;
        }
    }
}

/// What each path needs, as the document says it.
pub(crate) fn needs(api: &OpenApi) -> Needs {
    let document = serde_json::to_value(api).unwrap_or_default();
    let mut needs = HashMap::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            if let (Ok(method), Some(need)) = (method.to_uppercase().parse::<Method>(), need(operation)) {
                needs.insert((method, path.clone()), need);
            }
        }
    }
    needs
}

fn need(operation: &Value) -> Option<Need> {
    let security = operation["security"].as_array()?.first()?;
    match security["token"].as_array().and_then(|scopes| scopes.first()?.as_str()) {
        Some(scope) => scope.parse::<Scope>().ok().map(Need::Scope),
        None => Some(Need::Nothing),
    }
}
