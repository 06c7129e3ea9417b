//! `windlass schedule`: cron rules that publish events.

mod edit;
mod list;
mod preview;
mod settings;
mod show;
mod view;

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::json;

use self::edit::{Add, Edit};
use self::list::List;
use self::preview::Preview;
use self::show::Show;
use super::{Common, show as show_answer};
use crate::Result;
use crate::api::{Api, Refusal, segment};
use crate::output::{clean, confirm, print, print_json};

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
    common: Common,
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
    common: Common,
}

impl Schedule {
    pub async fn run(self) -> Result {
        match self.action {
            Action::List(list) => list.run().await,
            Action::Show(show) => show.run().await,
            Action::Add(add) => add.run().await,
            Action::Edit(edit) => edit.run().await,
            Action::Pause(named) => named.turn("pause").await,
            Action::Resume(named) => named.turn("resume").await,
            Action::Run(named) => named.publish().await,
            Action::Remove(remove) => remove.run().await,
            Action::Preview(preview) => preview.run().await,
        }
    }
}

impl Named {
    async fn turn(self, verb: &str) -> Result {
        let answer = self.common.target.with(async |api| {
            let path = path_of(api, &self.schedule).await?;
            api.post(&format!("{path}/{verb}"), &[], &()).await
        });
        let answer = answer.await?;
        show_answer(self.common.json, &answer, |answer| {
            let view: view::View = answer.read()?;
            let next = view.next().map(|next| format!(" Its next tick is at {next}.")).unwrap_or_default();
            Ok(format!("Schedule {} was {verb}d.{next}", clean(&self.schedule)))
        })
    }

    async fn publish(self) -> Result {
        #[derive(Deserialize)]
        struct Event {
            id: i64,
        }
        let answer = self.common.target.with(async |api| {
            let path = path_of(api, &self.schedule).await?;
            api.post(&format!("{path}/run"), &[], &()).await
        });
        let answer = answer.await?;
        show_answer(self.common.json, &answer, |answer| {
            let Event { id } = answer.read()?;
            Ok(format!("Schedule {} published event {id}.", clean(&self.schedule)))
        })
    }
}

impl Remove {
    async fn run(self) -> Result {
        let name = clean(&self.schedule);
        let work = async |api: &Api| {
            let path = path_of(api, &self.schedule).await?;
            confirm(&format!("remove schedule {name}"), self.yes)?;
            api.delete(&path, &[]).await
        };
        self.common.target.with(work).await?;
        match self.common.json {
            true => print_json(&json!({ "removed": self.schedule }).to_string()),
            false => print(&format!("Schedule {name} was removed.")),
        }
    }
}

/// The path of a schedule, which people know by its name.
async fn path_of(api: &Api, schedule: &str) -> Result<String> {
    #[derive(Deserialize)]
    struct Body {
        schedules: Vec<Found>,
    }
    #[derive(Deserialize)]
    struct Found {
        id: String,
    }
    let answer =
        api.get(&api.within("/schedules"), &[("name", schedule.to_owned()), ("limit", "1".to_owned())]).await?;
    let found = answer.read::<Body>()?.schedules.into_iter().next();
    let id = match found {
        Some(Found { id }) => id,
        None if is_id(schedule) => schedule.to_owned(),
        None => return Err(not_found(api, schedule).into()),
    };
    Ok(api.within(&format!("/schedules/{}", segment(&id))))
}

/// A UUID.
fn is_id(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn not_found(api: &Api, schedule: &str) -> Refusal {
    let sentence = format!("schedule '{schedule}' does not exist in namespace '{}'", api.namespace());
    Refusal { status: 404, code: "schedule_not_found".to_owned(), sentence }
}
