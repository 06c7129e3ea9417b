//! The settings of a schedule: as options, and as the request to the API.

use std::time::Duration;

use clap::Args;
use windlass_api::ScheduleRequest;

use crate::Result;
use crate::api::responses::Schedule;
use crate::input::read_json_argument;
use crate::time;

/// All options of a schedule except its name, its rule and the type of its events.
#[derive(Args)]
pub struct ScheduleSettings {
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
    #[arg(long, value_name = "SPAN", value_parser = time::parse_duration)]
    expires_in: Option<Duration>,
    /// What becomes of ticks that were missed: skip, once or all
    #[arg(long, value_name = "WHAT", value_parser = ["skip", "once", "all"])]
    missed: Option<String>,
}

/// Returns the request that leaves an existing schedule unchanged.
pub fn request_of(view: Schedule) -> Result<ScheduleRequest> {
    Ok(ScheduleRequest {
        name: view.name,
        cron: view.cron,
        timezone: Some(view.timezone),
        event_type: view.event_type,
        payload: Some(view.payload),
        title: view.title,
        description: view.description,
        tags: view.tags.into(),
        group_id: view.group_id,
        priority: view.priority,
        max_retries: view.max_retries,
        metadata: view.metadata,
        expires_in_ms: view.expires_in_ms,
        missed: view.missed.parse()?,
        active: Some(view.active),
    })
}

/// Replaces the settings that were given as options.
pub fn apply_settings(mut request: ScheduleRequest, settings: ScheduleSettings) -> Result<ScheduleRequest> {
    let text = |new: Option<String>, old| new.map_or(old, |text| Some(text).filter(|text| !text.is_empty()));
    request.timezone = settings.timezone.or(request.timezone);
    request.title = text(settings.title, request.title);
    request.description = text(settings.description, request.description);
    request.group_id = text(settings.group, request.group_id);
    request.tags = settings.tags.map_or(request.tags, Into::into);
    request.priority = settings.priority.unwrap_or(request.priority);
    request.max_retries = settings.max_retries.or(request.max_retries);
    if let Some(missed) = settings.missed {
        request.missed = missed.parse()?;
    }
    if let Some(expires_in) = settings.expires_in {
        request.expires_in_ms = Some(u64::try_from(expires_in.as_millis())?);
    }
    if let Some(payload) = settings.payload {
        request.payload = Some(read_json_argument("--payload", &payload)?);
    }
    request.metadata = match settings.metadata.as_deref() {
        None => request.metadata,
        Some("") => None,
        Some(metadata) => Some(read_json_argument("--metadata", metadata)?),
    };
    Ok(request)
}
