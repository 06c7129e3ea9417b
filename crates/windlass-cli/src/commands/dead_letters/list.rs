//! `windlass dead-letters list`.

use clap::Args;
use serde::Deserialize;
use windlass::Timestamp;

use super::Filter;
use crate::Result;
use crate::commands::{Common, show};
use crate::output::{Cell, FAINT, Table, counted, left, of_status, paint, right, text, width};
use crate::when;

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
    common: Common,
}

#[derive(Deserialize)]
struct Body {
    dead_letters: Vec<Letter>,
    total: u64,
}

#[derive(Deserialize)]
struct Letter {
    event_id: i64,
    #[serde(rename = "type")]
    event_type: String,
    subscription: String,
    status: String,
    reason: String,
    error: Option<String>,
    attempts: u32,
    failed_at: Timestamp,
}

impl List {
    pub async fn run(self) -> Result {
        let mut query = self.filter.query();
        query.extend([("limit", self.limit.to_string()), ("offset", self.offset.to_string())]);
        let answer = self.common.target.with(async |api| api.get(&api.within("/dead-letters"), &query).await).await?;
        show(self.common.json, &answer, |answer| {
            let Body { dead_letters, total } = answer.read()?;
            if dead_letters.is_empty() {
                return Ok(if total == 0 { "No dead letter matches.".to_owned() } else { all(0, total, self.offset) });
            }
            let shown = dead_letters.len() as u64;
            Ok(format!("{}\n{}", table(dead_letters).render(width()), all(shown, total, self.offset)))
        })
    }
}

fn all(shown: u64, total: u64, offset: u64) -> String {
    let next = offset + shown;
    let more = if next < total && shown > 0 { format!("; go on with --offset {next}") } else { String::new() };
    paint(&format!("{shown} of {}{more}", counted(total, "dead letter")), FAINT)
}

fn table(letters: Vec<Letter>) -> Table<8> {
    let columns = [
        right("ID"),
        left("STATUS"),
        text("TYPE"),
        text("FOR"),
        right("TRIES"),
        left("GIVEN UP").spare(),
        text("REASON").spare(),
        text("ERROR"),
    ];
    let mut table = Table::new(columns);
    // Which subscription it was for is no news where there is but one.
    let several = letters.iter().any(|letter| letter.subscription != "main");
    for Letter { event_id, event_type, subscription, status, reason, error, attempts, failed_at } in letters {
        let style = of_status(&status);
        table.row([
            event_id.into(),
            Cell::styled(status, style),
            event_type.into(),
            several.then_some(subscription).into(),
            attempts.into(),
            when::shown(failed_at).into(),
            reason.into(),
            error.into(),
        ]);
    }
    table
}
