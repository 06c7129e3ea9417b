//! `windlass stuck`: lists deliveries that a worker has held for long.

use std::time::Duration;

use clap::Args;
use windlass_api::{StuckBody, StuckDelivery};

use super::{NamespaceArgs, print_response};
use crate::Result;
use crate::output::{Cell, Table, WARN, left, right, terminal_width, text};
use crate::time;

/// List events that a worker holds for long
///
/// The one that is held longest comes first. An orphan was taken by a worker that never said that it began.
/// `windlass reset` takes an event from its worker.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass stuck
  windlass stuck --older-than 10m --limit 100
  windlass stuck --json | jq '.stuck[].event_id'")]
pub struct Stuck {
    /// Held for longer than this, as in 30s, 10m or 2h
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = time::parse_duration)]
    older_than: Duration,
    /// How many
    #[arg(long, short, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    common: NamespaceArgs,
}

impl Stuck {
    pub async fn run(self) -> Result {
        let query = [("older_than_ms", self.older_than.as_millis().to_string()), ("limit", self.limit.to_string())];
        let response =
            self.common.target.with_api(async |api| api.get(&api.namespace_path("/stuck"), &query).await).await?;
        print_response(self.common.json, &response, |response| {
            let deliveries = response.json::<StuckBody>()?.stuck;
            if deliveries.is_empty() {
                return Ok(format!(
                    "No worker holds an event for longer than {}.",
                    time::format_duration(self.older_than)
                ));
            }
            Ok(table(deliveries).render(terminal_width()))
        })
    }
}

fn table(deliveries: Vec<StuckDelivery>) -> Table<8> {
    let columns = [
        right("ID"),
        text("TYPE"),
        text("FOR").optional(),
        text("WORKER"),
        right("TRY"),
        right("HELD SINCE"),
        left("LEASE ENDS"),
        left("NOTE"),
    ];
    let mut table = Table::new(columns);
    for delivery in deliveries {
        let orphan_note = delivery.started_at.is_none().then(|| Cell::styled("orphan", WARN));
        table.row([
            delivery.event_id.into(),
            delivery.event_type.into(),
            delivery.subscription.into(),
            delivery.worker_id.into(),
            delivery.attempts.into(),
            time::format_age(delivery.picked_at).into(),
            time::format_age(delivery.lease_expires_at).into(),
            orphan_note.into(),
        ]);
    }
    table
}
