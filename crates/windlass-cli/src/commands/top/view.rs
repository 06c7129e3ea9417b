//! Builds the view that is drawn from the responses of the API.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use windlass::{MAIN, Timestamp};
use windlass_api::{Quantiles, Sample, WorkerView};

use crate::api::responses::{DeadLetterSummary, Node, StatRow};

/// Minutes in the charts.
pub const CHART_MINUTES: usize = 60;

/// All data of a frame.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub namespace: String,
    /// All namespaces of the database.
    pub namespaces: Vec<String>,
    pub paused: bool,
    /// Sorted by type and subscription.
    pub rows: Vec<Row>,
    /// The rates of all types together.
    pub rates: Rates,
    pub chart: Chart,
    pub working: Vec<Working>,
    pub dead_letters: Vec<DeadLetterSummary>,
    /// When the data was fetched. `None` before the first fetch.
    pub fetched_at: Option<Timestamp>,
    /// The error of the last fetch, if it failed, and when it occurred.
    pub error: Option<(String, Timestamp)>,
}

/// The deliveries of one type and subscription.
#[derive(Debug, Clone, Default)]
pub struct Row {
    pub event_type: String,
    pub subscription: String,
    pub pending: u64,
    pub processing: u64,
    pub dead: u64,
    /// When the oldest pending delivery became ready.
    pub oldest_at: Option<Timestamp>,
    /// The rates of the type, for all subscriptions.
    pub rates: Rates,
}

/// Counts per second, and latencies.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    pub published: f64,
    pub completed: f64,
    pub failed: f64,
    pub wait_p95_ms: Option<f64>,
    pub run_p95_ms: Option<f64>,
}

/// Counts per minute, the latest last.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    pub published: Vec<u64>,
    pub completed: Vec<u64>,
    /// Dead letters, and failures that are retried.
    pub failed: Vec<u64>,
    pub depth: Vec<u64>,
}

/// A node, or a worker that is not a node.
#[derive(Debug, Clone)]
pub struct Working {
    pub name: String,
    pub is_stale: bool,
    pub seen_at: Timestamp,
    pub held: u64,
    pub description: Option<String>,
}

/// Merges running nodes and workers that are not nodes. The most recently seen comes first.
pub fn merge_nodes_and_workers(nodes: Vec<Node>, workers: Vec<WorkerView>) -> Vec<Working> {
    let held = |name: &str| workers.iter().find(|worker| worker.worker_id == name).map_or(0, |worker| worker.held);
    let node = |node: &Node| Working {
        name: node.node_id.clone(),
        is_stale: node.status == "stale",
        seen_at: node.last_heartbeat,
        held: held(&node.node_id),
        description: node.description.clone(),
    };
    let is_node = |worker: &&WorkerView| nodes.iter().any(|node| node.node_id == worker.worker_id);
    let worker = |worker: &WorkerView| Working {
        name: worker.worker_id.clone(),
        is_stale: worker.stale,
        seen_at: worker.last_seen_at,
        held: worker.held,
        description: None,
    };
    let others = workers.iter().filter(|worker| !is_node(worker)).map(worker);
    let mut working: Vec<Working> =
        nodes.iter().filter(|node| node.status != "stopped").map(node).chain(others).collect();
    working.sort_by_key(|working| std::cmp::Reverse(working.seen_at));
    working
}

/// Builds the rows, sorted by type and subscription. A type without deliveries but with recent activity has a row, too.
pub fn build_rows(stats: &[StatRow], rates: &BTreeMap<String, Rates>) -> Vec<Row> {
    let mut rows: BTreeMap<(String, String), Row> = BTreeMap::new();
    for stat in stats {
        let row = rows.entry((stat.event_type.clone(), stat.subscription.clone())).or_default();
        match stat.status.as_str() {
            "PENDING" => (row.pending, row.oldest_at) = (stat.count, stat.oldest_at),
            "PROCESSING" => row.processing = stat.count,
            "FAILED" | "EXPIRED" => row.dead += stat.count,
            _ => {}
        }
    }
    for event_type in rates.keys().filter(|event_type| !stats.iter().any(|stat| stat.event_type == **event_type)) {
        rows.entry((event_type.clone(), MAIN.to_owned())).or_default();
    }
    let row = |((event_type, subscription), row): ((String, String), Row)| {
        let rates = rates.get(&event_type).copied().unwrap_or_default();
        Row { event_type, subscription, rates, ..row }
    };
    rows.into_iter().map(row).collect()
}

