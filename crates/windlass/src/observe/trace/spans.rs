//! The spans. Names and attributes follow OpenTelemetry's semantic conventions for messaging.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, TraceContextExt};
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::w3c::{extract_context, inject_context};
use crate::event::NewEvent;
use crate::event::delivery::Delivery;

/// The most links to publishing spans in one claim span.
const LINKS_MAX: usize = 128;

pub(super) fn publish_span(namespace: &str, events: &mut [NewEvent]) -> Span {
    let span = tracing::info_span!(
        target: "windlass",
        "windlass.publish",
        otel.kind = "producer",
        messaging.system = "windlass",
        messaging.operation.name = "publish",
        messaging.operation.type = "send",
        messaging.destination.name = events.first().map_or("", |event| &event.event_type),
        messaging.batch.message_count = events.len(),
        messaging.message.id = Empty,
        windlass.namespace = namespace,
    );
    if span.is_disabled() {
        return span;
    }
    // Without a current span, use the context that all events have in common, if any.
    if !span_context(&Span::current()).is_valid()
        && let Some(parent) = common_context(events)
    {
        // This fails only if the span has started already or is not recorded.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
    add_trace_context(&span, events);
    span
}

/// The span context that all of these events have in common.
fn common_context(events: &[NewEvent]) -> Option<SpanContext> {
    let mut contexts = events.iter().map(|event| event.metadata.as_deref().and_then(extract_context));
    let first = contexts.next()??;
    contexts.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

pub(super) fn add_trace_context(span: &Span, events: &mut [NewEvent]) {
    let context = span_context(span);
    if !context.is_valid() {
        return;
    }
    for event in events {
        if let Some(metadata) = inject_context(event.metadata.as_deref(), &context) {
            event.metadata = Some(metadata);
        }
    }
}

pub(super) fn record_claim(deliveries: &[Delivery]) {
    let Some(first) = deliveries.first() else { return };
    let span = tracing::info_span!(
        target: "windlass",
        "windlass.claim",
        otel.kind = "consumer",
        messaging.system = "windlass",
        messaging.operation.name = "claim",
        messaging.operation.type = "receive",
        messaging.destination.name = first.event.event_type,
        messaging.destination.subscription.name = first.subscription,
        messaging.client.id = first.worker_id,
        messaging.batch.message_count = deliveries.len(),
        windlass.namespace = first.event.namespace,
    );
    if span.is_disabled() {
        return;
    }
    for context in deliveries.iter().take(LINKS_MAX).filter_map(publisher_context) {
        span.add_link(context);
    }
}

pub(super) fn handler_span(delivery: &Delivery) -> Span {
    let event = &delivery.event;
    let span = tracing::info_span!(
        target: "windlass",
        "windlass.handle",
        otel.kind = "consumer",
        otel.status_code = Empty,
        otel.status_description = Empty,
        messaging.system = "windlass",
        messaging.operation.name = "handle",
        messaging.operation.type = "process",
        messaging.destination.name = event.event_type,
        messaging.destination.subscription.name = delivery.subscription,
        messaging.client.id = delivery.worker_id,
        messaging.message.id = event.id,
        windlass.namespace = event.namespace,
        windlass.attempt = delivery.attempts,
    );
    if let Some(context) = publisher_context(delivery).filter(|_| !span.is_disabled()) {
        let _ = span.set_parent(Context::new().with_remote_span_context(context));
    }
    span
}

fn publisher_context(delivery: &Delivery) -> Option<SpanContext> {
    delivery.event.metadata.as_deref().and_then(extract_context)
}

fn span_context(span: &Span) -> SpanContext {
    span.context().span().span_context().clone()
}
