//! A namespace, as it is shown.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use windlass::Timestamp;

use crate::Result;
use crate::api::Answer;
use crate::output::{Cell, GOOD, Table, WARN, clean, clean_lines, fields, left, paint, pretty, section, text};
use crate::when;

#[derive(Deserialize)]
pub struct View {
    namespace: String,
    metadata: Box<RawValue>,
    policy: Map<String, Value>,
    paused: bool,
    paused_types: Vec<String>,
    created_at: Timestamp,
}

impl View {
    /// What is not handed out in spite of what was just done.
    pub fn still_paused(&self) -> Option<String> {
        let types = self.paused_types.join(", ");
        match (self.paused, self.paused_types.is_empty()) {
            (true, _) => Some("Nothing is handed out in it.".to_owned()),
            (false, false) => Some(format!("Paused in it: {}.", clean(&types))),
            (false, true) => None,
        }
    }

    fn status(&self) -> (&'static str, anstyle::Style) {
        match (self.paused, self.paused_types.is_empty()) {
            (true, _) => ("paused", WARN),
            (false, false) => ("in part paused", WARN),
            (false, true) => ("active", GOOD),
        }
    }
}

pub fn table(answer: &Answer) -> Result<Table<5>> {
    #[derive(Deserialize)]
    struct Body {
        namespaces: Vec<View>,
    }
    let mut table = Table::new([left("NAME"), left("STATUS"), text("PAUSED TYPES"), left("CREATED"), text("METADATA")]);
    for view in answer.read::<Body>()?.namespaces {
        let (status, style) = view.status();
        let metadata = Some(view.metadata.get()).filter(|metadata| *metadata != "{}");
        table.row([
            Cell::new(&view.namespace),
            Cell::styled(status, style),
            view.paused_types.join(", ").into(),
            when::shown(view.created_at).into(),
            metadata.into(),
        ]);
    }
    Ok(table)
}

pub fn shown(view: &View) -> Result<String> {
    let (status, style) = view.status();
    let facts = fields(&[
        ("namespace", Some(clean(&view.namespace))),
        ("status", Some(paint(status, style))),
        ("paused types", Some(clean(&view.paused_types.join(", "))).filter(|types| !types.is_empty())),
        ("created", Some(when::shown_with_age(view.created_at))),
        ("metadata", Some(clean(view.metadata.get())).filter(|metadata| metadata != "{}")),
    ]);
    let settings: Vec<(&str, Option<String>)> =
        view.policy.iter().map(|(name, value)| (name.as_str(), setting(name, value))).collect();
    Ok(format!("{facts}\n\n{}", section("Policy", &fields(&settings))))
}

/// Spans of milliseconds also in words.
fn setting(name: &str, value: &Value) -> Option<String> {
    match value {
        Value::Object(map) if map.is_empty() => None,
        Value::Object(_) if name == "types" => Some(clean_lines(&pretty(&value.to_string()))),
        Value::Object(_) => Some(clean(&value.to_string())),
        Value::Null => Some("–".to_owned()),
        Value::String(text) => Some(clean(text)),
        Value::Number(number) if name.ends_with("_ms") => {
            let words = number
                .as_u64()
                .filter(|ms| *ms >= 10_000)
                .map(|ms| format!(" ({})", when::rough(Duration::from_millis(ms))));
            Some(format!("{number}{}", words.unwrap_or_default()))
        }
        other => Some(other.to_string()),
    }
}
