//! `windlass schedule show`.

use clap::Args;
use serde::Deserialize;
use windlass::Timestamp;

use super::path_of;
use super::view::View;
use crate::Result;
use crate::api::{Answer, Api};
use crate::commands::{Common, get};
use crate::output::{
    BAD, Cell, FAINT, Table, clean, clean_lines, fields, left, paint, print, print_json, right, section, text, width,
};
use crate::when;

/// Show a schedule: its event, its next ticks, and what it fired lately
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass schedule show nightly
  windlass schedule show nightly --json | jq .next_runs")]
pub struct Show {
    /// The schedule's name or id
    #[arg(value_name = "SCHEDULE")]
    schedule: String,
    #[command(flatten)]
    common: Common,
}

/// A tick that is on record.
#[derive(Deserialize)]
struct Fire {
    tick_at: Timestamp,
    manual: bool,
    event_id: Option<i64>,
    skipped: u64,
    error: Option<String>,
}

/// How many of them are shown.
const FIRES: usize = 5;

impl Show {
    pub async fn run(self) -> Result {
        let (answer, fires) = self.common.target.with(async |api| self.ask(api).await).await?;
        let Some(fires) = fires else { return print_json(&answer.text) };
        #[derive(Deserialize)]
        struct Fires {
            fires: Vec<Fire>,
        }
        print(&shown(&answer.read()?, &fires.read::<Fires>()?.fires))
    }

    async fn ask(&self, api: &Api) -> Result<(Answer, Option<Answer>)> {
        let path = path_of(api, &self.schedule).await?;
        let answer = api.get(&path, &[]).await?;
        if self.common.json {
            return Ok((answer, None));
        }
        let fires = api.get(&format!("{path}/fires"), &[("limit", FIRES.to_string())]).await?;
        Ok((answer, Some(fires)))
    }
}

fn shown(view: &View, fires: &[Fire]) -> String {
    let (status, style) = view.status();
    let next: Vec<String> = view.next_runs.iter().copied().map(when::shown_with_age).collect();
    let last = view.last_at.map(|at| match view.last_event_id {
        Some(id) => format!("{}, event {id}", when::shown_with_age(at)),
        None => when::shown_with_age(at),
    });
    let facts = [
        ("schedule", Some(clean(&view.name))),
        ("id", Some(clean(&view.id))),
        ("status", Some(paint(status, style))),
        ("cron", Some(format!("{}  {}", clean(&view.cron), paint(&clean(&view.timezone), FAINT)))),
        ("next", Some(next.join("\n")).filter(|next| !next.is_empty())),
        ("last", last),
        ("missed ticks", Some(clean(&view.missed))),
        ("run by", Some(clean(&view.runner))),
        ("type", Some(clean(&view.event_type))),
        ("title", view.title.as_deref().map(clean)),
        ("description", view.description.as_deref().map(clean_lines)),
        ("tags", Some(clean(&view.tags)).filter(|tags| !tags.is_empty())),
        ("group", view.group_id.as_deref().map(clean)),
        ("priority", Some(view.priority).filter(|priority| *priority != 0).map(|priority| priority.to_string())),
        ("max retries", view.max_retries.map(|max| max.to_string())),
        ("expires in", view.expires_in_ms.map(when::took)),
        ("metadata", view.metadata.as_ref().map(|metadata| clean(metadata.get()))),
        ("created", Some(when::shown_with_age(view.created_at))),
    ];
    let mut text = format!("{}\n\n{}", fields(&facts), section("Payload", &get::payload(&view.payload)));
    if !fires.is_empty() {
        text += &format!("\n\n{}", section("Fired", &table(fires).render(width())));
    }
    text
}

fn table(fires: &[Fire]) -> Table<4> {
    let mut table = Table::new([left("TICK"), right("EVENT"), left("NOTE"), text("ERROR")]);
    for fire in fires {
        let passed = (fire.skipped > 0).then(|| format!("{} passed over before it", fire.skipped));
        let note = if fire.manual { Some("by hand".to_owned()) } else { passed };
        let error = fire.error.as_ref().map(|error| Cell::styled(error, BAD));
        table.row([when::shown(fire.tick_at).into(), fire.event_id.into(), note.into(), error.into()]);
    }
    table
}
