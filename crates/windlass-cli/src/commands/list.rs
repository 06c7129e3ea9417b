//! `windlass list`: events, found by what is known of them.

use clap::Args;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass::{Status, Timestamp};

use super::{Common, status};
use crate::Result;
use crate::api::{Api, given, joined};
use crate::output::{
    Cell, FAINT, Table, counted, left, of_status, paint, print, print_json, right, spinner, text, width,
};
use crate::when;

/// Find events: by status, type, tags, group, key, time or text
///
/// The newest first. Payloads are not shown: `windlass get` does.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass list
  windlass list --status failed --type 'order.*' --since 2h
  windlass list --text jane@example.com --since 2026-01-31 --until 2026-02-01
  windlass list --status pending --json | jq '.events[].event_id'")]
pub struct List {
    /// Only in this state: pending, processing, completed, completed-with-errors, failed, expired or cancelled
    #[arg(long, short, value_name = "STATUS", value_parser = status)]
    status: Option<Status>,
    /// Only these types, exact or by prefix ending in `*`; several with commas
    #[arg(long = "type", short, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Only with any of these tags; several with commas
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',')]
    tags: Vec<String>,
    /// Only with this in title, description, type or payload, in capitals or not; a number also finds that event
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Only of this group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Only published with this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Whose view of them; `main` if not given
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
    /// Only published then or later: how long ago, as in 15m, a day, as in 2026-01-31, or an instant
    #[arg(long, value_name = "WHEN", value_parser = when::moment)]
    since: Option<Timestamp>,
    /// Only published before then
    #[arg(long, value_name = "WHEN", value_parser = when::moment)]
    until: Option<Timestamp>,
    /// How many
    #[arg(long, short, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Only those with a smaller id, to go on where a list ended
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    #[command(flatten)]
    common: Common,
}

/// What the API finds, in one page or gathered from several.
#[derive(Default, Serialize, Deserialize)]
struct Found {
    events: Vec<Box<RawValue>>,
    next: Option<i64>,
    looked_at: u64,
}

/// What is shown of an event.
#[derive(Deserialize)]
struct Event {
    event_id: i64,
    #[serde(rename = "type")]
    event_type: String,
    title: Option<String>,
    tags: String,
    group_id: Option<String>,
    created_at: Timestamp,
    delivery: Delivery,
}

#[derive(Deserialize)]
struct Delivery {
    status: String,
    attempts: u32,
    error_message: Option<String>,
}

/// The most that the API gives at once.
const PAGE_MAX: usize = 1_000;

impl List {
    pub async fn run(self) -> Result {
        let found = self.common.target.with(async |api| self.gather(api).await).await?;
        if self.common.json {
            return print_json(&serde_json::to_string(&found)?);
        }
        if found.events.is_empty() {
            return print(&"No event matches.");
        }
        print(&table(&found)?.render(width()))?;
        match found.next {
            Some(next) => print(&paint(&format!("There may be more: --before {next}"), FAINT)),
            None => Ok(()),
        }
    }

    /// A page may hold fewer than it was asked for although there are more.
    async fn gather(&self, api: &Api) -> Result<Found> {
        let spinner = spinner();
        let found = self.pages(api, &spinner).await;
        spinner.finish_and_clear();
        found
    }

    async fn pages(&self, api: &Api, spinner: &ProgressBar) -> Result<Found> {
        let (limit, mut all) = (self.limit as usize, Found { next: self.before, ..Found::default() });
        loop {
            let room = (limit - all.events.len()).min(PAGE_MAX);
            let answer = api.get(&api.within("/events/search"), &self.query(all.next, room)).await?;
            let mut page: Found = answer.read()?;
            all.events.append(&mut page.events);
            all.looked_at += page.looked_at;
            all.next = page.next;
            if all.next.is_none() || all.events.len() >= limit {
                return Ok(all);
            }
            spinner.set_message(format!("{} looked at", counted(all.looked_at, "event")));
            spinner.tick();
        }
    }

    fn query(&self, before: Option<i64>, limit: usize) -> Vec<(&'static str, String)> {
        given([
            ("status", self.status.map(|status| status.to_string())),
            ("types", joined(&self.types)),
            ("tags", joined(&self.tags)),
            ("text", self.text.clone()),
            ("group_id", self.group.clone()),
            ("key", self.key.clone()),
            ("subscription", self.subscription.clone()),
            ("created_from", self.since.map(when::exact)),
            ("created_before", self.until.map(when::exact)),
            ("before", before.map(|before| before.to_string())),
            ("limit", Some(limit.to_string())),
        ])
    }
}

fn table(found: &Found) -> Result<Table<8>> {
    let columns = [
        right("ID"),
        left("STATUS"),
        text("TYPE"),
        right("TRIES"),
        left("PUBLISHED").spare(),
        text("GROUP").spare(),
        text("TAGS").spare(),
        text("TITLE OR ERROR"),
    ];
    let mut table = Table::new(columns);
    for event in &found.events {
        let event: Event = serde_json::from_str(event.get())?;
        let Delivery { status, attempts, error_message } = event.delivery;
        table.row([
            event.event_id.into(),
            Cell::styled(&status, of_status(&status)),
            event.event_type.into(),
            attempts.into(),
            when::shown(event.created_at).into(),
            event.group_id.into(),
            event.tags.into(),
            error_message.or(event.title).into(),
        ]);
    }
    Ok(table)
}
