//! What can be said of a schedule, on the command line and to the API.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;

use super::view::View;
use crate::Result;
use crate::input::json_argument;
use crate::when;

/// All but its name, its rule and the type of its events.
#[derive(Args)]
pub struct Settings {
    /// The zone of the IANA database that the rule goes by, as in Europe/Berlin; UTC if never given
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// The payload: JSON, @FILE, or - for stdin; {{tick.date}} and the like stand for values of the tick
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// A line for people; '' for none
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// A few sentences for people; '' for none
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// The tags of its events, with commas; '' for none
    #[arg(long, value_name = "TAGS")]
    tags: Option<String>,
    /// The group of its events, which are handled one at a time; '' for none
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// The priority of its events: higher goes first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i16>,
    /// How many failures its events are allowed; as the policy says if never given
    #[arg(long, value_name = "N")]
    max_retries: Option<u32>,
    /// A JSON object that travels with its events; @FILE reads a file, - stdin, '' for none
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    /// Its events never start later than this after they were published, as in 10m
    #[arg(long, value_name = "SPAN", value_parser = when::span)]
    expires_in: Option<Duration>,
    /// What becomes of ticks that were missed: skip, once or all
    #[arg(long, value_name = "WHAT", value_parser = ["skip", "once", "all"])]
    missed: Option<String>,
}

/// A schedule, as the API takes it.
#[derive(Serialize)]
pub struct Request {
    pub name: String,
    pub cron: String,
    pub timezone: String,
    #[serde(rename = "type")]
    pub event_type: String,
    payload: Option<Box<RawValue>>,
    title: Option<String>,
    description: Option<String>,
    tags: String,
    group_id: Option<String>,
    priority: i16,
    max_retries: Option<u32>,
    metadata: Option<Box<RawValue>>,
    expires_in_ms: Option<u64>,
    missed: String,
    pub active: bool,
}

impl Request {
    pub fn new(name: String, cron: String, event_type: String) -> Request {
        Request {
            name,
            cron,
            event_type,
            timezone: "UTC".to_owned(),
            payload: None,
            title: None,
            description: None,
            tags: String::new(),
            group_id: None,
            priority: 0,
            max_retries: None,
            metadata: None,
            expires_in_ms: None,
            missed: "once".to_owned(),
            active: true,
        }
    }

    /// What it says of one that is there.
    pub fn of(view: View) -> Request {
        Request {
            timezone: view.timezone,
            payload: Some(view.payload),
            title: view.title,
            description: view.description,
            tags: view.tags,
            group_id: view.group_id,
            priority: view.priority,
            max_retries: view.max_retries,
            metadata: view.metadata,
            expires_in_ms: view.expires_in_ms,
            missed: view.missed,
            active: view.active,
            ..Request::new(view.name, view.cron, view.event_type)
        }
    }

    /// With what was given in place of what it said.
    pub fn with(mut self, settings: Settings) -> Result<Request> {
        let text = |given: Option<String>, old| given.map_or(old, |text| Some(text).filter(|text| !text.is_empty()));
        self.timezone = settings.timezone.unwrap_or(self.timezone);
        self.title = text(settings.title, self.title);
        self.description = text(settings.description, self.description);
        self.group_id = text(settings.group, self.group_id);
        self.tags = settings.tags.unwrap_or(self.tags);
        self.priority = settings.priority.unwrap_or(self.priority);
        self.max_retries = settings.max_retries.or(self.max_retries);
        self.missed = settings.missed.unwrap_or(self.missed);
        if let Some(span) = settings.expires_in {
            self.expires_in_ms = Some(u64::try_from(span.as_millis())?);
        }
        if let Some(payload) = settings.payload {
            self.payload = Some(json_argument("--payload", &payload)?);
        }
        self.metadata = match settings.metadata.as_deref() {
            None => self.metadata,
            Some("") => None,
            Some(metadata) => Some(json_argument("--metadata", metadata)?),
        };
        Ok(self)
    }
}
