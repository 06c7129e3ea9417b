//! `windlass history`: exports finished events to files and imports them.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use serde_json::json;
use windlass::{ExportedHistory, HistoryFilter, ImportedHistory, Queue, Timestamp};

use crate::Result;
use crate::database::Database;
use crate::output::{pluralize, print, progress};
use crate::time;

/// Export history to files, or import it
///
/// A file holds compressed JSON lines, one for each event, and has a manifest next to it. `windlass serve
/// --archive-dir` writes the same. This works on the database itself, and not through a server.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct History {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  windlass history export --to backup --namespace orders --from 2026-01-01 --until 2026-02-01
  windlass history import backup
  zcat backup/orders/2026-01/*.jsonl.gz | head -n 1";

#[derive(Subcommand)]
enum Action {
    Export(Export),
    Import(Import),
}

/// Write events that are done with, and their attempts, to files
///
/// Events that wait, are being handled or are dead letters stay out of it. Nothing is deleted.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass history export --to backup
  windlass history export --to backup --namespace orders --from 2026-01-01 --until 2026-02-01")]
struct Export {
    #[command(flatten)]
    database: Database,
    /// The folder to write to; it is made where there is none
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Only this namespace; all of them if not given
    #[arg(long)]
    namespace: Option<String>,
    /// Only events published then or later: a day, or an instant as in 2026-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = time::parse_timestamp)]
    from: Option<Timestamp>,
    /// Only events published before then
    #[arg(long, value_name = "WHEN", value_parser = time::parse_timestamp)]
    until: Option<Timestamp>,
    /// Only these types, exact or by prefix ending in `*`; several with commas
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Store what is in a folder's files as history
///
/// Nothing of it is delivered. Events keep their ids; those that are here already are passed over. Namespaces
/// that do not exist are created. What was imported is kept for as long as the policy says, like all history.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass history import backup
  windlass history import backup --namespace orders --database postgres://me:secret@localhost/events")]
struct Import {
    #[command(flatten)]
    database: Database,
    /// The folder to read, with all that are in it
    #[arg(value_name = "DIR")]
    from: PathBuf,
    /// Only this namespace; all of them if not given
    #[arg(long)]
    namespace: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl History {
    pub async fn run(self) -> Result {
        match self.action {
            Action::Export(export) => export.run().await,
            Action::Import(import) => import.run().await,
        }
    }
}

impl Export {
    async fn run(self) -> Result {
        let queue = self.database.open_existing().await?;
        let namespaces = match &self.namespace {
            Some(namespace) => vec![namespace.clone()],
            None => queue.namespaces().await?.into_iter().map(|found| found.namespace).collect(),
        };
        let mut total = ExportedHistory::default();
        for namespace in namespaces {
            let filter = HistoryFilter { types: self.types.clone(), from: self.from, until: self.until };
            let bar = progress(&namespace, 0);
            let queue = queue.in_namespace(&namespace)?;
            let exported = queue.export_history(&self.to, filter, |done, of| update_progress(&bar, done, of)).await;
            bar.finish_and_clear();
            let ExportedHistory { events, attempts, files } = exported?;
            total.events += events;
            total.attempts += attempts;
            total.files += files;
        }
        queue.close().await;
        if self.json {
            return print(&serde_json::to_value(total)?);
        }
        let (events, attempts) = (pluralize(total.events, "event"), pluralize(total.attempts, "attempt"));
        let (files, folder) = (pluralize(total.files, "file"), self.to.display());
        print(&format!("{events} with {attempts}, in {files} in {folder}"))
    }
}

impl Import {
    async fn run(self) -> Result {
        let queue = Queue::open(&self.database.url).await?;
        let bar = progress("importing", 0);
        let imported =
            queue.import_history(&self.from, self.namespace.as_deref(), |done, of| update_progress(&bar, done, of));
        let imported = imported.await;
        bar.finish_and_clear();
        let imported = imported?;
        queue.close().await;
        if self.json {
            print(&json!(imported))?;
        } else {
            print(&summary(&imported))?;
        }
        match imported.first_clash {
            None => Ok(()),
            Some(first) => Err(format!(
                "{} left out: the ids, the first is {first}, belong to other events here",
                pluralize(imported.clashes, "event")
            )
            .into()),
        }
    }
}

fn summary(imported: &ImportedHistory) -> String {
    let (events, attempts) = (pluralize(imported.events, "event"), pluralize(imported.attempts, "attempt"));
    let (files, known) = (pluralize(imported.files, "file"), imported.known);
    let mut summary = format!("{events} and {attempts} imported from {files}; {known} of the events known already");
    if imported.unfinished > 0 {
        let unfinished = pluralize(imported.unfinished, "file");
        summary += &format!("; {unfinished} without a manifest left out, which nobody has finished");
    }
    summary
}

fn update_progress(bar: &ProgressBar, done: u64, of: u64) {
    bar.set_length(of);
    bar.set_position(done);
}