/// Computes rates by type over the previous and the current minute, because the current minute alone has few samples.
pub fn rates_by_type(samples: &[Sample], now: Timestamp) -> BTreeMap<String, Rates> {
    let mut by_type: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        by_type.entry(sample.event_type.as_deref().unwrap_or_default()).or_default().push(sample);
    }
    by_type.into_iter().map(|(name, samples)| (name.to_owned(), compute_rates(&samples, now))).collect()
}

/// Computes rates over the previous and the current minute.
pub fn compute_rates(samples: &[&Sample], now: Timestamp) -> Rates {
    let from = previous_minute(now);
    let recent: Vec<&&Sample> = samples.iter().filter(|sample| sample.at >= from).collect();
    let seconds = (now - from).num_milliseconds().max(1_000) as f64 / 1_000.0;
    let sum = |of: fn(&Sample) -> u64| recent.iter().map(|sample| of(sample)).sum::<u64>() as f64 / seconds;
    let worst = |of: fn(&Sample) -> Option<Quantiles>| {
        recent.iter().filter_map(|sample| of(sample)).map(|found| found.p95).reduce(f64::max)
    };
    Rates {
        published: sum(|sample| sample.published),
        completed: sum(|sample| sample.completed),
        failed: sum(failed),
        wait_p95_ms: worst(|sample| sample.wait_ms),
        run_p95_ms: worst(|sample| sample.run_ms),
    }
}

/// Returns the start of the previous minute.
pub fn previous_minute(now: Timestamp) -> Timestamp {
    start_of_minute(now) - TimeDelta::minutes(1)
}

fn start_of_minute(at: Timestamp) -> Timestamp {
    at - TimeDelta::microseconds(at.timestamp_micros().rem_euclid(60_000_000))
}

fn failed(sample: &Sample) -> u64 {
    sample.failed + sample.retried + sample.expired
}

