//! `windlass worker`: who works.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Deserialize;
use windlass::Timestamp;

use super::{Common, show};
use crate::Result;
use crate::output::{Cell, GOOD, Table, WARN, left, right, text, width};
use crate::when;

/// See who takes events
#[derive(Args)]
pub struct Worker {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(List),
}

/// List whoever holds events, or reported on one within the last hour
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass worker list
  windlass worker list --stale-after 5m --namespace orders")]
struct List {
    /// A worker that holds events and was silent for longer than this is stale
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = when::span)]
    stale_after: Duration,
    #[command(flatten)]
    common: Common,
}

#[derive(Deserialize)]
struct Body {
    workers: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    worker_id: String,
    held: u64,
    oldest_picked_at: Option<Timestamp>,
    last_seen_at: Timestamp,
    stale: bool,
}

impl Worker {
    pub async fn run(self) -> Result {
        let Action::List(list) = self.action;
        list.run().await
    }
}

impl List {
    async fn run(self) -> Result {
        let query = [("stale_after_ms", self.stale_after.as_millis().to_string())];
        let answer = self.common.target.with(async |api| api.get(&api.within("/workers"), &query).await).await?;
        show(self.common.json, &answer, |answer| {
            let workers = answer.read::<Body>()?.workers;
            if workers.is_empty() {
                return Ok("No worker took or finished an event within the last hour.".to_owned());
            }
            Ok(table(workers).render(width()))
        })
    }
}

fn table(workers: Vec<Found>) -> Table<5> {
    let mut table =
        Table::new([text("WORKER"), left("STATUS"), right("HOLDS"), right("OLDEST SINCE"), right("LAST SEEN")]);
    for Found { worker_id, held, oldest_picked_at, last_seen_at, stale } in workers {
        let status = match (stale, held) {
            (true, _) => Cell::styled("stale", WARN),
            (false, 0) => "idle".into(),
            (false, _) => Cell::styled("working", GOOD),
        };
        let oldest = oldest_picked_at.map(when::ago);
        table.row([worker_id.into(), status, held.into(), oldest.into(), when::ago(last_seen_at).into()]);
    }
    table
}
