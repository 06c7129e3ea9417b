//! `windlass dead-letters redrive` and `purge`: one operation on selected dead letters.

use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use windlass_api::{BoundedList, DeadLetterFilterRequest, PurgedBody, RedrivenBody};

use super::Filter;
use crate::Result;
use crate::api::responses::Total;
use crate::api::{Api, ApiError, ApiResponse};
use crate::commands::NamespaceArgs;
use crate::exit::UsageError;
use crate::output::{confirm, pluralize, print, print_json, progress};

/// An operation on dead letters.
#[derive(Clone, Copy)]
pub struct Operation {
    verb: &'static str,
    past_participle: &'static str,
    /// Irreversible operations always need a confirmation.
    is_irreversible: bool,
    /// Returns the number of changed dead letters in the response.
    changed_count: fn(&ApiResponse) -> Result<usize>,
}

pub const REDRIVE: Operation = Operation {
    verb: "redrive",
    past_participle: "redriven",
    is_irreversible: false,
    changed_count: |response| Ok(response.json::<RedrivenBody>()?.redriven),
};
pub const PURGE: Operation = Operation {
    verb: "purge",
    past_participle: "purged",
    is_irreversible: true,
    changed_count: |response| Ok(response.json::<PurgedBody>()?.purged),
};

#[derive(Args)]
pub struct RedriveOrPurge {
    /// The events' ids
    #[arg(value_name = "ID")]
    event_ids: Vec<i64>,
    #[command(flatten)]
    filter: Filter,
    /// All there are in the namespace
    #[arg(long)]
    all: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    common: NamespaceArgs,
}

/// The API's limit on the ids in a request.
const IDS_MAX: usize = 1_000;
/// How often the progress bar is updated.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

impl RedriveOrPurge {
    pub async fn run(self, operation: Operation) -> Result {
        match (self.event_ids.is_empty() && self.filter.is_empty(), self.all) {
            (true, false) => {
                Err(UsageError("say which: by their ids, a filter such as --type, or --all".to_owned()).into())
            }
            (false, true) => Err(UsageError("--all makes no sense with ids or a filter".to_owned()).into()),
            _ => self.common.target.with_api(async |api| self.apply(api, operation).await).await,
        }
    }

    async fn apply(&self, api: &Api, operation: Operation) -> Result {
        let count = match self.event_ids.len() {
            0 => self.count_matching(api).await?,
            count => count as u64,
        };
        let dead_letters = pluralize(count, "dead letter");
        if count > 0 && (operation.is_irreversible || self.event_ids.is_empty()) {
            confirm(&format!("{} {dead_letters}", operation.verb), self.yes)?;
        }
        let bar = progress(operation.verb, count);
        let changed = match self.event_ids.is_empty() {
            true => self.apply_to_matching(api, operation, count, &bar).await,
            false => self.apply_to_ids(api, operation, &bar).await,
        };
        bar.finish_and_clear();
        let changed = changed?;
        match self.common.json {
            true => print_json(&json!({ operation.past_participle: changed }).to_string())?,
            false => print(&format!("{} {}.", pluralize(changed, "dead letter"), operation.past_participle))?,
        }
        match count.saturating_sub(changed) {
            missing if missing > 0 && !self.event_ids.is_empty() => Err(not_found(missing, count).into()),
            _ => Ok(()),
        }
    }

    /// Counts the dead letters that match now.
    async fn count_matching(&self, api: &Api) -> Result<u64> {
        let mut query = self.filter.query();
        query.push(("limit", "1".to_owned()));
        let response = api.get(&api.namespace_path("/dead-letters"), &query).await?;
        Ok(response.json::<Total>()?.total)
    }

    /// Changes all matching dead letters with one request. The progress is derived from the number that remains.
    async fn apply_to_matching(&self, api: &Api, operation: Operation, count: u64, bar: &ProgressBar) -> Result<u64> {
        let body = DeadLetterFilterRequest { all: self.all, ..self.filter.request() };
        let path = api.namespace_path(&format!("/dead-letters/{}", operation.verb));
        let mut request = std::pin::pin!(api.post(&path, &[], &body));
        loop {
            tokio::select! {
                response = &mut request => return Ok((operation.changed_count)(&response?)? as u64),
                () = tokio::time::sleep(PROGRESS_INTERVAL), if !bar.is_hidden() => {
                    // Ignore errors: the count is only for the progress bar.
                    if let Ok(remaining) = self.count_matching(api).await {
                        bar.set_position(count.saturating_sub(remaining));
                    }
                }
            }
        }
    }

    async fn apply_to_ids(&self, api: &Api, operation: Operation, bar: &ProgressBar) -> Result<u64> {
        let path = api.namespace_path(&format!("/dead-letters/{}", operation.verb));
        let mut changed = 0;
        for ids in self.event_ids.chunks(IDS_MAX) {
            let body = DeadLetterFilterRequest { event_ids: Some(BoundedList(ids.to_vec())), ..self.filter.request() };
            changed += (operation.changed_count)(&api.post(&path, &[], &body).await?)? as u64;
            bar.inc(ids.len() as u64);
        }
        Ok(changed)
    }
}

fn not_found(missing: u64, total: u64) -> ApiError {
    let message = match total {
        1 => "no dead letter has this id, or none that matches".to_owned(),
        _ => format!("for {missing} of the {total} ids there is no dead letter, or none that matches"),
    };
    ApiError { status: 404, code: "dead_letter_not_found".to_owned(), message }
}
