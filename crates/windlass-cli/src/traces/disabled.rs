//! Replaces `otlp` if the feature `otel` is off.

use clap::Args;
use tracing_subscriber::layer::Identity;

use crate::Result;

/// No options.
#[derive(Args)]
pub struct TraceOptions {}

/// No export.
pub struct TraceExport;

impl TraceOptions {
    pub fn start(&self) -> Result<(Identity, TraceExport)> {
        Ok((Identity::new(), TraceExport))
    }
}

impl TraceExport {
    pub fn shut_down(self) {}
}
