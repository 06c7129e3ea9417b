//! `windlass reset`: makes processing or failed deliveries pending again.

use clap::Args;

use super::NamespaceArgs;
use crate::Result;
use crate::api::responses::ResetEvent;
use crate::api::{ApiResponse, present_params};
use crate::output::{print, print_json, sanitize};

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
    common: NamespaceArgs,
}

impl Reset {
    pub async fn run(self) -> Result {
        let query = present_params([("reason", self.reason), ("subscription", self.subscription)]);
        let (json, ids) = (self.common.json, self.event_ids);
        let work = async |api: &crate::api::Api| {
            for id in ids {
                let response = api.post(&api.namespace_path(&format!("/events/{id}/reset")), &query, &()).await?;
                if json { print_json(&response.text)? } else { print(&format_result(&response)?)? }
            }
            Ok(())
        };
        self.common.target.with_api(work).await
    }
}

fn format_result(response: &ApiResponse) -> Result<String> {
    let ResetEvent { id, status } = response.json()?;
    Ok(format!("Event {id} was reset and is {}.", sanitize(&status)))
}
