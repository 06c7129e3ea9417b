//! Traces: publishing, taking and handling an event are one, across processes, by the `traceparent` of W3C in the event's
//! metadata. Without the feature `otel` there are no spans, and what a publisher put there is carried as it is.

use tracing::Span;

use crate::event::NewEvent;
use crate::event::delivery::Delivery;
use crate::queue::outcome::{Outcome, Report};

#[cfg(not(feature = "otel"))]
mod none;
#[cfg(feature = "otel")]
mod spans;
#[cfg(feature = "otel")]
mod w3c;

#[cfg(not(feature = "otel"))]
use none as spans;

/// A span for publishing these events, which name it unless they name one already.
pub(crate) fn publishing(namespace: &str, events: &mut [NewEvent]) -> Span {
    spans::publishing(namespace, events)
}

/// Lets events that name no span name the current one.
pub(crate) fn stamp(events: &mut [NewEvent]) {
    spans::stamp(&Span::current(), events);
}

/// Tells that deliveries were taken, as a span that is linked to those that published them.
pub(crate) fn taken(deliveries: &[Delivery]) {
    if !deliveries.is_empty() {
        spans::taken(deliveries);
    }
}

/// A span for handling a delivery, which goes on with the publisher's trace.
pub(crate) fn handling(delivery: &Delivery) -> Span {
    spans::handling(delivery)
}

/// Notes in the span how the handling ended.
pub(crate) fn handled(span: &Span, report: &Report) {
    if !matches!(report.outcome, Outcome::Done | Outcome::Snooze { .. } | Outcome::Release) {
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", report.error.as_deref().unwrap_or_default());
    }
}
