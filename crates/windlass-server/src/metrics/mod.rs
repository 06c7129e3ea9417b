//! What is shown to Prometheus: what this process counted, and how much there is in the database.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, counter, gauge, histogram, with_local_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use windlass::{Overview, Queue};

mod exposition;
mod gauges;
mod reading;

use exposition::Exposition;
use reading::Reading;

/// How long waits and runs last, in seconds: from a claim at once to the longest that people wait.
const SPANS: [f64; 15] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
/// The same for requests: there is one histogram for each path.
const REQUEST_SPANS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0];
const REQUEST_DURATION: &str = "windlass_http_request_duration_seconds";

/// How often what was measured is put into its buckets, where nobody asks for it.
const SETTLE_EVERY: Duration = Duration::from_secs(5);
/// A database that takes longer than this to answer at all is as good as away.
const PING_MAX: Duration = Duration::from_secs(1);

/// The server's own recorder: several servers in one process do not mix.
pub(crate) struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    queue: Queue,
    max_age: Duration,
    reading: tokio::sync::Mutex<Reading<Overview>>,
    /// Connections that are open.
    pub connections: Gauge,
    /// Connections that were turned away because there were too many.
    pub connections_refused: Counter,
    /// Claims that are waiting for an event.
    pub waiting_claims: Gauge,
}

/// What is known of the database.
struct Known {
    up: bool,
    overview: Option<Arc<Overview>>,
    took: Duration,
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
        let (queue, reading) = (queue.clone(), tokio::sync::Mutex::default());
        Metrics { recorder, handle, queue, max_age, reading, connections, connections_refused, waiting_claims }
    }

    /// Requests that were refused for this reason.
    pub fn refused(&self, reason: &'static str) -> Counter {
        with_local_recorder(&*self.recorder, || counter!("windlass_http_refused_total", "reason" => reason))
    }

    /// A request was answered. The path is the template that it matched.
    pub fn answered(&self, method: &'static str, path: &str, status: u16, took: Duration) {
        with_local_recorder(&*self.recorder, || {
            let (path, status) = (path.to_owned(), status.to_string());
            counter!("windlass_http_requests_total", "method" => method, "path" => path.clone(), "status" => status)
                .increment(1);
            histogram!(REQUEST_DURATION, "method" => method, "path" => path).record(took.as_secs_f64());
        });
    }

    /// In Prometheus's text format: of the namespaces that the caller may know of.
    pub async fn render(&self, covers: impl Fn(&str) -> bool) -> String {
        let known = self.read().await;
        let mut text = Exposition::default();
        gauges::process(&mut text, &self.queue);
        gauges::reading(&mut text, known.up, known.took, known.age);
        if let Some(overview) = &known.overview {
            gauges::database(&mut text, overview);
        }
        let all = self.handle.render() + &text.into_text();
        let covered = |line: &&str| namespace_of(line).is_none_or(&covers);
        all.lines().filter(|line| !line.is_empty()).filter(covered).map(|line| format!("{line}\n")).collect()
    }

    /// What is in the database, as of a moment ago. While it takes long to count, what was counted before, as long as
    /// the database answers at all.
    async fn read(&self) -> Known {
        let mut reading = self.reading.lock().await;
        let queue = self.queue.clone();
        let done = reading.refresh(self.max_age, || async move { queue.overview().await }).await;
        let last = reading.last.as_ref();
        let found = last.and_then(|last| last.found.clone());
        let up = if done { found.is_some() } else { self.answers().await };
        let (took, age) = last.map_or_else(Default::default, |last| (last.took, last.at.elapsed()));
        Known { up, overview: found.filter(|_| up), took, age }
    }

    async fn answers(&self) -> bool {
        matches!(tokio::time::timeout(PING_MAX, self.queue.ping()).await, Ok(Ok(())))
    }

    /// Puts what was measured into its buckets now and then: until then each measurement takes memory.
    pub async fn settle(&self) {
        loop {
            tokio::time::sleep(SETTLE_EVERY).await;
            self.handle.run_upkeep();
        }
    }
}

fn recorder() -> PrometheusRecorder {
    let request_duration = Matcher::Full(REQUEST_DURATION.to_owned());
    PrometheusBuilder::new()
        .set_buckets(&SPANS)
        .and_then(|builder| builder.set_buckets_for_metric(request_duration, &REQUEST_SPANS))
        .expect("there are buckets")
        .build_recorder()
}

fn describe() {
    metrics::describe_gauge!("windlass_http_connections", "Connections that are open.");
    metrics::describe_counter!(
        "windlass_http_connections_refused_total",
        "Connections turned away because there were too many."
    );
    metrics::describe_gauge!("windlass_http_waiting_claims", "Claims that are waiting for an event.");
    metrics::describe_counter!("windlass_http_refused_total", "Requests refused, by reason.");
    metrics::describe_counter!("windlass_http_requests_total", "Requests answered, by path and status.");
    metrics::describe_histogram!(REQUEST_DURATION, "From a request to the beginning of its answer.");
}

/// The namespace that a line is about. A quote within a value is escaped, so this finds no other.
fn namespace_of(line: &str) -> Option<&str> {
    let labels = line.split_once('{').filter(|_| !line.starts_with('#'))?.1;
    let (_, value) =
        labels.strip_prefix("namespace=\"").map(|rest| ("", rest)).or(labels.split_once(",namespace=\""))?;
    value.split('"').next()
}

/// One more for as long as this lives.
pub(crate) struct Counted(Gauge);

impl Counted {
    pub fn new(gauge: &Gauge) -> Counted {
        gauge.increment(1);
        Counted(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_of_a_line_is_found() {
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
