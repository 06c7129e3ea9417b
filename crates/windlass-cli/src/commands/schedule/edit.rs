//! `windlass schedule add` and `edit`.

use clap::Args;
use windlass_api::ScheduleRequest;

use super::schedule_path;
use super::settings::{ScheduleSettings, apply_settings, request_of};
use super::view::next_tick;
use crate::Result;
use crate::api::{ApiResponse, responses};
use crate::commands::{NamespaceArgs, print_response};
use crate::output::sanitize;

/// Add a schedule
///
/// Each tick of its rule publishes an event, once, however many servers and nodes there are.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass schedule add nightly --cron '0 3 * * *' --timezone Europe/Berlin --type report.due
  windlass schedule add hourly --cron '0 * * * *' --type tidy --payload '{\"hour\": \"{{tick.time}}\"}' --paused")]
pub struct Add {
    /// Its name, unique in the namespace
    #[arg(value_name = "NAME")]
    name: String,
    /// When it ticks: minute, hour, day of the month, month and day of the week; with six fields, the second first
    #[arg(long, value_name = "CRON")]
    cron: String,
    /// The type of its events
    #[arg(long = "type", short, value_name = "TYPE")]
    event_type: String,
    #[command(flatten)]
    settings: ScheduleSettings,
    /// It does not fire before it is resumed
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    common: NamespaceArgs,
}

/// Change a schedule
///
/// What is not given stays as it is. It goes on with the next tick from now on.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass schedule edit nightly --cron '30 2 * * *'
  windlass schedule edit nightly --name daily --payload @payload.json --title ''")]
pub struct Edit {
    /// The schedule's name or id
    #[arg(value_name = "SCHEDULE")]
    schedule: String,
    /// Its new name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// When it ticks
    #[arg(long, value_name = "CRON")]
    cron: Option<String>,
    /// The type of its events
    #[arg(long = "type", short, value_name = "TYPE")]
    event_type: Option<String>,
    #[command(flatten)]
    settings: ScheduleSettings,
    #[command(flatten)]
    common: NamespaceArgs,
}

impl Add {
    pub async fn run(self) -> Result {
        let request = ScheduleRequest {
            name: self.name,
            cron: self.cron,
            event_type: self.event_type,
            active: Some(!self.paused),
            ..ScheduleRequest::default()
        };
        let request = apply_settings(request, self.settings)?;
        let call =
            self.common.target.with_api(async |api| api.post(&api.namespace_path("/schedules"), &[], &request).await);
        let response = call.await?;
        print_response(self.common.json, &response, |response| format_result(response, "added"))
    }
}

impl Edit {
    pub async fn run(self) -> Result {
        let Edit { schedule, name, cron, event_type, settings, common } = self;
        let call = common.target.with_api(async |api| {
            let path = schedule_path(api, &schedule).await?;
            let mut request = apply_settings(request_of(api.get(&path, &[]).await?.json()?)?, settings)?;
            request.name = name.unwrap_or(request.name);
            request.cron = cron.unwrap_or(request.cron);
            request.event_type = event_type.unwrap_or(request.event_type);
            api.put(&path, &[], &request).await
        });
        let response = call.await?;
        print_response(common.json, &response, |response| format_result(response, "changed"))
    }
}

fn format_result(response: &ApiResponse, done: &str) -> Result<String> {
    let view: responses::Schedule = response.json()?;
    let next = match next_tick(&view) {
        Some(next) => format!(" Its next tick is at {next}."),
        None => " It does not fire before it is resumed.".to_owned(),
    };
    Ok(format!("Schedule {} was {done}.{next}", sanitize(&view.name)))
}
