//! `windlass stats`: counts deliveries by subscription, type and status.

mod chart;

use std::collections::BTreeMap;

use clap::Args;
use windlass::{Status, Timestamp};

use super::NamespaceArgs;
use crate::Result;
use crate::api::responses::{self, StatRow};
use crate::api::{Api, ApiResponse, present_params};
use crate::output::{
    Cell, HEADING, Table, WARN, paint, print, print_json, right, sanitize, status_style, terminal_width, text,
};
use crate::time;

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
    #[arg(long, value_name = "WHEN", value_parser = time::parse_time_or_age)]
    since: Option<Timestamp>,
    #[command(flatten)]
    common: NamespaceArgs,
}

impl Stats {
    pub async fn run(self) -> Result {
        let (stats, samples) = self.common.target.with_api(async |api| self.request(api).await).await?;
        let Some(samples) = samples else { return print_json(&stats.text) };
        let body: responses::Stats = stats.json()?;
        print(&heading(&body))?;
        match body.stats.is_empty() {
            true => print(&"There is nothing to count.")?,
            false => print(&table(&body.stats).render(terminal_width()))?,
        }
        match chart::render(&samples)? {
            Some(chart) => print(&format!("\n{chart}")),
            None => Ok(()),
        }
    }

    async fn request(&self, api: &Api) -> Result<(ApiResponse, Option<ApiResponse>)> {
        let stats = api
            .get(&api.namespace_path("/stats"), &present_params([("since", self.since.map(time::to_rfc3339))]))
            .await?;
        if self.common.json {
            return Ok((stats, None));
        }
        let samples = api.get(&api.namespace_path("/samples"), &chart::query()).await?;
        Ok((stats, Some(samples)))
    }
}

fn heading(body: &responses::Stats) -> String {
    let ended = format!("what ended since {}", time::format_with_age(body.since));
    let paused =
        if body.paused { format!("  {}", paint("PAUSED: nothing is handed out", WARN)) } else { String::new() };
    format!("{}, with {ended}{paused}\n", paint(&format!("Namespace {}", sanitize(&body.namespace)), HEADING))
}

/// Statuses that are shown even with a count of zero.
const ALWAYS_SHOWN: [Status; 4] = [Status::Pending, Status::Processing, Status::Completed, Status::Failed];

/// The counts of one line.
#[derive(Default)]
struct Line {
    /// In the order of [`Status::ALL`], as are the columns.
    counts: [u64; Status::ALL.len()],
    /// When the oldest pending delivery became ready.
    oldest_ready_at: Option<Timestamp>,
}

impl Line {
    fn add(&mut self, row: &StatRow) {
        // The table has no column for a status of a newer server.
        if let Some(index) = Status::ALL.iter().position(|status| status.as_str() == row.status) {
            self.counts[index] += row.count;
        }
        if row.status == Status::Pending.as_str() {
            self.oldest_ready_at = [self.oldest_ready_at, row.oldest_at].into_iter().flatten().min();
        }
    }

    fn cells(&self, subscription: Option<&str>, event_type: &str) -> [Cell; 10] {
        let cells = Status::ALL.into_iter().zip(self.counts).map(|(status, count)| cell(status, count));
        let oldest = self.oldest_ready_at.map(time::format_age).into();
        let mut cells = [subscription.into(), event_type.into()].into_iter().chain(cells).chain([oldest]);
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    }
}

fn cell(status: Status, count: u64) -> Cell {
    match count {
        0 if ALWAYS_SHOWN.contains(&status) => "0".into(),
        0 => Cell::default(),
        _ => Cell::styled(count.to_string(), status_style(status.as_str())),
    }
}

fn table(rows: &[StatRow]) -> Table<10> {
    let mut lines: BTreeMap<(&str, &str), Line> = BTreeMap::new();
    let mut total = Line::default();
    for row in rows {
        lines.entry((&row.subscription, &row.event_type)).or_default().add(row);
        total.add(row);
    }
    // Show the subscription column only if there is another subscription than `main`.
    let shows_subscription = lines.keys().any(|(subscription, _)| *subscription != "main");
    let mut table = Table::new([
        text("FOR"),
        text("TYPE"),
        right("PENDING"),
        right("PROCESSING"),
        right("COMPLETED"),
        right("WITH ERRORS").optional(),
        right("FAILED"),
        right("EXPIRED"),
        right("CANCELLED").optional(),
        right("OLDEST READY"),
    ]);
    for ((subscription, event_type), line) in &lines {
        table.row(line.cells(shows_subscription.then_some(subscription), event_type));
    }
    if lines.len() > 1 {
        table.row(total.cells(shows_subscription.then_some(""), "total"));
    }
    table
}
