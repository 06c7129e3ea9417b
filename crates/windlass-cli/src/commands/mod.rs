//! One file for each command.

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
use crate::api::{Answer, Place, Target};
use crate::output::{print, print_json};

/// What every command takes that looks at events or changes them.
#[derive(Args)]
pub struct Common {
    /// Print JSON, as the HTTP API answers
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub target: Target,
}

/// The same for commands that are not about one namespace, or name it otherwise.
#[derive(Args)]
pub struct Anywhere {
    /// Print JSON, as the HTTP API answers
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: Place,
}

/// The answer itself for programs, or what it comes to for people.
pub fn show(json: bool, answer: &Answer, shown: impl FnOnce(&Answer) -> Result<String>) -> Result {
    if json { print_json(&answer.text) } else { print(&shown(answer)?) }
}

/// A status by its name, in capitals or not.
pub fn status(text: &str) -> std::result::Result<Status, String> {
    let named = |status: &Status| status.as_str() == text.to_ascii_uppercase().replace('-', "_");
    let all = || Status::ALL.map(|status| status.as_str().to_ascii_lowercase().replace('_', "-")).join(", ");
    Status::ALL.into_iter().find(named).ok_or_else(|| format!("choose one of {}", all()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_may_be_written_small() {
        assert_eq!(status("failed"), Ok(Status::Failed));
        assert_eq!(status("completed-with-errors"), Ok(Status::CompletedWithErrors));
        assert!(status("gone").unwrap_err().starts_with("choose one of pending, processing, completed, "));
    }
}
