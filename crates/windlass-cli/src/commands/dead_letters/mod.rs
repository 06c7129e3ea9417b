//! `windlass dead-letters`: what will not be tried again by itself.

mod act;
mod list;
mod show;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use windlass::{Status, Timestamp};

use self::act::Act;
use self::list::List;
use self::show::Show;
use super::status;
use crate::Result;
use crate::api::{given, joined};
use crate::when;

/// See what failed for good; bring it back, or throw it away
#[derive(Args)]
pub struct DeadLetters {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(List),
    Show(Show),
    /// Bring dead letters back: by id, all that match, or all there are
    ///
    /// They are pending again, with fresh retries.
    #[command(after_help = "\
Examples:
  windlass dead-letters redrive 1001 1002
  windlass dead-letters redrive --type 'order.*' --reason 'Handler error'
  windlass dead-letters redrive --all --yes")]
    Redrive(Act),
    /// Delete dead letters: by id, all that match, or all there are
    ///
    /// Their events stay in the history.
    #[command(after_help = "\
Examples:
  windlass dead-letters purge 1001
  windlass dead-letters purge --status expired --failed-before 30d
  windlass dead-letters purge --type 'newsletter.*' --yes")]
    Purge(Act),
}

impl DeadLetters {
    pub async fn run(self) -> Result {
        match self.action {
            Action::List(list) => list.run().await,
            Action::Show(show) => show.run().await,
            Action::Redrive(act) => act.run(act::REDRIVE).await,
            Action::Purge(act) => act.run(act::PURGE).await,
        }
    }
}

/// Which dead letters.
#[derive(Args)]
struct Filter {
    /// Only of this subscription
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
    /// Only failed or only expired ones
    #[arg(long, short, value_name = "STATUS", value_parser = status)]
    status: Option<Status>,
    /// Only these types, exact or by prefix ending in `*`; several with commas
    #[arg(long = "type", short, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Only with exactly this reason
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only those given up before then: how long ago, as in 15m, a day, as in 2026-01-31, or an instant
    #[arg(long, value_name = "WHEN", value_parser = when::moment)]
    failed_before: Option<Timestamp>,
}

impl Filter {
    fn query(&self) -> Vec<(&'static str, String)> {
        given([
            ("subscription", self.subscription.clone()),
            ("status", self.status.map(|status| status.to_string())),
            ("types", joined(&self.types)),
            ("reason", self.reason.clone()),
            ("failed_before", self.failed_before.map(when::exact)),
        ])
    }

    fn is_empty(&self) -> bool {
        self.query().is_empty()
    }

    fn body(&self) -> Map<String, Value> {
        self.query().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
    }
}
