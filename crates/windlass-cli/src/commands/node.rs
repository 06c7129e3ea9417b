//! `windlass node`: lists the registered nodes.

use clap::{Args, Subcommand};

use super::{NamespaceArgs, print_response};
use crate::Result;
use crate::api::responses;
use crate::output::{Cell, FAINT, GOOD, Table, WARN, left, right, terminal_width, text};
use crate::time;

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
    common: NamespaceArgs,
}

impl Node {
    pub async fn run(self) -> Result {
        let Action::List(list) = self.action;
        list.run().await
    }
}

impl List {
    async fn run(self) -> Result {
        let response =
            self.common.target.with_api(async |api| api.get(&api.namespace_path("/nodes"), &[]).await).await?;
        print_response(self.common.json, &response, |response| {
            let nodes = response.json::<responses::Nodes>()?.nodes;
            if nodes.is_empty() {
                return Ok("No node is registered in this namespace.".to_owned());
            }
            Ok(table(nodes).render(terminal_width()))
        })
    }
}

fn table(nodes: Vec<responses::Node>) -> Table<6> {
    let columns = [
        text("NODE"),
        text("NAME"),
        left("STATUS"),
        right("LAST HEARD OF"),
        left("REGISTERED").optional(),
        text("HANDLES"),
    ];
    let mut table = Table::new(columns);
    for node in nodes {
        let style = match node.status.as_str() {
            "alive" => GOOD,
            "stale" => WARN,
            _ => FAINT,
        };
        table.row([
            node.node_id.into(),
            node.display_name.into(),
            Cell::styled(node.status, style),
            time::format_age(node.last_heartbeat).into(),
            time::format_timestamp(node.registered_at).into(),
            node.event_types.join(", ").into(),
        ]);
    }
    table
}
