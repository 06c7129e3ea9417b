//! Traces over HTTP: an event published with a `traceparent` is handled in the publisher's trace.

use std::sync::Arc;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use tokio::sync::Notify;
use tracing_subscriber::layer::SubscriberExt;
use windlass::{Node, Queue};
use windlass_testkit::Kind;

use crate::harness::{JSON, Server, run_on_one_thread};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn event_is_handled_in_the_publishers_trace(server: &mut Server) {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));

    let headers = format!("{JSON}traceparent: {PARENT}\r\n");
    server.send("POST", "/events", &headers, r#"{"type":"order.paid","title":"Paid"}"#).await.expect(201);
    let (handled, other) = (Arc::new(Notify::new()), Queue::open(&server.url).await.unwrap());
    let tell = handled.clone();
    let node = Node::new(&other, "node-1").on("order.paid", move |_, _| {
        tell.notify_one();
        async { Ok(()) }
    });
    let node = node.start().await.unwrap();
    handled.notified().await;
    node.stop().await;

    let spans = exporter.get_finished_spans().unwrap();
    for name in ["windlass.publish", "windlass.handle"] {
        let span = spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name}: {spans:?}"));
        assert_eq!(format!("00-{}-{}-01", span.span_context.trace_id(), span.parent_span_id), PARENT, "{name}");
    }
}

mod sqlite {
    #[test]
    fn event_is_handled_in_the_publishers_trace() {
        let test = super::event_is_handled_in_the_publishers_trace;
        super::run_on_one_thread(super::Kind::Sqlite, test);
    }
}

mod postgres {
    #[test]
    fn event_is_handled_in_the_publishers_trace() {
        let test = super::event_is_handled_in_the_publishers_trace;
        super::run_on_one_thread(super::Kind::Postgres, test);
    }
}
