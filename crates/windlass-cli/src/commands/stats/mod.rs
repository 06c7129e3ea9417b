//! `windlass stats`: how much there is of what.

mod chart;

use std::collections::BTreeMap;

use clap::Args;
use serde::Deserialize;
use windlass::Timestamp;

use super::Common;
use crate::Result;
use crate::api::{Answer, Api, given};
use crate::output::{BAD, Cell, HEADING, Table, WARN, clean, of_status, paint, print, print_json, right, text, width};
use crate::when;

/// Count events by type and status
///
/// All that is waiting, in work or dead, and what ended since a moment.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass stats
  windlass stats --since 24h --namespace orders
  windlass stats --json | jq '.stats[] | select(.status == \"FAILED\")'")]
pub struct Stats {
    /// Count what ended since then: how long ago, as in 15m, a day, as in 2026-01-31, or an instant; an hour ago if
    /// not given
    #[arg(long, value_name = "WHEN", value_parser = when::moment)]
    since: Option<Timestamp>,
    #[command(flatten)]
    common: Common,
}

#[derive(Deserialize)]
struct Body {
    namespace: String,
    since: Timestamp,
    paused: bool,
    stats: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    subscription: String,
    #[serde(rename = "type")]
    event_type: String,
    status: String,
    count: u64,
    oldest_at: Option<Timestamp>,
}

impl Stats {
    pub async fn run(self) -> Result {
        let (stats, samples) = self.common.target.with(async |api| self.ask(api).await).await?;
        let Some(samples) = samples else { return print_json(&stats.text) };
        let body: Body = stats.read()?;
        print(&heading(&body))?;
        match body.stats.is_empty() {
            true => print(&"There is nothing to count.")?,
            false => print(&table(&body.stats).render(width()))?,
        }
        match chart::of(&samples)? {
            Some(chart) => print(&format!("\n{chart}")),
            None => Ok(()),
        }
    }

    async fn ask(&self, api: &Api) -> Result<(Answer, Option<Answer>)> {
        let stats = api.get(&api.within("/stats"), &given([("since", self.since.map(when::exact))])).await?;
        if self.common.json {
            return Ok((stats, None));
        }
        let samples = api.get(&api.within("/samples"), &chart::query()).await?;
        Ok((stats, Some(samples)))
    }
}

fn heading(body: &Body) -> String {
    let ended = format!("what ended since {}", when::shown_with_age(body.since));
    let paused =
        if body.paused { format!("  {}", paint("PAUSED: nothing is handed out", WARN)) } else { String::new() };
    format!("{}, with {ended}{paused}\n", paint(&format!("Namespace {}", clean(&body.namespace)), HEADING))
}

/// In the order of the columns.
const STATUSES: [&str; 7] =
    ["PENDING", "PROCESSING", "COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED", "EXPIRED", "CANCELLED"];
/// Those that are shown also where there are none.
const USUAL: [&str; 4] = ["PENDING", "PROCESSING", "COMPLETED", "FAILED"];

/// What stands in a line.
#[derive(Default)]
struct Line {
    counts: [u64; STATUSES.len()],
    /// Since when the one that waits longest does.
    waiting_since: Option<Timestamp>,
}

impl Line {
    fn add(&mut self, row: &Row) {
        if let Some(place) = STATUSES.iter().position(|status| *status == row.status) {
            self.counts[place] += row.count;
        }
        if row.status == "PENDING" {
            self.waiting_since = [self.waiting_since, row.oldest_at].into_iter().flatten().min();
        }
    }

    fn cells(&self, subscription: Option<&str>, event_type: &str) -> [Cell; 10] {
        let cells = STATUSES.iter().zip(self.counts).map(|(status, count)| cell(status, count));
        let waiting = self.waiting_since.map(when::ago).into();
        let mut cells = [subscription.into(), event_type.into()].into_iter().chain(cells).chain([waiting]);
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    }
}

fn cell(status: &str, count: u64) -> Cell {
    match count {
        0 if USUAL.contains(&status) => "0".into(),
        0 => Cell::default(),
        _ => Cell::styled(count.to_string(), if status == "FAILED" { BAD } else { of_status(status) }),
    }
}

fn table(rows: &[Row]) -> Table<10> {
    let mut lines: BTreeMap<(&str, &str), Line> = BTreeMap::new();
    let mut total = Line::default();
    for row in rows {
        lines.entry((&row.subscription, &row.event_type)).or_default().add(row);
        total.add(row);
    }
    // Whose deliveries they are is no news where there is but one subscription.
    let several = lines.keys().any(|(subscription, _)| *subscription != "main");
    let mut table = Table::new([
        text("FOR"),
        text("TYPE"),
        right("PENDING"),
        right("PROCESSING"),
        right("COMPLETED"),
        right("WITH ERRORS").spare(),
        right("FAILED"),
        right("EXPIRED"),
        right("CANCELLED").spare(),
        right("OLDEST READY"),
    ]);
    for ((subscription, event_type), line) in &lines {
        table.row(line.cells(several.then_some(subscription), event_type));
    }
    if lines.len() > 1 {
        table.row(total.cells(several.then_some(""), "total"));
    }
    table
}
