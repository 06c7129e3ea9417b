//! No traces: the feature `otel` is off, and so there is no option for them.

use clap::Args;
use tracing_subscriber::layer::Identity;

use crate::Result;

/// Nothing to set.
#[derive(Args)]
pub struct Traces {}

/// Nothing is sent.
pub struct Sending;

impl Traces {
    pub fn start(&self) -> Result<(Identity, Sending)> {
        Ok((Identity::new(), Sending))
    }
}

impl Sending {
    pub fn end(self) {}
}
