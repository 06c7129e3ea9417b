//! The OpenAPI document: generated from the handlers, then completed with what all operations share.

use std::collections::HashMap;

use axum::http::Method;
use serde_json::{Map, Value, json};
use utoipa::PartialSchema;
use utoipa::openapi::OpenApi;
use windlass::Scope;
use windlass_api::EventOptions;

use crate::auth::{RequiredAccess, RequiredAccessByRoute};
use crate::error::CODES;

const DESCRIPTION: &str = "\
A durable, at-least-once event queue and bus in your own relational database. Every path that concerns events exists \
twice: at the root for the namespace `default`, and under `/namespaces/{namespace}` for any.";

/// Errors that any request can receive. [`BODY_ERRORS`] are added for requests with a body.
const ERRORS: [(&str, &str); 6] = [
    ("400", "Bad input; nothing was changed."),
    ("401", "An API token is needed."),
    ("403", "The API token does not allow this."),
    ("405", "The path does not support this method."),
    ("500", "The database failed."),
    ("503", "Unavailable: the database cannot be reached, or the server is overloaded or shutting down."),
];
const BODY_ERRORS: [(&str, &str); 3] = [
    ("408", "The body was sent too slowly."),
    ("413", "The body, or a field in it, is too large."),
    ("415", "The body is not JSON, or its `Content-Type` is not."),
];

/// The names that a namespace or a subscription can have.
const IDENTIFIER: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$";

/// The complete document.
pub(crate) fn document(api: &OpenApi) -> Value {
    // A document generated from types can always be serialized.
    let mut document = serde_json::to_value(api).unwrap_or_default();
    document["openapi"] = json!("3.1.0");
    document["info"] = json!({
        "title": "Windlass", "version": env!("CARGO_PKG_VERSION"), "description": DESCRIPTION,
        "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
    });
    document["components"]["securitySchemes"]["token"] = json!({
        "type": "http", "scheme": "bearer",
        "description": "An API token, created by `windlass token create`. A server on loopback without any token \
                        requires none. The scopes are publish, consume, read and admin. consume includes \
                        read; admin includes all.",
    });
    // utoipa skips it, because serde reads it separately: see `serde_with_options!` in windlass-api.
    document["components"]["schemas"]["EventOptions"] = json!(EventOptions::schema());
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

/// The access that each route requires, according to the document.
pub(crate) fn required_access(api: &OpenApi) -> RequiredAccessByRoute {
    let document = serde_json::to_value(api).unwrap_or_default();
    let mut required = HashMap::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            if let (Ok(method), Some(access)) = (method.to_uppercase().parse::<Method>(), access_of(operation)) {
                required.insert((method, path.clone()), access);
            }
        }
    }
    required
}

fn access_of(operation: &Value) -> Option<RequiredAccess> {
    let security = operation["security"].as_array()?.first()?;
    match security["token"].as_array().and_then(|scopes| scopes.first()?.as_str()) {
        Some(scope) => scope.parse::<Scope>().ok().map(RequiredAccess::Scope),
        None => Some(RequiredAccess::Public),
    }
}
