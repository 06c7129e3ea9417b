//! What is shown, made of the API's answers: pure.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use serde::Deserialize;
use windlass::Timestamp;

/// So many minutes are charted.
pub const MINUTES: usize = 60;

/// How things stand.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub namespace: String,
    /// All there are.
    pub namespaces: Vec<String>,
    pub paused: bool,
    /// By type and subscription.
    pub rows: Vec<Row>,
    /// Of all types together.
    pub rates: Rates,
    pub chart: Chart,
    pub working: Vec<Working>,
    pub dead_letters: Vec<DeadLetter>,
    /// When it was looked at; `None`: not yet.
    pub at: Option<Timestamp>,
    /// Why it is not newer, and since when that is known.
    pub away: Option<(String, Timestamp)>,
}

/// One type, as one subscription has it.
#[derive(Debug, Clone, Default)]
pub struct Row {
    pub event_type: String,
    pub subscription: String,
    pub waiting: u64,
    pub running: u64,
    pub dead: u64,
    /// Since when the first of those waiting could be taken.
    pub oldest_at: Option<Timestamp>,
    /// Of the type, whatever the subscription.
    pub rates: Rates,
}

/// How much happens in a second, and how long it takes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    pub published: f64,
    pub completed: f64,
    pub failed: f64,
    pub wait_p95_ms: Option<f64>,
    pub run_p95_ms: Option<f64>,
}

/// What happened, minute by minute, the latest last.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    pub published: Vec<u64>,
    pub completed: Vec<u64>,
    /// Given up, or put back after a failure.
    pub failed: Vec<u64>,
    pub depth: Vec<u64>,
}

/// A node, or a worker that is none.
#[derive(Debug, Clone)]
pub struct Working {
    pub name: String,
    /// alive or stale.
    pub status: String,
    pub seen_at: Timestamp,
    pub held: u64,
    pub description: Option<String>,
}

/// Of `/nodes`.
#[derive(Deserialize)]
pub struct Node {
    pub node_id: String,
    pub status: String,
    pub last_heartbeat: Timestamp,
    pub description: Option<String>,
}

/// Of `/workers`.
#[derive(Deserialize)]
pub struct Worker {
    pub worker_id: String,
    pub held: u64,
    pub last_seen_at: Timestamp,
    pub stale: bool,
}

