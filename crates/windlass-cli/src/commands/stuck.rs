//! `windlass stuck`: what workers hold for too long.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use windlass::Timestamp;

use super::{Common, show};
use crate::Result;
use crate::output::{Cell, Table, WARN, left, right, text, width};
use crate::when;

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
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = when::span)]
    older_than: Duration,
    /// How many
    #[arg(long, short, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Deserialize)]
struct Body {
    stuck: Vec<Held>,
}

#[derive(Deserialize)]
struct Held {
    event_id: i64,
    #[serde(rename = "type")]
    event_type: String,
    subscription: String,
    worker_id: String,
    attempts: u32,
    picked_at: Timestamp,
    started_at: Option<Timestamp>,
    lease_expires_at: Timestamp,
}

impl Stuck {
    pub async fn run(self) -> Result {
        let query = [("older_than_ms", self.older_than.as_millis().to_string()), ("limit", self.limit.to_string())];
        let answer = self.common.target.with(async |api| api.get(&api.within("/stuck"), &query).await).await?;
        show(self.common.json, &answer, |answer| {
            let held = answer.read::<Body>()?.stuck;
            if held.is_empty() {
                return Ok(format!("No worker holds an event for longer than {}.", when::rough(self.older_than)));
            }
            Ok(table(held).render(width()))
        })
    }
}

fn table(held: Vec<Held>) -> Table<8> {
    let columns = [
        right("ID"),
        text("TYPE"),
        text("FOR").spare(),
        text("WORKER"),
        right("TRY"),
        right("HELD SINCE"),
        left("LEASE ENDS"),
        left("NOTE"),
    ];
    let mut table = Table::new(columns);
    for Held { event_id, event_type, subscription, worker_id, attempts, picked_at, started_at, lease_expires_at } in
        held
    {
        let orphan = started_at.is_none().then(|| Cell::styled("orphan", WARN));
        table.row([
            event_id.into(),
            event_type.into(),
            subscription.into(),
            worker_id.into(),
            attempts.into(),
            when::ago(picked_at).into(),
            when::ago(lease_expires_at).into(),
            orphan.into(),
        ]);
    }
    table
}
