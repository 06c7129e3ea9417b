//! Exports traces to an OpenTelemetry collector. Without the feature `otel` there is no option and no export.

#[cfg(not(feature = "otel"))]
mod disabled;
#[cfg(feature = "otel")]
mod otlp;

#[cfg(not(feature = "otel"))]
pub use disabled::{TraceExport, TraceOptions};
#[cfg(feature = "otel")]
pub use otlp::{TraceExport, TraceOptions};
