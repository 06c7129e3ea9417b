//! The commands: one file or folder per command. This file has what several commands share.

pub mod cancel;
pub mod completions;
pub mod dead_letters;
pub mod doctor;
pub mod get;
pub mod health;
pub mod history;
pub mod list;
pub mod migrate;
pub mod namespace;
pub mod node;
pub mod publish;
pub mod reset;
pub mod schedule;
pub mod serve;
pub mod stats;
pub mod stuck;
pub mod subscription;
pub mod tail;
pub mod token;
pub mod top;
#[cfg(unix)]
pub mod work;
pub mod worker;

use clap::Args;
use windlass::Status;

use crate::Result;
use crate::api::{ApiResponse, NamespaceTarget, QueueLocation};
use crate::output::{print, print_json};

/// Options of the commands that work in one namespace.
#[derive(Args)]
pub struct NamespaceArgs {
    /// Print JSON, as the HTTP API answers
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub target: NamespaceTarget,
}

/// Options of the commands that work on all namespaces, or take the namespace as an argument.
#[derive(Args)]
pub struct LocationArgs {
    /// Print JSON, as the HTTP API answers
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub location: QueueLocation,
}

/// Prints the response: as JSON, or as text made by `format`.
pub fn print_response(
    json: bool,
    response: &ApiResponse,
    format: impl FnOnce(&ApiResponse) -> Result<String>,
) -> Result {
    if json { print_json(&response.text) } else { print(&format(response)?) }
}

/// Parses a status name, in upper or lower case.
pub fn parse_status(text: &str) -> std::result::Result<Status, String> {
    let matches = |status: &Status| status.as_str() == text.to_ascii_uppercase().replace('-', "_");
    let all = || Status::ALL.map(|status| status.as_str().to_ascii_lowercase().replace('_', "-")).join(", ");
    Status::ALL.into_iter().find(matches).ok_or_else(|| format!("choose one of {}", all()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_may_be_lower_case() {
        assert_eq!(parse_status("failed"), Ok(Status::Failed));
        assert_eq!(parse_status("completed-with-errors"), Ok(Status::CompletedWithErrors));
        assert!(parse_status("gone").unwrap_err().starts_with("choose one of pending, processing, completed, "));
    }
}
