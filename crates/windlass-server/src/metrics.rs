//! What the server counts about itself, for Prometheus.

use std::sync::Arc;

use metrics::{Counter, Gauge, counter, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// The server's own recorder: several servers in one process do not mix.
pub(crate) struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    /// Connections that are open.
    pub connections: Gauge,
    /// Connections that were turned away because there were too many.
    pub connections_refused: Counter,
    /// Claims that are waiting for an event.
    pub waiting_claims: Gauge,
}

impl Metrics {
    pub fn new() -> Metrics {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let (connections, connections_refused, waiting_claims) = with_local_recorder(&recorder, || {
            metrics::describe_gauge!("windlass_http_connections", "Connections that are open.");
            metrics::describe_counter!(
                "windlass_http_connections_refused_total",
                "Connections turned away because there were too many."
            );
            metrics::describe_gauge!("windlass_http_waiting_claims", "Claims that are waiting for an event.");
            metrics::describe_counter!("windlass_http_refused_total", "Requests refused, by reason.");
            metrics::describe_counter!("windlass_http_requests_total", "Requests answered, by status.");
            (
                gauge!("windlass_http_connections"),
                counter!("windlass_http_connections_refused_total"),
                gauge!("windlass_http_waiting_claims"),
            )
        });
        Metrics { recorder: Arc::new(recorder), handle, connections, connections_refused, waiting_claims }
    }

    /// Requests that were refused for this reason.
    pub fn refused(&self, reason: &'static str) -> Counter {
        with_local_recorder(&*self.recorder, || counter!("windlass_http_refused_total", "reason" => reason))
    }

    /// Requests that were answered with this status.
    pub fn answered(&self, status: u16) {
        with_local_recorder(&*self.recorder, || {
            counter!("windlass_http_requests_total", "status" => status.to_string()).increment(1);
        });
    }

    /// In Prometheus's text format.
    pub fn render(&self) -> String {
        self.handle.render()
    }
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
