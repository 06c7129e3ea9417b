//! Traces, sent to a collector of OpenTelemetry: only where this was built with the feature `otel`.

#[cfg(not(feature = "otel"))]
mod none;
#[cfg(feature = "otel")]
mod otlp;

#[cfg(not(feature = "otel"))]
pub use none::{Sending, Traces};
#[cfg(feature = "otel")]
pub use otlp::{Sending, Traces};
