//! `windlass migrate`: shows the schema version of a database or updates the schema.

use std::cmp::Ordering;

use clap::{Args, Subcommand};
use serde_json::json;
use windlass::{Queue, schema_version};

use crate::Result;
use crate::database::Database;
use crate::output::print;

/// Show the database's schema version, or bring it up to date
///
/// `windlass serve` does the latter by itself. This works on the database itself, and not through a server.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass migrate status --database postgres://me:secret@localhost/events
  windlass migrate up")]
pub struct Migrate {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show which schema version the database has; changes nothing
    Status(Options),
    /// Bring the schema up to date
    Up(Options),
}

#[derive(Args)]
struct Options {
    #[command(flatten)]
    database: Database,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Migrate {
    pub async fn run(self) -> Result {
        match self.action {
            Action::Status(options) => status(options).await,
            Action::Up(options) => up(options).await,
        }
    }
}

async fn status(options: Options) -> Result {
    let version = schema_version(&options.database.url).await?;
    let (found, known, display_url) = (version.found, version.known, options.database.display_url());
    if options.json {
        return print(
            &json!({ "database": display_url, "found": found, "known": known, "up_to_date": found == known }),
        );
    }
    let verdict = match found.cmp(&known) {
        Ordering::Less => format!("version {known} is needed: run `windlass migrate up`"),
        Ordering::Equal => "up to date".to_owned(),
        Ordering::Greater => format!("this windlass knows only up to {known}: upgrade it"),
    };
    print(&format!("{display_url}: schema version {found}, {verdict}"))
}

async fn up(options: Options) -> Result {
    let from = schema_version(&options.database.url).await?.found;
    Queue::open(&options.database.url).await?.close().await;
    let to = schema_version(&options.database.url).await?.found;
    let display_url = options.database.display_url();
    if options.json {
        return print(&json!({ "database": display_url, "from": from, "to": to }));
    }
    match from == to {
        true => print(&format!("{display_url}: schema version {to}, up to date already")),
        false => print(&format!("{display_url}: schema brought from version {from} to {to}")),
    }
}
