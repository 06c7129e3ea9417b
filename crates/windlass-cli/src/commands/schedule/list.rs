//! `windlass schedule list`.

use clap::Args;

use super::view::{next_tick, status};
use crate::Result;
use crate::api::present_params;
use crate::api::responses::{Schedule, Schedules};
use crate::commands::{NamespaceArgs, print_response};
use crate::output::{Cell, FAINT, Table, left, paint, pluralize, terminal_width, text};
use crate::time;

/// List schedules, by name
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass schedule list
  windlass schedule list --paused
  windlass schedule list --type report.due --json")]
pub struct List {
    /// Only those that fire
    #[arg(long, conflicts_with = "paused")]
    active: bool,
    /// Only those that do not
    #[arg(long)]
    paused: bool,
    /// Only those whose events are of this type
    #[arg(long = "type", short, value_name = "TYPE")]
    event_type: Option<String>,
    /// How many
    #[arg(long, short, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// How many to pass over
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
    #[command(flatten)]
    common: NamespaceArgs,
}

impl List {
    pub async fn run(self) -> Result {
        let query = present_params([
            ("active", (self.active || self.paused).then(|| self.active.to_string())),
            ("type", self.event_type),
            ("limit", Some(self.limit.to_string())),
            ("offset", Some(self.offset.to_string())),
        ]);
        let response =
            self.common.target.with_api(async |api| api.get(&api.namespace_path("/schedules"), &query).await).await?;
        print_response(self.common.json, &response, |response| {
            let Schedules { schedules, total } = response.json()?;
            if schedules.is_empty() {
                return Ok("No schedule matches; `windlass schedule add` makes one.".to_owned());
            }
            let next = self.offset + schedules.len() as u64;
            let mut text = table(&schedules).render(terminal_width());
            if next < total {
                let count = pluralize(total, "schedule");
                text += &format!("\n{}", paint(&format!("{count} in all; go on with --offset {next}"), FAINT));
            }
            Ok(text)
        })
    }
}

fn table(schedules: &[Schedule]) -> Table<8> {
    let columns = [
        left("NAME"),
        left("STATUS"),
        left("CRON"),
        left("TIME ZONE"),
        text("TYPE"),
        left("NEXT"),
        left("LAST").optional(),
        left("RUN BY").optional(),
    ];
    let mut table = Table::new(columns);
    for view in schedules {
        let (status, style) = status(view);
        table.row([
            Cell::new(&view.name),
            Cell::styled(status, style),
            Cell::new(&view.cron),
            Cell::new(&view.timezone),
            Cell::new(&view.event_type),
            next_tick(view).into(),
            view.last_at.map(time::format_timestamp).into(),
            // Show the runner only if it is not Windlass itself.
            Some(view.runner.as_str()).filter(|runner| *runner != "windlass").into(),
        ]);
    }
    table
}
