//! `windlass list`: finds events by status, type, tags, group, key, time or text.

use clap::Args;
use indicatif::ProgressBar;
use serde_json::value::RawValue;
use windlass::{Status, Timestamp};

use super::{NamespaceArgs, parse_status};
use crate::Result;
use crate::api::responses::{SearchPage, SearchResult};
use crate::api::{Api, comma_separated, present_params};
use crate::output::{
    Cell, FAINT, Table, left, paint, pluralize, print, print_json, right, spinner, status_style, terminal_width, text,
};
use crate::time;

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
    #[arg(long, short, value_name = "STATUS", value_parser = parse_status)]
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
    #[arg(long, value_name = "WHEN", value_parser = time::parse_time_or_age)]
    since: Option<Timestamp>,
    /// Only published before then
    #[arg(long, value_name = "WHEN", value_parser = time::parse_time_or_age)]
    until: Option<Timestamp>,
    /// How many
    #[arg(long, short, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Only those with a smaller id, to go on where a list ended
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    #[command(flatten)]
    common: NamespaceArgs,
}

/// The API's limit for one page.
const PAGE_MAX: usize = 1_000;

impl List {
    pub async fn run(self) -> Result {
        let found = self.common.target.with_api(async |api| self.collect(api).await).await?;
        if self.common.json {
            return print_json(&serde_json::to_string(&found)?);
        }
        if found.events.is_empty() {
            return print(&"No event matches.");
        }
        print(&table(&found.events)?.render(terminal_width()))?;
        match found.next {
            Some(next) => print(&paint(&format!("There may be more: --before {next}"), FAINT)),
            None => Ok(()),
        }
    }

    /// Collects pages up to the limit. A page may be shorter than requested although more events match.
    async fn collect(&self, api: &Api) -> Result<SearchPage> {
        let spinner = spinner();
        let found = self.collect_pages(api, &spinner).await;
        spinner.finish_and_clear();
        found
    }

    async fn collect_pages(&self, api: &Api, spinner: &ProgressBar) -> Result<SearchPage> {
        let (limit, mut all) = (self.limit as usize, SearchPage { next: self.before, ..SearchPage::default() });
        loop {
            let page_limit = (limit - all.events.len()).min(PAGE_MAX);
            let response = api.get(&api.namespace_path("/events/search"), &self.query(all.next, page_limit)).await?;
            let mut page: SearchPage = response.json()?;
            all.events.append(&mut page.events);
            all.looked_at += page.looked_at;
            all.next = page.next;
            if all.next.is_none() || all.events.len() >= limit {
                return Ok(all);
            }
            spinner.set_message(format!("{} looked at", pluralize(all.looked_at, "event")));
            spinner.tick();
        }
    }

    fn query(&self, before: Option<i64>, limit: usize) -> Vec<(&'static str, String)> {
        present_params([
            ("status", self.status.map(|status| status.to_string())),
            ("types", comma_separated(&self.types)),
            ("tags", comma_separated(&self.tags)),
            ("text", self.text.clone()),
            ("group_id", self.group.clone()),
            ("key", self.key.clone()),
            ("subscription", self.subscription.clone()),
            ("created_from", self.since.map(time::to_rfc3339)),
            ("created_before", self.until.map(time::to_rfc3339)),
            ("before", before.map(|before| before.to_string())),
            ("limit", Some(limit.to_string())),
        ])
    }
}

fn table(events: &[Box<RawValue>]) -> Result<Table<8>> {
    let columns = [
        right("ID"),
        left("STATUS"),
        text("TYPE"),
        right("TRIES"),
        left("PUBLISHED").optional(),
        text("GROUP").optional(),
        text("TAGS").optional(),
        text("TITLE OR ERROR"),
    ];
    let mut table = Table::new(columns);
    for event in events {
        let event: SearchResult = serde_json::from_str(event.get())?;
        let delivery = event.delivery;
        table.row([
            event.event_id.into(),
            Cell::styled(&delivery.status, status_style(&delivery.status)),
            event.event_type.into(),
            delivery.attempts.into(),
            time::format_timestamp(event.created_at).into(),
            event.group_id.into(),
            event.tags.into(),
            delivery.error_message.or(event.title).into(),
        ]);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_status_and_fields_of_a_newer_server_are_shown() {
        let event = r#"{"event_id":7,"type":"a","title":null,"tags":"","group_id":null,"new":1e999,
            "created_at":"2026-01-31T12:00:00Z","delivery":{"status":"PARKED","attempts":1,"error_message":null}}"#;
        let page: SearchPage =
            serde_json::from_str(&format!(r#"{{"events":[{event}],"next":null,"looked_at":1,"new":1}}"#)).unwrap();
        let text = table(&page.events).unwrap().render(None);
        assert!(text.contains("PARKED"), "{text}");
        // The events of `--json` are unchanged.
        let json = serde_json::to_string(&page).unwrap();
        assert!(json.contains(event), "{json}");
    }
}
