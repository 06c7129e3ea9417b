//! OpenTelemetry spans. Publishing, claiming and handling an event belong to one trace across processes, linked by
//! the W3C `traceparent` in the event's metadata.
//!
//! Without the feature `otel` there are no spans, and a publisher's `traceparent` is passed on unchanged.

use tracing::Span;

use crate::event::NewEvent;
use crate::event::delivery::Delivery;
use crate::queue::outcome::{Outcome, Report};

#[cfg(not(feature = "otel"))]
mod disabled;
#[cfg(feature = "otel")]
mod spans;
#[cfg(feature = "otel")]
mod w3c;

#[cfg(not(feature = "otel"))]
use disabled as spans;

/// Starts a span for publishing these events, and adds its context to events that have none.
pub(crate) fn publish_span(namespace: &str, events: &mut [NewEvent]) -> Span {
    spans::publish_span(namespace, events)
}

/// Adds the context of the current span to events that have none.
pub(crate) fn add_trace_context(events: &mut [NewEvent]) {
    spans::add_trace_context(&Span::current(), events);
}

/// Records a claim as a span with links to the spans that published the events.
pub(crate) fn record_claim(deliveries: &[Delivery]) {
    if !deliveries.is_empty() {
        spans::record_claim(deliveries);
    }
}

/// Starts a span for handling a delivery, as a child of the publisher's span.
pub(crate) fn handler_span(delivery: &Delivery) -> Span {
    spans::handler_span(delivery)
}

/// Records the outcome in the handler's span.
pub(crate) fn record_outcome(span: &Span, report: &Report) {
    if !matches!(report.outcome, Outcome::Done | Outcome::Snooze { .. } | Outcome::Release) {
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", report.error.as_deref().unwrap_or_default());
    }
}