pub fn build_chart(samples: &[Sample], now: Timestamp) -> Chart {
    let mut chart = Chart {
        published: vec![0; CHART_MINUTES],
        completed: vec![0; CHART_MINUTES],
        failed: vec![0; CHART_MINUTES],
        depth: vec![0; CHART_MINUTES],
    };
    for sample in samples {
        let back = (start_of_minute(now) - sample.at).num_minutes();
        let Some(index) = usize::try_from(back).ok().and_then(|back| (CHART_MINUTES - 1).checked_sub(back)) else {
            continue;
        };
        chart.published[index] = sample.published;
        chart.completed[index] = sample.completed;
        chart.failed[index] = failed(sample);
        chart.depth[index] = sample.depth.unwrap_or(0);
    }
    chart
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const NOW: &str = "2026-11-16T10:30:30Z";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn stat(event_type: &str, subscription: &str, status: &str, count: u64, oldest_at: Option<&str>) -> StatRow {
        StatRow {
            subscription: subscription.into(),
            event_type: event_type.into(),
            status: status.into(),
            count,
            oldest_at: oldest_at.map(at),
        }
    }

    fn sample(minute: &str, event_type: Option<&str>, published: u64, completed: u64, retried: u64) -> Sample {
        Sample {
            at: at(&format!("2026-11-16T{minute}:00Z")),
            span_ms: 60_000,
            event_type: event_type.map(str::to_owned),
            published,
            completed,
            failed: 0,
            retried,
            expired: 0,
            cancelled: 0,
            depth: Some(published),
            oldest_ms: None,
            wait_ms: Some(Quantiles { count: published, p50: 12.0, p95: 12.0, p99: 12.0 }),
            run_ms: None,
        }
    }

    /// A view with all kinds of content.
    pub fn sample_view() -> View {
        let stats = [
            stat("order.paid", "main", "PENDING", 1_204, Some("2026-11-16T10:26:30Z")),
            stat("order.paid", "main", "PROCESSING", 8, None),
            stat("order.paid", "billing", "PENDING", 17, Some("2026-11-16T08:00:00Z")),
            stat("mail.send", "main", "FAILED", 3, None),
            stat("mail.send", "main", "EXPIRED", 2, None),
        ];
        let by_type = [
            sample("10:29", Some("order.paid"), 900, 870, 9),
            sample("10:30", Some("order.paid"), 450, 480, 0),
            sample("10:29", Some("mail.send"), 0, 0, 9),
        ];
        let all: Vec<Sample> = (0..60)
            .map(|minute| {
                let (hour, past) = if minute < 29 { (9, minute + 31) } else { (10, minute - 29) };
                sample(&format!("{hour:02}:{past:02}"), None, minute * 15, minute * 14, minute % 7)
            })
            .collect();
        let now = at(NOW);
        let node = |node_id: &str, status: &str, last: &str| Node {
            node_id: node_id.into(),
            display_name: None,
            description: Some("runs ship.sh, up to 8 at once".into()),
            event_types: Vec::new(),
            registered_at: at(last),
            last_heartbeat: at(last),
            status: status.into(),
        };
        let worker = |worker_id: &str, held| WorkerView {
            worker_id: worker_id.into(),
            held,
            oldest_picked_at: None,
            last_seen_at: at("2026-11-16T10:29:30Z"),
            stale: false,
        };
        let dead_letter = |event_id, error: Option<&str>| DeadLetterSummary {
            event_id,
            event_type: "mail.send".into(),
            subscription: "main".into(),
            status: "FAILED".into(),
            reason: "Max retries exceeded".into(),
            error: error.map(str::to_owned),
            attempts: 3,
            failed_at: at("2026-11-16T10:28:00Z"),
        };
        View {
            namespace: "default".into(),
            namespaces: vec!["default".into(), "shop".into()],
            paused: false,
            rows: build_rows(&stats, &rates_by_type(&by_type, now)),
            rates: compute_rates(&all.iter().collect::<Vec<_>>(), now),
            chart: build_chart(&all, now),
            working: merge_nodes_and_workers(
                vec![
                    node("web-1:4711", "alive", "2026-11-16T10:30:10Z"),
                    node("web-2:12", "stale", "2026-11-16T10:00:00Z"),
                    node("gone:1", "stopped", "2026-11-16T10:30:00Z"),
                ],
                vec![worker("web-1:4711", 8), worker("script:9", 0)],
            ),
            dead_letters: vec![
                dead_letter(1_001, Some("exit code 1: \u{1b}[31m554 no such user\nsecond line")),
                dead_letter(999, None),
            ],
            fetched_at: Some(now),
            error: None,
        }
    }

    #[test]
    fn rows_join_counts_and_rates_by_type() {
        let view = sample_view();
        let shown: Vec<_> = view
            .rows
            .iter()
            .map(|row| {
                format!("{} {} {} {} {}", row.event_type, row.subscription, row.pending, row.processing, row.dead)
            })
            .collect();
        assert_eq!(shown, ["mail.send main 0 0 5", "order.paid billing 17 0 0", "order.paid main 1204 8 0"]);
        let rates = view.rows[2].rates;
        assert_eq!((rates.published, rates.completed, rates.failed), (15.0, 15.0, 0.1));
        assert_eq!((rates.wait_p95_ms, rates.run_p95_ms), (Some(12.0), None));
    }

    #[test]
    fn finished_type_with_recent_activity_has_a_row() {
        let samples = [sample("10:30", Some("quick"), 3, 3, 0)];
        let rows = build_rows(&[], &rates_by_type(&samples, at(NOW)));
        assert_eq!((rows.len(), rows[0].event_type.as_str(), rows[0].subscription.as_str()), (1, "quick", "main"));
    }

    #[test]
    fn minutes_without_samples_are_zero() {
        let samples = [sample("10:30", None, 3, 2, 1), sample("09:31", None, 9, 0, 0), sample("09:30", None, 7, 7, 7)];
        let chart = build_chart(&samples, at(NOW));
        assert_eq!((chart.published[59], chart.published[0], chart.published[30]), (3, 9, 0));
        assert_eq!((chart.failed[59], chart.failed.iter().sum::<u64>()), (1, 1));
    }
}
