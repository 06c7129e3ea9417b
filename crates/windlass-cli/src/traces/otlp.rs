//! Exports traces by OTLP over HTTP.

use clap::Args;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use crate::Result;

/// Where to send traces.
#[derive(Args)]
pub struct TraceOptions {
    /// The collector of OpenTelemetry to send traces to, as in http://127.0.0.1:4318; none if not given
    #[arg(long = "otlp-endpoint", value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", global = true)]
    endpoint: Option<String>,
}

/// The running export. It buffers spans, so shut it down before the process exits.
pub struct TraceExport(Option<SdkTracerProvider>);

impl TraceOptions {
    pub fn start<S>(&self) -> Result<(Option<impl Layer<S> + use<S>>, TraceExport)>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let Some(endpoint) = self.endpoint.as_deref().filter(|endpoint| !endpoint.is_empty()) else {
            return Ok((None, TraceExport(None)));
        };
        if !endpoint.starts_with("http://") {
            return Err(
                format!("--otlp-endpoint {endpoint}: must begin with http://; for TLS use a collector nearby").into()
            );
        }
        let traces = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let exporter = SpanExporter::builder().with_http().with_endpoint(traces).build()?;
        // The builder reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES; do not override the name set there.
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("windlass");
        }
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("windlass"));
        // Export only the spans of Windlass: spans of the exporter itself would cause further exports.
        let windlass_spans = filter_fn(|metadata: &Metadata<'_>| metadata.is_span() && metadata.target() == "windlass");
        Ok((Some(layer.with_filter(windlass_spans)), TraceExport(Some(provider))))
    }
}

impl TraceExport {
    /// Sends the buffered spans.
    pub fn shut_down(self) {
        if let Some(Err(error)) = self.0.map(|provider| provider.shutdown()) {
            tracing::warn!(%error, "could not send the last traces");
        }
    }
}
