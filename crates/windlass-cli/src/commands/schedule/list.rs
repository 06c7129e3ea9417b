//! `windlass schedule list`.

use clap::Args;
use serde::Deserialize;

use super::view::View;
use crate::Result;
use crate::api::given;
use crate::commands::{Common, show};
use crate::output::{Cell, FAINT, Table, counted, left, paint, text, width};
use crate::when;

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
    common: Common,
}

#[derive(Deserialize)]
struct Body {
    schedules: Vec<View>,
    total: u64,
}

impl List {
    pub async fn run(self) -> Result {
        let query = given([
            ("active", (self.active || self.paused).then(|| self.active.to_string())),
            ("type", self.event_type),
            ("limit", Some(self.limit.to_string())),
            ("offset", Some(self.offset.to_string())),
        ]);
        let answer = self.common.target.with(async |api| api.get(&api.within("/schedules"), &query).await).await?;
        show(self.common.json, &answer, |answer| {
            let Body { schedules, total } = answer.read()?;
            if schedules.is_empty() {
                return Ok("No schedule matches; `windlass schedule add` makes one.".to_owned());
            }
            let next = self.offset + schedules.len() as u64;
            let mut text = table(&schedules).render(width());
            if next < total {
                let all = counted(total, "schedule");
                text += &format!("\n{}", paint(&format!("{all} in all; go on with --offset {next}"), FAINT));
            }
            Ok(text)
        })
    }
}

fn table(schedules: &[View]) -> Table<8> {
    let columns = [
        left("NAME"),
        left("STATUS"),
        left("CRON"),
        left("TIME ZONE"),
        text("TYPE"),
        left("NEXT"),
        left("LAST").spare(),
        left("RUN BY").spare(),
    ];
    let mut table = Table::new(columns);
    for view in schedules {
        let (status, style) = view.status();
        table.row([
            Cell::new(&view.name),
            Cell::styled(status, style),
            Cell::new(&view.cron),
            Cell::new(&view.timezone),
            Cell::new(&view.event_type),
            view.next().into(),
            view.last_at.map(when::shown).into(),
            // Windlass, usually.
            Some(view.runner.as_str()).filter(|runner| *runner != "windlass").into(),
        ]);
    }
    table
}
