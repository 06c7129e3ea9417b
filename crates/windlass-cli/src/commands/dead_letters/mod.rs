//! `windlass dead-letters`: lists, shows, redrives and purges deliveries that are no longer retried.
//!
//! Each subcommand has a file of its own, except that redrive and purge share one.

mod list;
mod redrive_or_purge;
mod show;

use clap::{Args, Subcommand};
use windlass::{Status, Timestamp};
use windlass_api::DeadLetterFilterRequest;

use self::list::List;
use self::redrive_or_purge::{PURGE, REDRIVE, RedriveOrPurge};
use self::show::Show;
use super::parse_status;
use crate::Result;
use crate::api::{comma_separated, present_params};
use crate::time;

/// List, redrive or purge dead letters
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
    Redrive(RedriveOrPurge),
    /// Delete dead letters: by id, all that match, or all there are
    ///
    /// Their events stay in the history.
    #[command(after_help = "\
Examples:
  windlass dead-letters purge 1001
  windlass dead-letters purge --status expired --failed-before 30d
  windlass dead-letters purge --type 'newsletter.*' --yes")]
    Purge(RedriveOrPurge),
}

impl DeadLetters {
    pub async fn run(self) -> Result {
        match self.action {
            Action::List(list) => list.run().await,
            Action::Show(show) => show.run().await,
            Action::Redrive(redrive) => redrive.run(REDRIVE).await,
            Action::Purge(purge) => purge.run(PURGE).await,
        }
    }
}

/// Selects dead letters.
#[derive(Args)]
struct Filter {
    /// Only of this subscription
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
    /// Only failed or only expired ones
    #[arg(long, short, value_name = "STATUS", value_parser = parse_status)]
    status: Option<Status>,
    /// Only these types, exact or by prefix ending in `*`; several with commas
    #[arg(long = "type", short, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Only with exactly this reason
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only those given up before then: how long ago, as in 15m, a day, as in 2026-01-31, or an instant
    #[arg(long, value_name = "WHEN", value_parser = time::parse_time_or_age)]
    failed_before: Option<Timestamp>,
}

impl Filter {
    fn query(&self) -> Vec<(&'static str, String)> {
        present_params([
            ("subscription", self.subscription.clone()),
            ("status", self.status.map(|status| status.to_string())),
            ("types", comma_separated(&self.types)),
            ("reason", self.reason.clone()),
            ("failed_before", self.failed_before.map(time::to_rfc3339)),
        ])
    }

    fn is_empty(&self) -> bool {
        self.query().is_empty()
    }

    fn request(&self) -> DeadLetterFilterRequest {
        DeadLetterFilterRequest {
            subscription: self.subscription.clone(),
            status: self.status,
            types: comma_separated(&self.types).map(Into::into),
            reason: self.reason.clone(),
            failed_before: self.failed_before,
            ..DeadLetterFilterRequest::default()
        }
    }
}
