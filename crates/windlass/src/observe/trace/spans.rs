//! The spans. Their names and attributes are those that OpenTelemetry has for messaging.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, TraceContextExt};
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::w3c::{carried, carry};
use crate::event::NewEvent;
use crate::event::delivery::Delivery;

/// More links than this nobody follows.
const LINKS_MAX: usize = 128;

pub(super) fn publishing(namespace: &str, events: &mut [NewEvent]) -> Span {
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
    // Who has no span here may have brought one from elsewhere.
    if !span_context(&Span::current()).is_valid()
        && let Some(parent) = shared(events)
    {
        // It fails only where the span has begun, or nobody records it.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
    stamp(&span, events);
    span
}

/// The span that all of these events name.
fn shared(events: &[NewEvent]) -> Option<SpanContext> {
    let mut named = events.iter().map(|event| event.metadata.as_deref().and_then(carried));
    let first = named.next()??;
    named.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

pub(super) fn stamp(span: &Span, events: &mut [NewEvent]) {
    let context = span_context(span);
    if !context.is_valid() {
        return;
    }
    for event in events {
        if let Some(metadata) = carry(event.metadata.as_deref(), &context) {
            event.metadata = Some(metadata);
        }
    }
}

pub(super) fn taken(deliveries: &[Delivery]) {
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
    for published in deliveries.iter().take(LINKS_MAX).filter_map(published) {
        span.add_link(published);
    }
}

pub(super) fn handling(delivery: &Delivery) -> Span {
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
    if let Some(published) = published(delivery).filter(|_| !span.is_disabled()) {
        let _ = span.set_parent(Context::new().with_remote_span_context(published));
    }
    span
}

fn published(delivery: &Delivery) -> Option<SpanContext> {
    delivery.event.metadata.as_deref().and_then(carried)
}

fn span_context(span: &Span) -> SpanContext {
    span.context().span().span_context().clone()
}
