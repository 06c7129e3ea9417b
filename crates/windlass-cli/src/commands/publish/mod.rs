//! `windlass publish`: one event, or a file of them.

mod bulk;
mod lines;
mod tally;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass::Timestamp;

use crate::Result;
use crate::api::Target;
use crate::exit::Usage;
use crate::output::{print, print_json, tell};
use crate::when::{instant, span};

/// Publish an event, or many from a file
///
/// Prints the event's id. When it is printed, the event is stored and synced.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Publish {
    #[command(flatten)]
    target: Target,
    /// What kind of event it is, as in order.paid
    #[arg(value_name = "TYPE", required_unless_present = "bulk", conflicts_with = "bulk")]
    event_type: Option<String>,
    #[command(flatten)]
    event: Event,
    /// Publish the events in this file of JSON lines, `-` for stdin: each line as `POST /events` takes it
    #[arg(long, value_name = "FILE", help_heading = BULK)]
    bulk: Option<PathBuf>,
    /// Pass over lines that are no good, and tell which they were at the end
    #[arg(long, requires = "bulk", help_heading = BULK)]
    skip_bad: bool,
    /// Begin with this line, counted from 1
    #[arg(long, value_name = "N", requires = "bulk", default_value_t = 1, help_heading = BULK,
          value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const BULK: &str = "Many events";

const EXAMPLES: &str = "\
Examples:
  windlass publish order.paid --payload '{\"order\": 17}' --key order-17-paid
  windlass publish report.due --delay 15m --tag nightly --tag email
  jq .user user.json | windlass publish user.created --payload -
  windlass publish --bulk events.jsonl
  gunzip -c events.jsonl.gz | windlass publish --bulk - --skip-bad

A line of a file for --bulk, of which only `type` or `title` is needed:
  {\"type\": \"order.paid\", \"payload\": {\"order\": 17}, \"key\": \"order-17-paid\", \"tags\": [\"email\"]}

Events go in batches, several at a time; those of a group keep their order. A batch is stored as a whole or not
at all. At a bad line it stops, stores nothing of that line's batch, and says which lines were published. Where
the connection is lost it says for which lines nobody knows. Give each event a `key`, and none of this matters:
publish the file once more, and what is there already is not stored a second time. Batches of events that all have
a key are sent again by themselves.";

/// What an event is published with.
#[derive(Args)]
struct Event {
    /// Its contents, as JSON; `-` reads them from stdin. null if not given
    #[arg(long, value_name = "JSON", conflicts_with = "bulk")]
    payload: Option<String>,
    /// A file with its contents, as JSON; `-` for stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["payload", "bulk"])]
    payload_file: Option<PathBuf>,
    /// A line for people
    #[arg(long, conflicts_with = "bulk")]
    title: Option<String>,
    /// A few sentences for people
    #[arg(long, conflicts_with = "bulk")]
    description: Option<String>,
    /// What workers can ask for; several with commas
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',', conflicts_with = "bulk")]
    tags: Vec<String>,
    /// Published once, however often it is sent with this key
    #[arg(long, conflicts_with = "bulk")]
    key: Option<String>,
    /// Events of a group are handled one at a time, in order
    #[arg(long, value_name = "GROUP", conflicts_with = "bulk")]
    group: Option<String>,
    /// Higher goes first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, conflicts_with = "bulk")]
    priority: i16,
    /// Not before this time has passed, as in 30s, 15m or 2h
    #[arg(long, value_name = "SPAN", value_parser = span, conflicts_with = "bulk")]
    delay: Option<Duration>,
    /// Not before this instant, as in 2026-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = instant, conflicts_with_all = ["delay", "bulk"])]
    run_at: Option<Timestamp>,
    /// If it has not been started this long after it could be, it never is
    #[arg(long, value_name = "SPAN", value_parser = span, conflicts_with = "bulk")]
    expires_in: Option<Duration>,
    /// Instead of the policy's
    #[arg(long, value_name = "N", conflicts_with = "bulk")]
    max_retries: Option<u32>,
    /// Something that travels with the event; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair, conflicts_with = "bulk")]
    metadata: Vec<(String, String)>,
}

fn pair(text: &str) -> std::result::Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("give it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Publish {
    pub async fn run(self) -> Result {
        match (&self.bulk, &self.event_type) {
            (Some(file), _) => bulk::run(&self, file).await,
            (None, Some(event_type)) => self.publish_one(event_type).await,
            (None, None) => Err(Usage("give the event's type, or --bulk".to_owned()).into()),
        }
    }

    async fn publish_one(&self, event_type: &str) -> Result {
        let body = self.event.body(event_type)?;
        let api = self.target.connect_or_create().await?;
        let answer = api.post(&api.within("/events"), &[], &body).await;
        api.close().await;
        let answer = answer?;
        if self.json {
            return print_json(&answer.text);
        }
        #[derive(Deserialize)]
        struct Stored {
            id: i64,
        }
        let Stored { id } = answer.read()?;
        print(&id)?;
        if answer.status == 200 {
            tell(&format!("Event {id} has this key already; nothing was stored."));
        }
        Ok(())
    }
}

/// As the API takes it.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    event_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    tags: &'a [String],
    payload: Option<Box<RawValue>>,
    key: Option<&'a str>,
    group_id: Option<&'a str>,
    priority: i16,
    delay_ms: Option<u64>,
    run_at: Option<Timestamp>,
    expires_in_ms: Option<u64>,
    max_retries: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<&'a str, String>,
}

impl Event {
    fn body<'a>(&'a self, event_type: &'a str) -> Result<Body<'a>> {
        let mut metadata: BTreeMap<&str, String> = BTreeMap::new();
        // Published from within a trace, as by a command that `windlass work` runs, it belongs to that.
        for (variable, name) in [("TRACEPARENT", "traceparent"), ("TRACESTATE", "tracestate")] {
            metadata.extend(std::env::var(variable).ok().map(|value| (name, value)));
        }
        metadata.extend(self.metadata.iter().map(|(name, value)| (name.as_str(), value.clone())));
        Ok(Body {
            event_type,
            title: self.title.as_deref(),
            description: self.description.as_deref(),
            tags: &self.tags,
            payload: self.payload()?,
            key: self.key.as_deref(),
            group_id: self.group.as_deref(),
            priority: self.priority,
            delay_ms: self.delay.map(millis),
            run_at: self.run_at,
            expires_in_ms: self.expires_in.map(millis),
            max_retries: self.max_retries,
            metadata,
        })
    }

    fn payload(&self) -> Result<Option<Box<RawValue>>> {
        let (option, text) = match (self.payload.as_deref(), &self.payload_file) {
            (Some("-"), _) => ("--payload", std::io::read_to_string(std::io::stdin())?),
            (Some(text), _) => ("--payload", text.to_owned()),
            (None, Some(file)) if file.as_os_str() == "-" => {
                ("--payload-file", std::io::read_to_string(std::io::stdin())?)
            }
            (None, Some(file)) => ("--payload-file", read(file)?),
            (None, None) => return Ok(None),
        };
        let bad = |error| Usage(format!("{option}: is not JSON: {error}; a text needs quotes, as in '\"text\"'"));
        Ok(Some(serde_json::from_str(text.trim()).map_err(bad)?))
    }
}

fn read(file: &PathBuf) -> Result<String> {
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|mut opened| opened.read_to_string(&mut text));
    read.map_err(|error| Usage(format!("{}: {error}", file.display())))?;
    Ok(text)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
