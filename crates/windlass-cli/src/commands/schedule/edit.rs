//! `windlass schedule add` and `edit`.

use clap::Args;

use super::path_of;
use super::settings::{Request, Settings};
use super::view::View;
use crate::Result;
use crate::api::Answer;
use crate::commands::{Common, show};
use crate::output::clean;

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
    settings: Settings,
    /// It does not fire before it is resumed
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    common: Common,
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
    settings: Settings,
    #[command(flatten)]
    common: Common,
}

impl Add {
    pub async fn run(self) -> Result {
        let mut request = Request::new(self.name, self.cron, self.event_type).with(self.settings)?;
        request.active = !self.paused;
        let ask = self.common.target.with(async |api| api.post(&api.within("/schedules"), &[], &request).await);
        let answer = ask.await?;
        show(self.common.json, &answer, |answer| told(answer, "added"))
    }
}

impl Edit {
    pub async fn run(self) -> Result {
        let Edit { schedule, name, cron, event_type, settings, common } = self;
        let ask = common.target.with(async |api| {
            let path = path_of(api, &schedule).await?;
            let mut request = Request::of(api.get(&path, &[]).await?.read::<View>()?).with(settings)?;
            request.name = name.unwrap_or(request.name);
            request.cron = cron.unwrap_or(request.cron);
            request.event_type = event_type.unwrap_or(request.event_type);
            api.put(&path, &[], &request).await
        });
        let answer = ask.await?;
        show(common.json, &answer, |answer| told(answer, "changed"))
    }
}

fn told(answer: &Answer, done: &str) -> Result<String> {
    let view: View = answer.read()?;
    let next = match view.next() {
        Some(next) => format!(" Its next tick is at {next}."),
        None => " It does not fire before it is resumed.".to_owned(),
    };
    Ok(format!("Schedule {} was {done}.{next}", clean(&view.name)))
}
