//! `windlass reset`: take events from their workers by hand.

use clap::Args;
use serde::Deserialize;

use super::Common;
use crate::Result;
use crate::api::{Answer, given};
use crate::output::{print, print_json};

/// Take events from their workers, or out of the dead letters
///
/// Each is pending again at once, and the worker that held it can no longer report on it. One that failed or
/// expired is redriven.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass reset 1001
  windlass reset 1001 1002 --reason 'worker-3 hangs'")]
pub struct Reset {
    /// The events' ids
    #[arg(value_name = "ID", required = true)]
    event_ids: Vec<i64>,
    /// Why; it is kept in the event's history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Whose delivery; `main` if not given
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
    #[command(flatten)]
    common: Common,
}

impl Reset {
    pub async fn run(self) -> Result {
        let query = given([("reason", self.reason), ("subscription", self.subscription)]);
        let (json, ids) = (self.common.json, self.event_ids);
        let work = async |api: &crate::api::Api| {
            for id in ids {
                let answer = api.post(&api.within(&format!("/events/{id}/reset")), &query, &()).await?;
                if json { print_json(&answer.text)? } else { print(&told(&answer)?)? }
            }
            Ok(())
        };
        self.common.target.with(work).await
    }
}

fn told(answer: &Answer) -> Result<String> {
    #[derive(Deserialize)]
    struct Event {
        id: i64,
        status: String,
    }
    let Event { id, status } = answer.read()?;
    Ok(format!("Event {id} was reset and is {status}."))
}
