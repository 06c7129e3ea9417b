//! `windlass dead-letters list`.

use clap::Args;

use super::Filter;
use crate::Result;
use crate::api::responses::{DeadLetterSummary, DeadLetters};
use crate::commands::{NamespaceArgs, print_response};
use crate::output::{Cell, FAINT, Table, left, paint, pluralize, right, status_style, terminal_width, text};
use crate::time;

/// List dead letters, the newest first
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass dead-letters list
  windlass dead-letters list --type 'order.*' --status failed --limit 100
  windlass dead-letters list --json | jq '.dead_letters[].error'")]
pub struct List {
    #[command(flatten)]
    filter: Filter,
    /// How many
    #[arg(long, short, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// How many to pass over
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
    #[command(flatten)]
    common: NamespaceArgs,
}

impl List {
    pub async fn run(self) -> Result {
        let mut query = self.filter.query();
        query.extend([("limit", self.limit.to_string()), ("offset", self.offset.to_string())]);
        let response = self
            .common
            .target
            .with_api(async |api| api.get(&api.namespace_path("/dead-letters"), &query).await)
            .await?;
        print_response(self.common.json, &response, |response| {
            let DeadLetters { dead_letters, total } = response.json()?;
            if dead_letters.is_empty() {
                return Ok(if total == 0 {
                    "No dead letter matches.".to_owned()
                } else {
                    format_total(0, total, self.offset)
                });
            }
            let shown = dead_letters.len() as u64;
            Ok(format!("{}\n{}", table(dead_letters).render(terminal_width()), format_total(shown, total, self.offset)))
        })
    }
}

fn format_total(shown: u64, total: u64, offset: u64) -> String {
    let next = offset + shown;
    let more = if next < total && shown > 0 { format!("; go on with --offset {next}") } else { String::new() };
    paint(&format!("{shown} of {}{more}", pluralize(total, "dead letter")), FAINT)
}

fn table(dead_letters: Vec<DeadLetterSummary>) -> Table<8> {
    let columns = [
        right("ID"),
        left("STATUS"),
        text("TYPE"),
        text("FOR"),
        right("TRIES"),
        left("GIVEN UP").optional(),
        text("REASON").optional(),
        text("ERROR"),
    ];
    let mut table = Table::new(columns);
    // Show the subscription column only if there is another subscription than `main`.
    let shows_subscription = dead_letters.iter().any(|dead_letter| dead_letter.subscription != "main");
    for dead_letter in dead_letters {
        table.row([
            dead_letter.event_id.into(),
            Cell::styled(&dead_letter.status, status_style(&dead_letter.status)),
            dead_letter.event_type.into(),
            shows_subscription.then_some(dead_letter.subscription).into(),
            dead_letter.attempts.into(),
            time::format_timestamp(dead_letter.failed_at).into(),
            dead_letter.reason.into(),
            dead_letter.error.into(),
        ]);
    }
    table
}
