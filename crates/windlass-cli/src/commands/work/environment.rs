//! The environment variables that describe an event to its command.

use chrono::SecondsFormat;
use serde::Deserialize;

use super::Worker;
use crate::api::responses::ClaimedEvent;

/// A variable and its value. `None` removes the variable.
pub type Variable = (&'static str, Option<String>);

/// Returns all variables of an event. A variable without a value is removed, even if the worker itself inherited it.
pub fn variables(worker: &Worker, event: &ClaimedEvent) -> Vec<Variable> {
    let mut variables = event_variables(event);
    variables.extend([
        ("WINDLASS_NAMESPACE", Some(worker.namespace.clone())),
        ("WINDLASS_SUBSCRIPTION", Some(worker.options.subscription.clone())),
        ("WINDLASS_WORKER_ID", Some(worker.worker_id.clone())),
    ]);
    variables
}

fn event_variables(event: &ClaimedEvent) -> Vec<Variable> {
    let metadata = event.metadata.as_ref().map(|metadata| metadata.get());
    let trace: TraceContext = metadata.and_then(|metadata| serde_json::from_str(metadata).ok()).unwrap_or_default();
    vec![
        ("WINDLASS_EVENT_ID", Some(event.id.to_string())),
        ("WINDLASS_EVENT_TYPE", Some(event.event_type.clone())),
        ("WINDLASS_EVENT_TITLE", event.title.clone()),
        ("WINDLASS_EVENT_DESCRIPTION", event.description.clone()),
        ("WINDLASS_EVENT_TAGS", Some(event.tags.clone()).filter(|tags| !tags.is_empty())),
        ("WINDLASS_EVENT_KEY", event.key.clone()),
        ("WINDLASS_EVENT_GROUP", event.group_id.clone()),
        ("WINDLASS_EVENT_PRIORITY", Some(event.priority.to_string())),
        ("WINDLASS_EVENT_CREATED_AT", Some(event.created_at.to_rfc3339_opts(SecondsFormat::AutoSi, true))),
        ("WINDLASS_EVENT_METADATA", metadata.map(str::to_owned)),
        ("WINDLASS_ATTEMPT", Some(event.attempt.to_string())),
        ("WINDLASS_RETRY_COUNT", Some(event.retry_count.to_string())),
        ("WINDLASS_MAX_RETRIES", event.max_retries.map(|max| max.to_string())),
        ("TRACEPARENT", trace.traceparent),
        ("TRACESTATE", trace.tracestate),
    ]
    .into_iter()
    // Environment variables cannot contain NUL.
    .map(|(name, value)| (name, value.map(|value| value.replace('\0', "\u{fffd}"))))
    .collect()
}

/// The trace context of the publisher.
#[derive(Default, Deserialize)]
struct TraceContext {
    traceparent: Option<String>,
    tracestate: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_describe_the_event() {
        let event: ClaimedEvent = serde_json::from_value(serde_json::json!({
            "id": 7, "type": "order.paid", "title": "Ü\0", "description": null, "tags": "",
            "payload": null, "attempt": 2, "retry_count": 1, "max_retries": null, "lease": "0",
            "created_at": "2026-01-01T00:00:00Z",
            "metadata": { "traceparent": "00-a-b-01", "other": 1 },
        }))
        .unwrap();
        let variables = event_variables(&event);
        let value = |name: &str| variables.iter().find(|(found, _)| *found == name).unwrap().1.clone();
        assert_eq!(value("WINDLASS_EVENT_ID").as_deref(), Some("7"));
        assert_eq!(value("WINDLASS_EVENT_TITLE").as_deref(), Some("Ü\u{fffd}"));
        assert_eq!(value("WINDLASS_EVENT_TAGS"), None);
        assert_eq!(value("WINDLASS_ATTEMPT").as_deref(), Some("2"));
        assert_eq!(value("WINDLASS_MAX_RETRIES"), None);
        assert_eq!((value("TRACEPARENT").as_deref(), value("TRACESTATE")), (Some("00-a-b-01"), None));
        assert!(value("WINDLASS_EVENT_METADATA").unwrap().contains("\"other\":1"));
    }
}
