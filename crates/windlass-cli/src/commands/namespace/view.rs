//! The text form of namespaces.

use std::time::Duration;

use serde_json::Value;

use crate::Result;
use crate::api::ApiResponse;
use crate::api::responses::{Namespace, Namespaces};
use crate::output::{
    Cell, GOOD, Table, WARN, format_fields, format_section, left, paint, pretty_json, sanitize, sanitize_lines, text,
};
use crate::time;

/// Says which deliveries remain paused after a resume or a pause of one type.
pub fn still_paused(namespace: &Namespace) -> Option<String> {
    let types = namespace.paused_types.join(", ");
    match (namespace.paused, namespace.paused_types.is_empty()) {
        (true, _) => Some("Nothing is handed out in it.".to_owned()),
        (false, false) => Some(format!("Paused in it: {}.", sanitize(&types))),
        (false, true) => None,
    }
}

fn status(namespace: &Namespace) -> (&'static str, anstyle::Style) {
    match (namespace.paused, namespace.paused_types.is_empty()) {
        (true, _) => ("paused", WARN),
        (false, false) => ("in part paused", WARN),
        (false, true) => ("active", GOOD),
    }
}

pub fn format_table(response: &ApiResponse) -> Result<Table<5>> {
    let mut table = Table::new([left("NAME"), left("STATUS"), text("PAUSED TYPES"), left("CREATED"), text("METADATA")]);
    for view in &response.json::<Namespaces>()?.namespaces {
        let (status, style) = status(view);
        let metadata = Some(view.metadata.get()).filter(|metadata| *metadata != "{}");
        table.row([
            Cell::new(&view.namespace),
            Cell::styled(status, style),
            view.paused_types.join(", ").into(),
            time::format_timestamp(view.created_at).into(),
            metadata.into(),
        ]);
    }
    Ok(table)
}

pub fn format_namespace(view: &Namespace) -> String {
    let (status, style) = status(view);
    let values = format_fields(&[
        ("namespace", Some(sanitize(&view.namespace))),
        ("status", Some(paint(status, style))),
        ("paused types", Some(sanitize(&view.paused_types.join(", "))).filter(|types| !types.is_empty())),
        ("created", Some(time::format_with_age(view.created_at))),
        ("metadata", Some(sanitize(view.metadata.get())).filter(|metadata| metadata != "{}")),
    ]);
    let settings: Vec<(&str, Option<String>)> =
        view.policy.iter().map(|(name, value)| (name.as_str(), format_setting(name, value))).collect();
    format!("{values}\n\n{}", format_section("Policy", &format_fields(&settings)))
}

/// Formats a policy setting. Durations of 10 s or more are also given in larger units.
fn format_setting(name: &str, value: &Value) -> Option<String> {
    match value {
        Value::Object(map) if map.is_empty() => None,
        Value::Object(_) if name == "types" => Some(sanitize_lines(&pretty_json(&value.to_string()))),
        Value::Object(_) => Some(sanitize(&value.to_string())),
        Value::Null => Some("–".to_owned()),
        Value::String(text) => Some(sanitize(text)),
        Value::Number(number) if name.ends_with("_ms") => {
            let words = number
                .as_u64()
                .filter(|ms| *ms >= 10_000)
                .map(|ms| format!(" ({})", time::format_duration(Duration::from_millis(ms))));
            Some(format!("{number}{}", words.unwrap_or_default()))
        }
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_older_and_newer_servers_are_shown() {
        let namespace = |policy: &str| {
            format!(
                r#"{{"namespace":"shop","metadata":{{}},"policy":{policy},"paused":false,"paused_types":["a"],
                    "created_at":"2026-01-31T12:00:00Z"}}"#
            )
        };
        let old = namespace(r#"{"lease_ms":30000}"#);
        let new = namespace(r#"{"history":"compressed","backoff":{"kind":"random"},"types":{"a":{"new":1}},"new":2}"#);
        let text = format_namespace(&serde_json::from_str(&new).unwrap());
        for expected in ["compressed", "random", "\"new\": 1", "new      2"] {
            assert!(anstream::adapter::strip_str(&text).to_string().contains(expected), "{expected}: {text}");
        }
        let list = ApiResponse { status: 200, text: format!(r#"{{"namespaces":[{old},{new}]}}"#) };
        assert_eq!(format_table(&list).unwrap().render(None).lines().count(), 3);
        assert!(still_paused(&serde_json::from_str(&old).unwrap()).is_some());
    }
}
