//! `windlass schedule`: manages cron rules that publish events.
//!
//! Each larger subcommand has a file of its own; pause, resume, run and remove are here.

mod edit;
mod list;
mod preview;
mod settings;
mod show;
mod view;

use clap::{Args, Subcommand};
use serde_json::json;

use self::edit::{Add, Edit};
use self::list::List;
use self::preview::Preview;
use self::show::Show;
use super::{NamespaceArgs, print_response};
use crate::Result;
use crate::api::responses::{EventId, Schedules};
use crate::api::{Api, ApiError, encode_segment};
use crate::output::{confirm, print, print_json, sanitize};

/// See and change schedules: cron rules that publish events
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass schedule add nightly --cron '0 3 * * *' --timezone Europe/Berlin --type report.due
  windlass schedule list
  windlass schedule run nightly
  windlass schedule edit nightly --cron '30 2 * * *'")]
pub struct Schedule {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(List),
    Show(Show),
    Add(Add),
    Edit(Edit),
    /// Let a schedule fire no more
    Pause(Named),
    /// Let a schedule fire again, from its next tick on
    Resume(Named),
    /// Publish a schedule's event now; its ticks come as before
    Run(Named),
    Remove(Remove),
    Preview(Preview),
}

#[derive(Args)]
struct Named {
    /// The schedule's name or id
    #[arg(value_name = "SCHEDULE")]
    schedule: String,
    #[command(flatten)]
    common: NamespaceArgs,
}

/// Remove a schedule; its events stay
#[derive(Args)]
struct Remove {
    /// The schedule's name or id
    #[arg(value_name = "SCHEDULE")]
    schedule: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    common: NamespaceArgs,
}

impl Schedule {
    pub async fn run(self) -> Result {
        match self.action {
            Action::List(list) => list.run().await,
            Action::Show(show) => show.run().await,
            Action::Add(add) => add.run().await,
            Action::Edit(edit) => edit.run().await,
            Action::Pause(named) => named.set_paused("pause").await,
            Action::Resume(named) => named.set_paused("resume").await,
            Action::Run(named) => named.run_now().await,
            Action::Remove(remove) => remove.run().await,
            Action::Preview(preview) => preview.run().await,
        }
    }
}

impl Named {
    async fn set_paused(self, verb: &str) -> Result {
        let response = self.common.target.with_api(async |api| {
            let path = schedule_path(api, &self.schedule).await?;
            api.post(&format!("{path}/{verb}"), &[], &()).await
        });
        let response = response.await?;
        print_response(self.common.json, &response, |response| {
            let next = view::next_tick(&response.json()?)
                .map(|next| format!(" Its next tick is at {next}."))
                .unwrap_or_default();
            Ok(format!("Schedule {} was {verb}d.{next}", sanitize(&self.schedule)))
        })
    }

    async fn run_now(self) -> Result {
        let response = self.common.target.with_api(async |api| {
            let path = schedule_path(api, &self.schedule).await?;
            api.post(&format!("{path}/run"), &[], &()).await
        });
        let response = response.await?;
        print_response(self.common.json, &response, |response| {
            let EventId { id } = response.json()?;
            Ok(format!("Schedule {} published event {id}.", sanitize(&self.schedule)))
        })
    }
}

impl Remove {
    async fn run(self) -> Result {
        let name = sanitize(&self.schedule);
        let work = async |api: &Api| {
            let path = schedule_path(api, &self.schedule).await?;
            confirm(&format!("remove schedule {name}"), self.yes)?;
            api.delete(&path, &[]).await
        };
        self.common.target.with_api(work).await?;
        match self.common.json {
            true => print_json(&json!({ "removed": self.schedule }).to_string()),
            false => print(&format!("Schedule {name} was removed.")),
        }
    }
}

/// Returns the path of a schedule, given by name or id.
async fn schedule_path(api: &Api, schedule: &str) -> Result<String> {
    let response =
        api.get(&api.namespace_path("/schedules"), &[("name", schedule.to_owned()), ("limit", "1".to_owned())]).await?;
    let found = response.json::<Schedules>()?.schedules.into_iter().next();
    let id = match found {
        Some(found) => found.id,
        None if is_uuid(schedule) => schedule.to_owned(),
        None => return Err(not_found(api, schedule).into()),
    };
    Ok(api.namespace_path(&format!("/schedules/{}", encode_segment(&id))))
}

/// Whether the text looks like a UUID.
fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn not_found(api: &Api, schedule: &str) -> ApiError {
    let message = format!("schedule '{schedule}' does not exist in namespace '{}'", api.namespace());
    ApiError { status: 404, code: "schedule_not_found".to_owned(), message }
}
