//! `windlass node`: which processes there are.

use clap::{Args, Subcommand};
use serde::Deserialize;
use windlass::Timestamp;

use super::{Common, show};
use crate::Result;
use crate::output::{Cell, FAINT, GOOD, Table, WARN, left, right, text, width};
use crate::when;

/// See which nodes there are
///
/// A node is a process that handles events and says every half minute that it lives.
#[derive(Args)]
pub struct Node {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(List),
}

/// List the nodes, and whether they live
///
/// One that was silent for three heartbeats of 30 s is stale; after a week it is forgotten.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass node list
  windlass node list --json | jq '.nodes[] | select(.status == \"stale\") | .node_id'")]
struct List {
    #[command(flatten)]
    common: Common,
}

#[derive(Deserialize)]
struct Body {
    nodes: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    node_id: String,
    display_name: Option<String>,
    event_types: Vec<String>,
    registered_at: Timestamp,
    last_heartbeat: Timestamp,
    status: String,
}

impl Node {
    pub async fn run(self) -> Result {
        let Action::List(list) = self.action;
        list.run().await
    }
}

impl List {
    async fn run(self) -> Result {
        let answer = self.common.target.with(async |api| api.get(&api.within("/nodes"), &[]).await).await?;
        show(self.common.json, &answer, |answer| {
            let nodes = answer.read::<Body>()?.nodes;
            if nodes.is_empty() {
                return Ok("No node is registered in this namespace.".to_owned());
            }
            Ok(table(nodes).render(width()))
        })
    }
}

fn table(nodes: Vec<Found>) -> Table<6> {
    let columns = [
        text("NODE"),
        text("NAME"),
        left("STATUS"),
        right("LAST HEARD OF"),
        left("REGISTERED").spare(),
        text("HANDLES"),
    ];
    let mut table = Table::new(columns);
    for Found { node_id, display_name, event_types, registered_at, last_heartbeat, status } in nodes {
        let style = match status.as_str() {
            "alive" => GOOD,
            "stale" => WARN,
            _ => FAINT,
        };
        table.row([
            node_id.into(),
            display_name.into(),
            Cell::styled(status, style),
            when::ago(last_heartbeat).into(),
            when::shown(registered_at).into(),
            event_types.join(", ").into(),
        ]);
    }
    table
}
