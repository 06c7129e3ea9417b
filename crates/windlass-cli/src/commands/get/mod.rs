//! `windlass get`: one event, and all that happened to it.

mod history;

use clap::Args;
use serde::Deserialize;
use serde_json::value::RawValue;
use windlass::Timestamp;

use self::history::LogEntry;
use super::Common;
use crate::Result;
use crate::api::{Answer, Api, Refusal};
use crate::output::{
    BAD, Cell, Table, WARN, clean, clean_lines, fields, left, of_status, paint, pretty, print, print_json, right,
    section, text, width,
};
use crate::when;

/// Show an event: how it stands, why, and all that happened to it
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass get 1001
  windlass get 1001 --subscription billing
  windlass get 1001 --json | jq .payload")]
pub struct Get {
    /// The event's id
    #[arg(value_name = "ID")]
    event_id: i64,
    /// Whose view of it
    #[arg(long, value_name = "NAME", default_value = "main")]
    subscription: String,
    #[command(flatten)]
    common: Common,
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
    next_retry_at: Option<Timestamp>,
    run_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    worker_id: Option<String>,
    lease_expires_at: Option<Timestamp>,
    group_id: Option<String>,
    key: Option<String>,
    priority: Option<i64>,
    producer: Option<String>,
    scheduled_task_id: Option<String>,
    metadata: Option<Box<RawValue>>,
    error_message: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
    #[serde(default)]
    deliveries: Vec<Delivery>,
    #[serde(default)]
    logs: Vec<LogEntry>,
}

#[derive(Deserialize)]
struct Delivery {
    subscription: String,
    status: String,
    attempts: u32,
    worker_id: Option<String>,
    error_message: Option<String>,
    updated_at: Timestamp,
}

/// Why it stands where it does.
#[derive(Deserialize)]
struct Explanation {
    sentence: String,
    advice: Option<String>,
}

impl Get {
    pub async fn run(self) -> Result {
        let (answer, why) = self.common.target.with(async |api| self.ask(api).await).await?;
        if self.common.json {
            return print_json(&answer.text);
        }
        let why = why.map(|why| why.read::<Explanation>()).transpose()?;
        print(&shown(&answer.read()?, why.as_ref()))
    }

    async fn ask(&self, api: &Api) -> Result<(Answer, Option<Answer>)> {
        let path = api.within(&format!("/events/{}", self.event_id));
        let subscription = ("subscription", self.subscription.clone());
        let answer = api.get(&path, &[("include_logs", "true".to_owned()), subscription.clone()]).await?;
        if self.common.json {
            return Ok((answer, None));
        }
        match api.get(&format!("{path}/explain"), &[subscription]).await {
            Ok(why) => Ok((answer, Some(why))),
            // An older server.
            Err(error) if error.downcast_ref().is_some_and(|refusal: &Refusal| refusal.code == "unknown_path") => {
                Ok((answer, None))
            }
            Err(error) => Err(error),
        }
    }
}

fn shown(event: &Event, why: Option<&Explanation>) -> String {
    let mut text = fields(&facts(event, why));
    if !event.deliveries.is_empty() {
        let table = deliveries(&event.deliveries).render(width());
        text.push_str(&format!("\n\n{}", section("Subscriptions", &table)));
    }
    text.push_str(&format!("\n\n{}", section("Payload", &payload(&event.payload))));
    if !event.logs.is_empty() {
        text.push_str(&format!("\n\n{}", section("History", &history::shown(&event.logs))));
    }
    text
}

fn facts<'a>(event: &Event, why: Option<&Explanation>) -> Vec<(&'a str, Option<String>)> {
    let line = |text: &Option<String>| text.as_deref().map(clean);
    let instant = |at: Option<Timestamp>| at.map(when::shown_with_age);
    let held = event.worker_id.is_some();
    vec![
        ("event", Some(event.id.to_string())),
        ("type", Some(clean(&event.event_type))),
        ("title", line(&event.title)),
        ("description", event.description.as_deref().map(clean_lines)),
        ("status", Some(paint(&event.status, of_status(&event.status)))),
        ("why", why.map(|why| clean(&why.sentence))),
        ("advice", why.and_then(|why| why.advice.as_deref()).map(|advice| paint(&clean(advice), WARN))),
        ("error", event.error_message.as_deref().map(|error| paint(&clean_lines(error), BAD))),
        ("worker", line(&event.worker_id)),
        ("lease ends", instant(event.lease_expires_at.filter(|_| held))),
        ("tags", Some(clean(&event.tags)).filter(|tags| !tags.is_empty())),
        ("group", line(&event.group_id)),
        ("key", line(&event.key)),
        ("priority", event.priority.map(|priority| priority.to_string())),
        ("producer", line(&event.producer)),
        ("schedule", line(&event.scheduled_task_id)),
        ("metadata", event.metadata.as_ref().map(|metadata| clean(metadata.get()))),
        ("attempts", Some(event.attempts.to_string())),
        ("failures", Some(failures(event.retry_count, event.max_retries))),
        ("next try", instant(event.next_retry_at)),
        ("not before", instant(event.run_at)),
        ("expires", instant(event.expires_at)),
        ("published", Some(when::shown_with_age(event.created_at))),
        ("changed", Some(when::shown_with_age(event.updated_at))),
    ]
}

/// How many failures were reported, and which would be the last: the first one always may be.
pub fn failures(count: u32, max: Option<u32>) -> String {
    match max {
        Some(max) => format!("{count} of {}", max.max(1)),
        None => count.to_string(),
    }
}

/// As it was sent, over several lines.
pub fn payload(payload: &RawValue) -> String {
    clean_lines(&pretty(payload.get()))
}

fn deliveries(deliveries: &[Delivery]) -> Table<6> {
    let columns = [left("NAME"), left("STATUS"), right("TRIES"), left("CHANGED"), text("WORKER"), text("ERROR")];
    let mut table = Table::new(columns);
    for delivery in deliveries {
        table.row([
            Cell::new(&delivery.subscription),
            Cell::styled(&delivery.status, of_status(&delivery.status)),
            delivery.attempts.into(),
            when::shown(delivery.updated_at).into(),
            delivery.worker_id.as_deref().into(),
            delivery.error_message.as_deref().into(),
        ]);
    }
    table
}