/// Nodes that have not stopped, and workers that are no nodes; whoever was heard of last comes first.
pub fn working(nodes: Vec<Node>, workers: Vec<Worker>) -> Vec<Working> {
    let held = |name: &str| workers.iter().find(|worker| worker.worker_id == name).map_or(0, |worker| worker.held);
    let node = |node: &Node| Working {
        name: node.node_id.clone(),
        status: node.status.clone(),
        seen_at: node.last_heartbeat,
        held: held(&node.node_id),
        description: node.description.clone(),
    };
    let is_node = |worker: &&Worker| nodes.iter().any(|node| node.node_id == worker.worker_id);
    let worker = |worker: &Worker| Working {
        name: worker.worker_id.clone(),
        status: if worker.stale { "stale" } else { "alive" }.to_owned(),
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

#[derive(Debug, Clone, Deserialize)]
pub struct DeadLetter {
    pub event_id: i64,
    #[serde(rename = "type")]
    pub event_type: String,
    pub subscription: String,
    pub reason: String,
    pub error: Option<String>,
    pub failed_at: Timestamp,
}

/// The answer of `/stats`.
#[derive(Deserialize)]
pub struct Stats {
    pub paused: bool,
    pub stats: Vec<Stat>,
}

#[derive(Deserialize)]
pub struct Stat {
    pub subscription: String,
    #[serde(rename = "type")]
    pub event_type: String,
    pub status: String,
    pub count: u64,
    pub oldest_at: Option<Timestamp>,
}

/// The answer of `/samples`.
#[derive(Deserialize)]
pub struct Samples {
    pub samples: Vec<Sample>,
}

#[derive(Deserialize)]
pub struct Sample {
    pub at: Timestamp,
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    pub published: u64,
    pub completed: u64,
    pub failed: u64,
    pub retried: u64,
    pub expired: u64,
    pub depth: Option<u64>,
    pub wait_ms: Option<Quantiles>,
    pub run_ms: Option<Quantiles>,
}

#[derive(Deserialize, Clone, Copy)]
pub struct Quantiles {
    pub p95: f64,
}

/// Rows by type and subscription; a type that only had something happen to it has a row, too.
pub fn rows(stats: &[Stat], rates: &BTreeMap<String, Rates>) -> Vec<Row> {
    let mut rows: BTreeMap<(String, String), Row> = BTreeMap::new();
    for stat in stats {
        let row = rows.entry((stat.event_type.clone(), stat.subscription.clone())).or_default();
        match stat.status.as_str() {
            "PENDING" => (row.waiting, row.oldest_at) = (stat.count, stat.oldest_at),
            "PROCESSING" => row.running = stat.count,
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

const MAIN: &str = "main";

/// The rates of the last two minutes, by type: the one that has just begun has little to tell.
pub fn rates_by_type(samples: &[Sample], now: Timestamp) -> BTreeMap<String, Rates> {
    let mut by_type: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        by_type.entry(sample.event_type.as_deref().unwrap_or_default()).or_default().push(sample);
    }
    by_type.into_iter().map(|(name, samples)| (name.to_owned(), rates(&samples, now))).collect()
}

/// The rates of these samples, of which the earliest is of the minute before this one.
pub fn rates(samples: &[&Sample], now: Timestamp) -> Rates {
    let from = minute_before(now);
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

/// The beginning of the minute before this one.
pub fn minute_before(now: Timestamp) -> Timestamp {
    minute_of(now) - TimeDelta::minutes(1)
}

fn minute_of(at: Timestamp) -> Timestamp {
    at - TimeDelta::microseconds(at.timestamp_micros().rem_euclid(60_000_000))
}

fn failed(sample: &Sample) -> u64 {
    sample.failed + sample.retried + sample.expired
}

pub fn chart(samples: &[Sample], now: Timestamp) -> Chart {
    let mut chart = Chart {
        published: vec![0; MINUTES],
        completed: vec![0; MINUTES],
        failed: vec![0; MINUTES],
        depth: vec![0; MINUTES],
    };
    for sample in samples {
        let back = (minute_of(now) - sample.at).num_minutes();
        let Some(place) = usize::try_from(back).ok().and_then(|back| (MINUTES - 1).checked_sub(back)) else { continue };
        chart.published[place] = sample.published;
        chart.completed[place] = sample.completed;
        chart.failed[place] = failed(sample);
        chart.depth[place] = sample.depth.unwrap_or(0);
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

    fn stat(event_type: &str, subscription: &str, status: &str, count: u64, oldest_at: Option<&str>) -> Stat {
        Stat {
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
            event_type: event_type.map(str::to_owned),
            published,
            completed,
            failed: 0,
            retried,
            expired: 0,
            depth: Some(published),
            wait_ms: Some(Quantiles { p95: 12.0 }),
            run_ms: None,
        }
    }

    /// A queue with something of everything.
    pub fn busy() -> View {
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
            status: status.into(),
            last_heartbeat: at(last),
            description: Some("runs ship.sh, up to 8 at once".into()),
        };
        let worker = |worker_id: &str, held| Worker {
            worker_id: worker_id.into(),
            held,
            last_seen_at: at("2026-11-16T10:29:30Z"),
            stale: false,
        };
        let letter = |event_id, error: Option<&str>| DeadLetter {
            event_id,
            event_type: "mail.send".into(),
            subscription: "main".into(),
            reason: "Max retries exceeded".into(),
            error: error.map(str::to_owned),
            failed_at: at("2026-11-16T10:28:00Z"),
        };
        View {
            namespace: "default".into(),
            namespaces: vec!["default".into(), "shop".into()],
            paused: false,
            rows: rows(&stats, &rates_by_type(&by_type, now)),
            rates: rates(&all.iter().collect::<Vec<_>>(), now),
            chart: chart(&all, now),
            working: working(
                vec![
                    node("web-1:4711", "alive", "2026-11-16T10:30:10Z"),
                    node("web-2:12", "stale", "2026-11-16T10:00:00Z"),
                    node("gone:1", "stopped", "2026-11-16T10:30:00Z"),
                ],
                vec![worker("web-1:4711", 8), worker("script:9", 0)],
            ),
            dead_letters: vec![
                letter(1_001, Some("exit code 1: \u{1b}[31m554 no such user\nsecond line")),
                letter(999, None),
            ],
            at: Some(now),
            away: None,
        }
    }

    #[test]
    fn counts_and_rates_come_together_by_type_and_subscription() {
        let view = busy();
        let shown: Vec<_> = view
            .rows
            .iter()
            .map(|row| format!("{} {} {} {} {}", row.event_type, row.subscription, row.waiting, row.running, row.dead))
            .collect();
        assert_eq!(shown, ["mail.send main 0 0 5", "order.paid billing 17 0 0", "order.paid main 1204 8 0"]);
        let rates = view.rows[2].rates;
        assert_eq!((rates.published, rates.completed, rates.failed), (15.0, 15.0, 0.1));
        assert_eq!((rates.wait_p95_ms, rates.run_p95_ms), (Some(12.0), None));
    }

    #[test]
    fn a_type_that_is_done_with_is_shown_while_it_moves() {
        let samples = [sample("10:30", Some("quick"), 3, 3, 0)];
        let rows = rows(&[], &rates_by_type(&samples, at(NOW)));
        assert_eq!((rows.len(), rows[0].event_type.as_str(), rows[0].subscription.as_str()), (1, "quick", "main"));
    }

    #[test]
    fn minutes_in_which_nothing_happened_are_empty() {
        let samples = [sample("10:30", None, 3, 2, 1), sample("09:31", None, 9, 0, 0), sample("09:30", None, 7, 7, 7)];
        let chart = chart(&samples, at(NOW));
        assert_eq!((chart.published[59], chart.published[0], chart.published[30]), (3, 9, 0));
        assert_eq!((chart.failed[59], chart.failed.iter().sum::<u64>()), (1, 1));
    }
}
