//! `windlass worker`: lists the workers that hold leases or reported recently.

use std::time::Duration;

use clap::{Args, Subcommand};
use windlass_api::{WorkerView, WorkersBody};

use super::{NamespaceArgs, print_response};
use crate::Result;
use crate::output::{Cell, GOOD, Table, WARN, left, right, terminal_width, text};
use crate::time;

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

/// List workers that hold events or reported on one within the last hour
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass worker list
  windlass worker list --stale-after 5m --namespace orders")]
struct List {
    /// A worker that holds events and was silent for longer than this is stale
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = time::parse_duration)]
    stale_after: Duration,
    #[command(flatten)]
    common: NamespaceArgs,
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
        let response =
            self.common.target.with_api(async |api| api.get(&api.namespace_path("/workers"), &query).await).await?;
        print_response(self.common.json, &response, |response| {
            let workers = response.json::<WorkersBody>()?.workers;
            if workers.is_empty() {
                return Ok("No worker took or finished an event within the last hour.".to_owned());
            }
            Ok(table(workers).render(terminal_width()))
        })
    }
}

fn table(workers: Vec<WorkerView>) -> Table<5> {
    let mut table =
        Table::new([text("WORKER"), left("STATUS"), right("HOLDS"), right("OLDEST SINCE"), right("LAST SEEN")]);
    for WorkerView { worker_id, held, oldest_picked_at, last_seen_at, stale } in workers {
        let status = match (stale, held) {
            (true, _) => Cell::styled("stale", WARN),
            (false, 0) => "idle".into(),
            (false, _) => Cell::styled("working", GOOD),
        };
        let oldest = oldest_picked_at.map(time::format_age);
        table.row([worker_id.into(), status, held.into(), oldest.into(), time::format_age(last_seen_at).into()]);
    }
    table
}
