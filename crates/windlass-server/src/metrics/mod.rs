//! The `/metrics` page: counters and histograms of this process, and gauges read from the database.
//!
//! `gauges.rs` defines the gauges, `exposition.rs` writes Prometheus's text format, and `snapshot.rs` caches the
//! database read. Metrics of the queue itself are recorded by the `windlass` crate. Start at [`Metrics::render`].

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, counter, gauge, histogram, with_local_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use windlass::{Overview, Queue};

mod exposition;
mod gauges;
mod snapshot;

use exposition::Exposition;
use snapshot::SnapshotCache;

/// Histogram buckets for queue latency and run time, in seconds.
const DURATION_BUCKETS: [f64; 15] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
/// Histogram buckets for requests, in seconds. Fewer, because there is one histogram for each path.
const REQUEST_DURATION_BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0];
const REQUEST_DURATION: &str = "windlass_http_request_duration_seconds";

/// How often measurements are put into their buckets if `/metrics` is not requested.
const DRAIN_INTERVAL: Duration = Duration::from_secs(5);
/// A database that takes longer than this to answer a ping counts as down.
const PING_MAX: Duration = Duration::from_secs(1);

/// The metrics of one server. Each server has its own recorder, so that several in one process do not mix.
pub(crate) struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    queue: Queue,
    max_age: Duration,
    snapshots: tokio::sync::Mutex<SnapshotCache<Overview>>,
    /// Open connections.
    pub connections: Gauge,
    /// Connections rejected because there were too many.
    pub connections_refused: Counter,
    /// Claims waiting for an event.
    pub waiting_claims: Gauge,
}

/// The latest overview of the database, and how it was read.
struct DatabaseStatus {
    up: bool,
    overview: Option<Arc<Overview>>,
    read_duration: Duration,
    age: Duration,
}

impl Metrics {
    pub fn new(queue: &Queue, max_age: Duration) -> Metrics {
        let recorder = recorder();
        let handle = recorder.handle();
        let (connections, connections_refused, waiting_claims) = with_local_recorder(&recorder, || {
            describe();
            (
                gauge!("windlass_http_connections"),
                counter!("windlass_http_connections_refused_total"),
                gauge!("windlass_http_waiting_claims"),
            )
        });
        let recorder = Arc::new(recorder);
        queue.record_to(recorder.clone());
        let (queue, snapshots) = (queue.clone(), tokio::sync::Mutex::default());
        Metrics { recorder, handle, queue, max_age, snapshots, connections, connections_refused, waiting_claims }
    }

    /// The counter of requests refused for this reason.
    pub fn refusal_counter(&self, reason: &'static str) -> Counter {
        with_local_recorder(&*self.recorder, || counter!("windlass_http_refused_total", "reason" => reason))
    }

    /// Records a response. `path` is the template that the request matched.
    pub fn record_request(&self, method: &'static str, path: &str, status: u16, took: Duration) {
        with_local_recorder(&*self.recorder, || {
            let (path, status) = (path.to_owned(), status.to_string());
            counter!("windlass_http_requests_total", "method" => method, "path" => path.clone(), "status" => status)
                .increment(1);
            histogram!(REQUEST_DURATION, "method" => method, "path" => path).record(took.as_secs_f64());
        });
    }

    /// The metrics in Prometheus's text format, limited to the namespaces that the caller covers.
    pub async fn render(&self, covers: impl Fn(&str) -> bool) -> String {
        let database = self.read().await;
        let mut text = Exposition::default();
        gauges::process(&mut text, &self.queue);
        gauges::database_read(&mut text, database.up, database.read_duration, database.age);
        if let Some(overview) = &database.overview {
            gauges::database(&mut text, overview);
        }
        let all = self.handle.render() + &text.into_text();
        let covered = |line: &&str| namespace_of(line).is_none_or(&covers);
        all.lines().filter(|line| !line.is_empty()).filter(covered).map(|line| format!("{line}\n")).collect()
    }

    /// The latest overview of the database. While a new read takes long, the previous overview, as long as the database
    /// answers a ping.
    async fn read(&self) -> DatabaseStatus {
        let mut snapshots = self.snapshots.lock().await;
        let queue = self.queue.clone();
        let done = snapshots.refresh(self.max_age, || async move { queue.overview().await }).await;
        let last = snapshots.last.as_ref();
        let overview = last.and_then(|last| last.value.clone());
        let up = if done { overview.is_some() } else { self.is_database_up().await };
        let (read_duration, age) =
            last.map_or_else(Default::default, |last| (last.read_duration, last.taken_at.elapsed()));
        DatabaseStatus { up, overview: overview.filter(|_| up), read_duration, age }
    }

    async fn is_database_up(&self) -> bool {
        matches!(tokio::time::timeout(PING_MAX, self.queue.ping()).await, Ok(Ok(())))
    }

    /// Puts measurements into their buckets periodically. Until then each measurement occupies memory.
    pub async fn drain_histograms(&self) {
        loop {
            tokio::time::sleep(DRAIN_INTERVAL).await;
            self.handle.run_upkeep();
        }
    }
}

fn recorder() -> PrometheusRecorder {
    let request_duration = Matcher::Full(REQUEST_DURATION.to_owned());
    PrometheusBuilder::new()
        .set_buckets(&DURATION_BUCKETS)
        .and_then(|builder| builder.set_buckets_for_metric(request_duration, &REQUEST_DURATION_BUCKETS))
        .expect("the bucket lists are not empty")
        .build_recorder()
}

fn describe() {
    metrics::describe_gauge!("windlass_http_connections", "Open connections.");
    metrics::describe_counter!(
        "windlass_http_connections_refused_total",
        "Connections rejected because there were too many."
    );
    metrics::describe_gauge!("windlass_http_waiting_claims", "Claims waiting for an event.");
    metrics::describe_counter!("windlass_http_refused_total", "Requests refused, by reason.");
    metrics::describe_counter!("windlass_http_requests_total", "Requests, by path and status.");
    metrics::describe_histogram!(REQUEST_DURATION, "Time from a request to the start of its response.");
}

/// The `namespace` label of a line. A quote within a value is escaped, so no value is mistaken for the label.
fn namespace_of(line: &str) -> Option<&str> {
    let labels = line.split_once('{').filter(|_| !line.starts_with('#'))?.1;
    let (_, value) =
        labels.strip_prefix("namespace=\"").map(|rest| ("", rest)).or(labels.split_once(",namespace=\""))?;
    value.split('"').next()
}

/// Increments a gauge until it is dropped.
pub(crate) struct GaugeGuard(Gauge);

impl GaugeGuard {
    pub fn new(gauge: &Gauge) -> GaugeGuard {
        gauge.increment(1);
        GaugeGuard(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_label_is_found_in_a_line() {
        let table = [
            ("up{namespace=\"a\"} 1", Some("a")),
            ("up{task=\"x\",namespace=\"b\",type=\"y\"} 1", Some("b")),
            ("up{type=\"x,namespace=\\\"c\\\"\",namespace=\"d\"} 1", Some("d")),
            ("up{my_namespace=\"a\"} 1", None),
            ("up 1", None),
            ("# HELP up Of {namespace=\"a\"}.", None),
        ];
        for (line, namespace) in table {
            assert_eq!(namespace_of(line), namespace, "{line}");
        }
    }
}
