//! OpenTelemetry traces: publishing, claiming and handling an event belong to one trace, across processes.

use std::sync::Arc;

use opentelemetry::Value;
use opentelemetry::trace::{SpanContext, SpanKind, Status, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tokio::sync::Notify;
use tracing::Instrument;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt;
use windlass::{ClaimRequest, Handler, HandlerError, NewEvent, Node, Queue, Report};
use windlass_testkit::Kind;

use crate::bed::{Bed, run_on_one_thread};
use crate::support::*;

/// Records the spans that end on this thread.
struct SpanRecorder {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl SpanRecorder {
    fn start() -> SpanRecorder {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        SpanRecorder { exporter, provider, _guard }
    }

    /// The spans with this name, earliest first.
    fn spans(&self, name: &str) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        let mut spans = self.exporter.get_finished_spans().unwrap();
        spans.retain(|span| span.name == name);
        spans.sort_by_key(|span| span.start_time);
        spans
    }

    fn span(&self, name: &str) -> SpanData {
        let mut spans = self.spans(name);
        assert_eq!(spans.len(), 1, "{name}: {spans:?}");
        spans.remove(0)
    }
}

fn attribute(span: &SpanData, name: &str) -> String {
    let found = span.attributes.iter().find(|pair| pair.key.as_str() == name);
    match found.map(|pair| &pair.value) {
        Some(Value::String(text)) => text.to_string(),
        Some(other) => other.to_string(),
        None => panic!("no {name}: {:?}", span.attributes),
    }
}

fn assert_child(child: &SpanData, parent: &SpanContext) {
    assert_eq!(child.span_context.trace_id(), parent.trace_id(), "{} is of another trace", child.name);
    assert_eq!(child.parent_span_id, parent.span_id(), "{} has another parent", child.name);
}

/// Handles one event on a node.
async fn handle_one(queue: &Queue, handler: Handler, handled: &Notify) {
    let node = Node::new(queue, "node-1").handler(handler).start().await.unwrap();
    handled.notified().await;
    node.stop().await;
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn event_is_one_trace_from_publisher_to_handler(bed: &Bed) {
    let recorder = SpanRecorder::start();
    let (publisher, other) = (bed.real_time_queue().await, bed.real_time_queue().await);
    let request = tracing::info_span!("request");
    let published = publisher.publish(NewEvent::new("order.paid")).instrument(request).await.unwrap();
    let handled = Arc::new(Notify::new());
    let (inner, notify) = (other.clone(), handled.clone());
    let handler = Handler::new("order.paid", move |_, _| {
        let (queue, notify) = (inner.clone(), notify.clone());
        async move {
            queue.publish(NewEvent::new("mail.sent").delay(secs(3_600))).await?;
            notify.notify_one();
            Ok(())
        }
    });
    handle_one(&other, handler, &handled).await;

    let request = recorder.span("request");
    let [publish, again] = &recorder.spans("windlass.publish")[..] else { panic!("two were published") };
    assert_child(publish, &request.span_context);
    assert_eq!(publish.span_kind, SpanKind::Producer);
    let handle = recorder.span("windlass.handle");
    assert_child(&handle, &publish.span_context);
    assert!(handle.parent_span_is_remote);
    assert_eq!((&handle.span_kind, &handle.status), (&SpanKind::Consumer, &Status::Unset));
    // Events published by the handler continue the trace.
    assert_child(again, &handle.span_context);
    let claim = recorder.span("windlass.claim");
    let links: Vec<_> = claim.links.iter().map(|link| link.span_context.span_id()).collect();
    assert_eq!(links, [publish.span_context.span_id()]);

    for (span, operation, kind) in
        [(publish, "publish", "send"), (&claim, "claim", "receive"), (&handle, "handle", "process")]
    {
        assert_eq!(attribute(span, "messaging.system"), "windlass");
        assert_eq!(attribute(span, "messaging.destination.name"), "order.paid");
        assert_eq!(
            (attribute(span, "messaging.operation.name"), attribute(span, "messaging.operation.type")),
            (operation.into(), kind.into())
        );
        assert_eq!(attribute(span, "windlass.namespace"), "default");
    }
    for span in [publish, &handle] {
        assert_eq!(attribute(span, "messaging.message.id"), published.event.id.to_string());
    }
}

async fn trace_in_event_metadata_is_continued(bed: &Bed) {
    let recorder = SpanRecorder::start();
    let queue = bed.real_time_queue().await;
    let metadata = serde_json::json!({ "traceparent": PARENT, "user": 7 });
    let published = queue.publish(NewEvent::new("a").metadata(&metadata).unwrap()).await.unwrap();
    assert_eq!(published.event.metadata.unwrap().get(), metadata.to_string());
    let handled = Arc::new(Notify::new());
    let notify = handled.clone();
    let handler = Handler::new("a", move |_, _| {
        notify.notify_one();
        async { Err(HandlerError::unrecoverable("no such user")) }
    });
    handle_one(&queue, handler, &handled).await;

    let (publish, handle) = (recorder.span("windlass.publish"), recorder.span("windlass.handle"));
    for span in [&publish, &handle] {
        let id = format!("00-{}-{}-01", span.span_context.trace_id(), span.parent_span_id);
        assert_eq!(id, PARENT, "{}", span.name);
    }
    assert_eq!(handle.status, Status::error("no such user"));
}

async fn publish_span_is_stored_in_event_metadata(bed: &Bed) {
    let recorder = SpanRecorder::start();
    let queue = bed.real_time_queue().await;
    let given = NewEvent::new("b").metadata(&serde_json::json!({ "traceparent": PARENT })).unwrap();
    queue.publish_all(vec![NewEvent::new("a"), given]).await.unwrap();
    let claimed = queue.claim(ClaimRequest::new("w").max(2)).await.unwrap();
    let traceparent = |event_type: &str| {
        let delivery = claimed.iter().find(|delivery| delivery.event.event_type == event_type).unwrap();
        let metadata: serde_json::Value =
            serde_json::from_str(delivery.event.metadata.as_ref().unwrap().get()).unwrap();
        metadata["traceparent"].as_str().unwrap().to_owned()
    };
    let publish = recorder.span("windlass.publish");
    let own = &publish.span_context;
    assert_eq!(traceparent("a"), format!("00-{}-{}-01", own.trace_id(), own.span_id()));
    assert_eq!(traceparent("b"), PARENT);
    assert_eq!(recorder.span("windlass.claim").links.len(), 2);
    for delivery in &claimed {
        finish(&queue, delivery, Report::done()).await;
    }
}

async fn transactional_handlers_continue_the_trace(bed: &Bed) {
    let recorder = SpanRecorder::start();
    let queue = bed.real_time_queue().await;
    let handled = Arc::new(Notify::new());
    let notify = handled.clone();
    let handler = match bed.database.kind {
        Kind::Sqlite => {
            let inner = queue.clone();
            Handler::in_sqlite_tx("a", move |_, tx| {
                inner.publish_in(tx, NewEvent::new("b").delay(secs(3_600)))?;
                notify.notify_one();
                Ok(())
            })
        }
        Kind::Postgres => {
            let inner = queue.clone();
            Handler::in_pg_tx("a", move |_, mut tx| {
                let (queue, notify) = (inner.clone(), notify.clone());
                async move {
                    queue.publish_in(&mut *tx, NewEvent::new("b").delay(secs(3_600))).await?;
                    notify.notify_one();
                    Ok(())
                }
            })
        }
    };
    queue.publish(NewEvent::new("a")).await.unwrap();
    handle_one(&queue, handler, &handled).await;
    let published = queue.list(Default::default()).await.unwrap().items;
    let b = published.iter().find(|view| view.event.event_type == "b").expect("the handler published the event");
    let handle = recorder.span("windlass.handle");
    let expected = format!("00-{}-{}-01", handle.span_context.trace_id(), handle.span_context.span_id());
    // On SQLite, the handler runs on the writer thread, whose spans this test does not record.
    if bed.database.kind == Kind::Postgres {
        assert!(b.event.metadata.as_ref().unwrap().get().contains(&expected));
    }
}

macro_rules! on_one_thread {
    ($($name:ident)*) => {
        mod sqlite {
            $(#[test] fn $name() { super::run_on_one_thread(super::Kind::Sqlite, super::$name) })*
        }

        mod postgres {
            $(#[test] fn $name() { super::run_on_one_thread(super::Kind::Postgres, super::$name) })*
        }
    };
}

on_one_thread! {
    event_is_one_trace_from_publisher_to_handler
    trace_in_event_metadata_is_continued
    publish_span_is_stored_in_event_metadata
    transactional_handlers_continue_the_trace
}
