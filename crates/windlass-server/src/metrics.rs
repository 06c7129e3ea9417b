//! What is shown to Prometheus: what this process counted, and how much there is in the database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, counter, gauge, histogram, with_local_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use windlass::{Overview, Queue};

mod exposition;
mod gauges;

use exposition::Exposition;

/// How long waits and runs last, in seconds: from a claim at once to the longest that people wait.
const SPANS: [f64; 15] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
/// The same for requests: there is one histogram for each path.
const REQUEST_SPANS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0];
const REQUEST_DURATION: &str = "windlass_http_request_duration_seconds";

/// How often what was measured is put into its buckets, where nobody asks for it.
const SETTLE_EVERY: Duration = Duration::from_secs(5);
/// A database that takes longer than this to count is as good as away. Prometheus gives up after 10 s.
const READ_MAX: Duration = Duration::from_secs(5);
/// Counting takes at most one part in so many of the time.
const READ_SHARE: u32 = 20;

/// The server's own recorder: several servers in one process do not mix.
pub(crate) struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    queue: Queue,
    max_age: Duration,
    /// What was read last. Whoever asks meanwhile waits for who reads.
    read: tokio::sync::Mutex<Option<Read>>,
    /// Connections that are open.
    pub connections: Gauge,
    /// Connections that were turned away because there were too many.
    pub connections_refused: Counter,
    /// Claims that are waiting for an event.
    pub waiting_claims: Gauge,
}

/// What was found in the database, if it answered.
#[derive(Clone)]
struct Read {
    overview: Option<Arc<Overview>>,
    at: Instant,
    took: Duration,
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
        let (queue, read) = (queue.clone(), tokio::sync::Mutex::default());
        Metrics { recorder, handle, queue, max_age, read, connections, connections_refused, waiting_claims }
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
        let read = self.read().await;
        let mut text = Exposition::default();
        gauges::process(&mut text, &self.queue);
        gauges::reading(&mut text, read.overview.is_some(), read.took, read.at.elapsed());
        if let Some(overview) = &read.overview {
            gauges::database(&mut text, overview);
        }
        let all = self.handle.render() + &text.into_text();
        let known = |line: &&str| namespace_of(line).is_none_or(&covers);
        all.lines().filter(|line| !line.is_empty()).filter(known).map(|line| format!("{line}\n")).collect()
    }

    /// What is in the database, as of a moment ago.
    async fn read(&self) -> Read {
        let mut last = self.read.lock().await;
        if let Some(read) = last.as_ref().filter(|read| read.is_fresh(self.max_age)) {
            return read.clone();
        }
        let begun = Instant::now();
        let overview = match tokio::time::timeout(READ_MAX, self.queue.overview()).await {
            Ok(Ok(overview)) => Some(Arc::new(overview)),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the metrics do without what is in the database");
                None
            }
            Err(_) => {
                tracing::warn!(after = ?READ_MAX, "the metrics do without what is in the database: it does not answer");
                None
            }
        };
        last.insert(Read { overview, at: Instant::now(), took: begun.elapsed() }).clone()
    }

    /// Puts what was measured into its buckets now and then: until then each measurement takes memory.
    pub async fn settle(&self) {
        loop {
            tokio::time::sleep(SETTLE_EVERY).await;
            self.handle.run_upkeep();
        }
    }
}

impl Read {
    /// The longer it took, the longer it is good for.
    fn is_fresh(&self, max_age: Duration) -> bool {
        let cost = self.overview.as_ref().map_or(Duration::ZERO, |_| self.took * READ_SHARE);
        !max_age.is_zero() && self.at.elapsed() < max_age.max(cost)
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
            ("up{duty=\"x\",namespace=\"b\",type=\"y\"} 1", Some("b")),
            ("up{type=\"x,namespace=\\\"c\\\"\",namespace=\"d\"} 1", Some("d")),
            ("up{my_namespace=\"a\"} 1", None),
            ("up 1", None),
            ("# HELP up Of {namespace=\"a\"}.", None),
        ];
        for (line, namespace) in table {
            assert_eq!(namespace_of(line), namespace, "{line}");
        }
    }

    #[test]
    fn what_took_long_to_read_is_good_for_longer() {
        let seconds = Duration::from_secs;
        let read = |took, age, found: bool| Read {
            overview: found.then(|| Arc::new(Overview { namespaces: Vec::new() })),
            at: Instant::now() - age,
            took,
        };
        let table = [
            (seconds(0), seconds(1), true, seconds(5), true),
            (seconds(0), seconds(6), true, seconds(5), false),
            (seconds(1), seconds(15), true, seconds(5), true),
            (seconds(1), seconds(21), true, seconds(5), false),
            // One that failed is tried again soon, however long that took.
            (seconds(4), seconds(6), false, seconds(5), false),
            (seconds(1), seconds(0), true, seconds(0), false),
        ];
        for (took, age, found, max_age, fresh) in table {
            assert_eq!(read(took, age, found).is_fresh(max_age), fresh, "{took:?} {age:?} {found} {max_age:?}");
        }
    }
}
