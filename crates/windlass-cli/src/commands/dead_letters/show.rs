//! `windlass dead-letters show`.

use clap::Args;

use crate::Result;
use crate::api::present_params;
use crate::api::responses::DeadLetterDetails;
use crate::commands::{NamespaceArgs, get, print_response};
use crate::output::{format_fields, format_section, paint, sanitize, sanitize_lines, status_style};
use crate::time;

/// Show one dead letter: why it was given up, and its payload
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass dead-letters show 1001
  windlass dead-letters show 1001 --subscription audit --json

`windlass get` shows all that happened to it.")]
pub struct Show {
    /// The event's id
    #[arg(value_name = "ID")]
    event_id: i64,
    /// Whose delivery it was, where several gave the event up
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
    #[command(flatten)]
    common: NamespaceArgs,
}

impl Show {
    pub async fn run(self) -> Result {
        let query = present_params([("subscription", self.subscription)]);
        let path = format!("/dead-letters/{}", self.event_id);
        let response =
            self.common.target.with_api(async |api| api.get(&api.namespace_path(&path), &query).await).await?;
        print_response(self.common.json, &response, |response| Ok(format_dead_letter(&response.json()?)))
    }
}

fn format_dead_letter(dead_letter: &DeadLetterDetails) -> String {
    let values = [
        ("event", Some(dead_letter.event_id.to_string())),
        ("type", Some(sanitize(&dead_letter.event_type))),
        ("title", dead_letter.title.as_deref().map(sanitize)),
        ("description", dead_letter.description.as_deref().map(sanitize_lines)),
        ("status", Some(paint(&sanitize(&dead_letter.status), status_style(&dead_letter.status)))),
        ("reason", Some(sanitize(&dead_letter.reason))),
        ("error", dead_letter.error.as_deref().map(sanitize_lines)),
        ("subscription", Some(sanitize(&dead_letter.subscription))),
        ("tags", Some(sanitize(&dead_letter.tags)).filter(|tags| !tags.is_empty())),
        ("group", dead_letter.group_id.as_deref().map(sanitize)),
        ("key", dead_letter.key.as_deref().map(sanitize)),
        ("attempts", Some(dead_letter.attempts.to_string())),
        ("failures", Some(get::format_failures(dead_letter.retry_count, dead_letter.max_retries))),
        ("published", Some(time::format_with_age(dead_letter.created_at))),
        ("given up", Some(time::format_with_age(dead_letter.failed_at))),
    ];
    format!("{}\n\n{}", format_fields(&values), format_section("Payload", &get::format_payload(&dead_letter.payload)))
}
