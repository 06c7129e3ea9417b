//! `windlass get`: one event, and all that happened to it.

use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Result;
use crate::api::Target;
use crate::output::{fields, instant, print, print_json, table};

/// Show an event: how it stands, its payload, and all that happened to it
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass get 1001
  windlass get 1001 --subscription billing
  windlass get 1001 --json | jq .payload")]
pub struct Get {
    #[command(flatten)]
    target: Target,
    /// The event's id
    #[arg(value_name = "ID")]
    event_id: i64,
    /// Whose view of it
    #[arg(long, value_name = "NAME", default_value = "main")]
    subscription: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is shown of the answer.
#[derive(Deserialize)]
struct Event {
    id: i64,
    #[serde(rename = "type")]
    event_type: String,
    title: Option<String>,
    description: Option<String>,
    tags: String,
    status: String,
    payload: Box<RawValue>,
    attempts: u32,
    retry_count: u32,
    max_retries: Option<u32>,
    next_retry_at: Option<String>,
    worker_id: Option<String>,
    group_id: Option<String>,
    key: Option<String>,
    error_message: Option<String>,
    created_at: String,
    updated_at: String,
    logs: Vec<LogEntry>,
}

#[derive(Deserialize)]
struct LogEntry {
    created_at: String,
    action: String,
    worker_id: Option<String>,
    status_code: Option<i32>,
    execution_time_ms: Option<u64>,
    error_message: Option<String>,
}

impl Get {
    pub async fn run(self) -> Result {
        let api = self.target.connect().await?;
        let query = [("include_logs", "true".to_owned()), ("subscription", self.subscription)];
        let answer = api.get(&api.within(&format!("/events/{}", self.event_id)), &query).await;
        api.close().await;
        let answer = answer?;
        if self.json { print_json(&answer.text) } else { print(&shown(&answer.read()?)) }
    }
}

fn shown(event: &Event) -> String {
    let retries = match event.max_retries {
        Some(max) => format!("{} of {max}", event.retry_count),
        None => event.retry_count.to_string(),
    };
    let facts = [
        ("event", Some(event.id.to_string())),
        ("type", Some(event.event_type.clone())),
        ("title", event.title.clone()),
        ("description", event.description.clone()),
        ("status", Some(event.status.clone())),
        ("error", event.error_message.clone()),
        ("worker", event.worker_id.clone()),
        ("tags", Some(event.tags.clone()).filter(|tags| !tags.is_empty())),
        ("group", event.group_id.clone()),
        ("key", event.key.clone()),
        ("attempts", Some(event.attempts.to_string())),
        ("retries", Some(retries)),
        ("next try", event.next_retry_at.as_deref().map(instant)),
        ("published", Some(instant(&event.created_at))),
        ("changed", Some(instant(&event.updated_at))),
    ];
    let mut text = format!("{}\n\nPayload\n{}", fields(&facts), payload(&event.payload));
    if !event.logs.is_empty() {
        text.push_str(&format!("\n\nHistory\n{}", table(&history(&event.logs))));
    }
    text
}

/// Over several lines where it is worth it.
fn payload(payload: &RawValue) -> String {
    let parsed: Option<Value> = serde_json::from_str(payload.get()).ok();
    let pretty = parsed.filter(|value| value.is_object() || value.is_array());
    let pretty = pretty.and_then(|value| serde_json::to_string_pretty(&value).ok());
    pretty.unwrap_or_else(|| payload.get().to_owned())
}

fn history(logs: &[LogEntry]) -> Vec<[String; 6]> {
    let head = ["WHEN", "WHAT", "WORKER", "CODE", "TOOK", "ERROR"].map(str::to_owned);
    let line = |entry: &LogEntry| {
        [
            instant(&entry.created_at),
            entry.action.clone(),
            entry.worker_id.clone().unwrap_or_default(),
            entry.status_code.map(|code| code.to_string()).unwrap_or_default(),
            entry.execution_time_ms.map(|took| format!("{took} ms")).unwrap_or_default(),
            entry.error_message.clone().unwrap_or_default(),
        ]
    };
    [head].into_iter().chain(logs.iter().map(line)).collect()
}
