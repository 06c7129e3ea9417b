//! `windlass publish`: publishes one event, or a file of events ([`bulk`]).

mod batches;
mod bulk;
mod summary;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::value::{RawValue, to_raw_value};
use windlass::Timestamp;
use windlass_api::PublishRequest;

use crate::Result;
use crate::api::NamespaceTarget;
use crate::api::responses::EventId;
use crate::exit::UsageError;
use crate::output::{print, print_json, print_note};
use crate::time::{parse_duration, parse_timestamp};

/// Publish an event, or many from a file
///
/// Prints the event's id. When it is printed, the event is stored and synced.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Publish {
    #[command(flatten)]
    target: NamespaceTarget,
    /// What kind of event it is, as in order.paid
    #[arg(value_name = "TYPE", required_unless_present = "bulk", conflicts_with = "bulk")]
    event_type: Option<String>,
    #[command(flatten)]
    event: EventOptions,
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

/// The options of a single event.
#[derive(Args)]
struct EventOptions {
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
    #[arg(long, value_name = "SPAN", value_parser = parse_duration, conflicts_with = "bulk")]
    delay: Option<Duration>,
    /// Not before this instant, as in 2026-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = parse_timestamp, conflicts_with_all = ["delay", "bulk"])]
    run_at: Option<Timestamp>,
    /// If it has not been started this long after it could be, it never is
    #[arg(long, value_name = "SPAN", value_parser = parse_duration, conflicts_with = "bulk")]
    expires_in: Option<Duration>,
    /// Instead of the policy's
    #[arg(long, value_name = "N", conflicts_with = "bulk")]
    max_retries: Option<u32>,
    /// Something that travels with the event; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair, conflicts_with = "bulk")]
    metadata: Vec<(String, String)>,
}

fn parse_pair(text: &str) -> std::result::Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("give it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Publish {
    pub async fn run(self) -> Result {
        match (&self.bulk, &self.event_type) {
            (Some(file), _) => bulk::run(&self, file).await,
            (None, Some(event_type)) => self.publish_one(event_type).await,
            (None, None) => Err(UsageError("give the event's type, or --bulk".to_owned()).into()),
        }
    }

    async fn publish_one(&self, event_type: &str) -> Result {
        let body = self.event.request(event_type)?;
        let api = self.target.connect_or_create().await?;
        let response = api.post(&api.namespace_path("/events"), &[], &body).await;
        api.close().await;
        let response = response?;
        if self.json {
            return print_json(&response.text);
        }
        let EventId { id } = response.json()?;
        print(&id)?;
        if response.status == 200 {
            print_note(&format!("Event {id} has this key already; nothing was stored."));
        }
        Ok(())
    }
}

impl EventOptions {
    fn request(&self, event_type: &str) -> Result<PublishRequest> {
        let mut metadata: BTreeMap<&str, String> = BTreeMap::new();
        // Continue the trace of the environment, which `windlass work` sets for its commands.
        for (variable, name) in [("TRACEPARENT", "traceparent"), ("TRACESTATE", "tracestate")] {
            metadata.extend(std::env::var(variable).ok().map(|value| (name, value)));
        }
        metadata.extend(self.metadata.iter().map(|(name, value)| (name.as_str(), value.clone())));
        Ok(PublishRequest {
            event_type: Some(event_type.to_owned()),
            title: self.title.clone(),
            description: self.description.clone(),
            tags: self.tags.clone().into(),
            payload: self.payload()?,
            key: self.key.clone(),
            group_id: self.group.clone(),
            priority: self.priority,
            delay_ms: self.delay.map(millis),
            run_at: self.run_at,
            expires_in_ms: self.expires_in.map(millis),
            max_retries: self.max_retries,
            metadata: if metadata.is_empty() { None } else { Some(to_raw_value(&metadata)?) },
            ..PublishRequest::default()
        })
    }

    fn payload(&self) -> Result<Option<Box<RawValue>>> {
        let (option, text) = match (self.payload.as_deref(), &self.payload_file) {
            (Some("-"), _) => ("--payload", std::io::read_to_string(std::io::stdin())?),
            (Some(text), _) => ("--payload", text.to_owned()),
            (None, Some(file)) if file.as_os_str() == "-" => {
                ("--payload-file", std::io::read_to_string(std::io::stdin())?)
            }
            (None, Some(file)) => ("--payload-file", read_file(file)?),
            (None, None) => return Ok(None),
        };
        let invalid =
            |error| UsageError(format!("{option}: is not JSON: {error}; a text needs quotes, as in '\"text\"'"));
        Ok(Some(serde_json::from_str(text.trim()).map_err(invalid)?))
    }
}

fn read_file(file: &PathBuf) -> Result<String> {
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|mut opened| opened.read_to_string(&mut text));
    read.map_err(|error| UsageError(format!("{}: {error}", file.display())))?;
    Ok(text)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
