//! `windlass schedule show`.

use clap::Args;
use windlass_api::{FiresBody, ScheduleFire};

use super::schedule_path;
use super::view::status;
use crate::Result;
use crate::api::responses::Schedule;
use crate::api::{Api, ApiResponse};
use crate::commands::{NamespaceArgs, get};
use crate::output::{
    BAD, Cell, FAINT, Table, format_fields, format_section, left, paint, print, print_json, right, sanitize,
    sanitize_lines, terminal_width, text,
};
use crate::time;

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
    common: NamespaceArgs,
}

/// Number of fires that are shown.
const FIRES_SHOWN: usize = 5;

impl Show {
    pub async fn run(self) -> Result {
        let (response, fires) = self.common.target.with_api(async |api| self.request(api).await).await?;
        let Some(fires) = fires else { return print_json(&response.text) };
        print(&format_schedule(&response.json()?, &fires.json::<FiresBody>()?.fires))
    }

    async fn request(&self, api: &Api) -> Result<(ApiResponse, Option<ApiResponse>)> {
        let path = schedule_path(api, &self.schedule).await?;
        let response = api.get(&path, &[]).await?;
        if self.common.json {
            return Ok((response, None));
        }
        let fires = api.get(&format!("{path}/fires"), &[("limit", FIRES_SHOWN.to_string())]).await?;
        Ok((response, Some(fires)))
    }
}

fn format_schedule(view: &Schedule, fires: &[ScheduleFire]) -> String {
    let (status, style) = status(view);
    let next: Vec<String> = view.next_runs.iter().copied().map(time::format_with_age).collect();
    let last = view.last_at.map(|at| match view.last_event_id {
        Some(id) => format!("{}, event {id}", time::format_with_age(at)),
        None => time::format_with_age(at),
    });
    let values = [
        ("schedule", Some(sanitize(&view.name))),
        ("id", Some(sanitize(&view.id))),
        ("status", Some(paint(status, style))),
        ("cron", Some(format!("{}  {}", sanitize(&view.cron), paint(&sanitize(&view.timezone), FAINT)))),
        ("next", Some(next.join("\n")).filter(|next| !next.is_empty())),
        ("last", last),
        ("missed ticks", Some(sanitize(&view.missed))),
        ("run by", Some(sanitize(&view.runner))),
        ("type", Some(sanitize(&view.event_type))),
        ("title", view.title.as_deref().map(sanitize)),
        ("description", view.description.as_deref().map(sanitize_lines)),
        ("tags", Some(sanitize(&view.tags)).filter(|tags| !tags.is_empty())),
        ("group", view.group_id.as_deref().map(sanitize)),
        ("priority", Some(view.priority).filter(|priority| *priority != 0).map(|priority| priority.to_string())),
        ("max retries", view.max_retries.map(|max| max.to_string())),
        ("expires in", view.expires_in_ms.map(time::format_elapsed)),
        ("metadata", view.metadata.as_ref().map(|metadata| sanitize(metadata.get()))),
        ("created", Some(time::format_with_age(view.created_at))),
    ];
    let mut text =
        format!("{}\n\n{}", format_fields(&values), format_section("Payload", &get::format_payload(&view.payload)));
    if !fires.is_empty() {
        text += &format!("\n\n{}", format_section("Fired", &table(fires).render(terminal_width())));
    }
    text
}

fn table(fires: &[ScheduleFire]) -> Table<4> {
    let mut table = Table::new([left("TICK"), right("EVENT"), left("NOTE"), text("ERROR")]);
    for fire in fires {
        let skipped = (fire.skipped > 0).then(|| format!("{} passed over before it", fire.skipped));
        let note = if fire.manual { Some("by hand".to_owned()) } else { skipped };
        let error = fire.error.as_ref().map(|error| Cell::styled(error, BAD));
        table.row([time::format_timestamp(fire.tick_at).into(), fire.event_id.into(), note.into(), error.into()]);
    }
    table
}
