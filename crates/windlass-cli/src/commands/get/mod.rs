//! `windlass get`: shows an event, its deliveries and its history.

mod history;

use clap::Args;
use serde_json::value::RawValue;
use windlass::Timestamp;

use super::NamespaceArgs;
use crate::Result;
use crate::api::responses::{Delivery, EventDetails, Explanation};
use crate::api::{Api, ApiError, ApiResponse};
use crate::output::{
    BAD, Cell, Table, WARN, format_fields, format_section, left, paint, pretty_json, print, print_json, right,
    sanitize, sanitize_lines, status_style, terminal_width, text,
};
use crate::time;

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
    common: NamespaceArgs,
}

impl Get {
    pub async fn run(self) -> Result {
        let (response, explanation) = self.common.target.with_api(async |api| self.request(api).await).await?;
        if self.common.json {
            return print_json(&response.text);
        }
        let explanation = explanation.map(|explanation| explanation.json::<Explanation>()).transpose()?;
        print(&format_event(&response.json()?, explanation.as_ref()))
    }

    async fn request(&self, api: &Api) -> Result<(ApiResponse, Option<ApiResponse>)> {
        let path = api.namespace_path(&format!("/events/{}", self.event_id));
        let subscription = ("subscription", self.subscription.clone());
        let response = api.get(&path, &[("include_logs", "true".to_owned()), subscription.clone()]).await?;
        if self.common.json {
            return Ok((response, None));
        }
        match api.get(&format!("{path}/explain"), &[subscription]).await {
            Ok(explanation) => Ok((response, Some(explanation))),
            // Older servers have no explanation.
            Err(error) if error.downcast_ref().is_some_and(|api_error: &ApiError| api_error.code == "unknown_path") => {
                Ok((response, None))
            }
            Err(error) => Err(error),
        }
    }
}

fn format_event(event: &EventDetails, explanation: Option<&Explanation>) -> String {
    let mut text = format_fields(&event_fields(event, explanation));
    if !event.deliveries.is_empty() {
        let table = deliveries_table(&event.deliveries).render(terminal_width());
        text.push_str(&format!("\n\n{}", format_section("Subscriptions", &table)));
    }
    text.push_str(&format!("\n\n{}", format_section("Payload", &format_payload(&event.payload))));
    if !event.logs.is_empty() {
        text.push_str(&format!("\n\n{}", format_section("History", &history::format_history(&event.logs))));
    }
    text
}

fn event_fields<'a>(event: &EventDetails, explanation: Option<&Explanation>) -> Vec<(&'a str, Option<String>)> {
    let line = |text: &Option<String>| text.as_deref().map(sanitize);
    let time = |at: Option<Timestamp>| at.map(time::format_with_age);
    let is_leased = event.worker_id.is_some();
    vec![
        ("event", Some(event.id.to_string())),
        ("type", Some(sanitize(&event.event_type))),
        ("title", line(&event.title)),
        ("description", event.description.as_deref().map(sanitize_lines)),
        ("status", Some(paint(&sanitize(&event.status), status_style(&event.status)))),
        ("why", explanation.map(|explanation| sanitize(&explanation.sentence))),
        (
            "advice",
            explanation
                .and_then(|explanation| explanation.advice.as_deref())
                .map(|advice| paint(&sanitize(advice), WARN)),
        ),
        ("error", event.error_message.as_deref().map(|error| paint(&sanitize_lines(error), BAD))),
        ("worker", line(&event.worker_id)),
        ("lease ends", time(event.lease_expires_at.filter(|_| is_leased))),
        ("tags", Some(sanitize(&event.tags)).filter(|tags| !tags.is_empty())),
        ("group", line(&event.group_id)),
        ("key", line(&event.key)),
        ("priority", Some(event.priority).filter(|priority| *priority != 0).map(|priority| priority.to_string())),
        ("producer", line(&event.producer)),
        ("schedule", line(&event.scheduled_task_id)),
        ("metadata", event.metadata.as_ref().map(|metadata| sanitize(metadata.get()))),
        ("attempts", Some(event.attempts.to_string())),
        ("failures", Some(format_failures(event.retry_count, event.max_retries))),
        ("next try", time(event.next_retry_at)),
        ("not before", time(event.run_at)),
        ("expires", time(event.expires_at)),
        ("published", Some(time::format_with_age(event.created_at))),
        ("changed", Some(time::format_with_age(event.updated_at))),
    ]
}

/// Formats the number of failures and the number that makes a dead letter, which is at least one.
pub fn format_failures(count: u32, max: Option<u32>) -> String {
    match max {
        Some(max) => format!("{count} of {}", max.max(1)),
        None => count.to_string(),
    }
}

/// Formats the payload over several lines.
pub fn format_payload(payload: &RawValue) -> String {
    sanitize_lines(&pretty_json(payload.get()))
}

fn deliveries_table(deliveries: &[Delivery]) -> Table<6> {
    let columns = [left("NAME"), left("STATUS"), right("TRIES"), left("CHANGED"), text("WORKER"), text("ERROR")];
    let mut table = Table::new(columns);
    for delivery in deliveries {
        table.row([
            Cell::new(&delivery.subscription),
            Cell::styled(&delivery.status, status_style(&delivery.status)),
            delivery.attempts.into(),
            time::format_timestamp(delivery.updated_at).into(),
            delivery.worker_id.as_deref().into(),
            delivery.error_message.as_deref().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_words_of_a_newer_server_are_shown() {
        let event = r#"{"id":7,"type":"a","title":null,"description":null,"tags":"","status":"PARKED","payload":1,
            "attempts":1,"retry_count":0,"max_retries":null,"next_retry_at":null,"created_at":"2026-01-31T12:00:00Z",
            "updated_at":"2026-01-31T12:00:00Z",
            "deliveries":[{"subscription":"audit","status":"FROZEN","attempts":0,"updated_at":"2026-01-31T12:00:00Z"}],
            "logs":[{"action":"TELEPORTED","created_at":"2026-01-31T12:00:00Z"}]}"#;
        let explanation = r#"{"reason":"new_reason","sentence":"It is parked.","advice":null}"#;
        let text = format_event(
            &serde_json::from_str(event).unwrap(),
            Some(&serde_json::from_str::<Explanation>(explanation).unwrap()),
        );
        for expected in ["PARKED", "FROZEN", "TELEPORTED", "It is parked."] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
