//! `windlass dead-letters show`.

use clap::Args;
use serde::Deserialize;
use serde_json::value::RawValue;
use windlass::Timestamp;

use crate::Result;
use crate::api::given;
use crate::commands::{Common, get, show};
use crate::output::{clean, clean_lines, fields, of_status, paint, section};
use crate::when;

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
    common: Common,
}

#[derive(Deserialize)]
struct Letter {
    event_id: i64,
    #[serde(rename = "type")]
    event_type: String,
    title: Option<String>,
    description: Option<String>,
    tags: String,
    payload: Box<RawValue>,
    subscription: String,
    status: String,
    reason: String,
    error: Option<String>,
    attempts: u32,
    retry_count: u32,
    max_retries: Option<u32>,
    failed_at: Timestamp,
    created_at: Timestamp,
    group_id: Option<String>,
    key: Option<String>,
}

impl Show {
    pub async fn run(self) -> Result {
        let query = given([("subscription", self.subscription)]);
        let path = format!("/dead-letters/{}", self.event_id);
        let answer = self.common.target.with(async |api| api.get(&api.within(&path), &query).await).await?;
        show(self.common.json, &answer, |answer| Ok(shown(&answer.read()?)))
    }
}

fn shown(letter: &Letter) -> String {
    let facts = [
        ("event", Some(letter.event_id.to_string())),
        ("type", Some(clean(&letter.event_type))),
        ("title", letter.title.as_deref().map(clean)),
        ("description", letter.description.as_deref().map(clean_lines)),
        ("status", Some(paint(&letter.status, of_status(&letter.status)))),
        ("reason", Some(clean(&letter.reason))),
        ("error", letter.error.as_deref().map(clean_lines)),
        ("subscription", Some(clean(&letter.subscription))),
        ("tags", Some(clean(&letter.tags)).filter(|tags| !tags.is_empty())),
        ("group", letter.group_id.as_deref().map(clean)),
        ("key", letter.key.as_deref().map(clean)),
        ("attempts", Some(letter.attempts.to_string())),
        ("failures", Some(get::failures(letter.retry_count, letter.max_retries))),
        ("published", Some(when::shown_with_age(letter.created_at))),
        ("given up", Some(when::shown_with_age(letter.failed_at))),
    ];
    format!("{}\n\n{}", fields(&facts), section("Payload", &get::payload(&letter.payload)))
}
