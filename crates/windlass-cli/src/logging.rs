//! What is logged, to stderr: stdout is for results. And, where it was built with `otel`, what is sent as traces.

use std::io::{IsTerminal, stderr};

use clap::{Args, ValueEnum};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::Result;
use crate::traces::Traces;

const DEFAULT: &str = "warn,windlass=info";

/// How to log.
#[derive(Args)]
pub struct Logging {
    /// How log lines are written: for people, or as one JSON object each
    #[arg(
        long = "log-format",
        value_name = "FORMAT",
        env = "WINDLASS_LOG_FORMAT",
        default_value = "text",
        global = true
    )]
    format: Format,
    #[command(flatten)]
    traces: Traces,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl Logging {
    /// From here on what happens is logged, until the end of what is returned.
    pub fn start(&self) -> Result<crate::traces::Sending> {
        let lines = fmt::layer().with_writer(stderr);
        let lines = match self.format {
            Format::Text => lines.compact().with_ansi(is_colourful()).boxed(),
            Format::Json => lines.json().boxed(),
        };
        let (traces, sending) = self.traces.start()?;
        tracing_subscriber::registry().with(traces).with(lines.with_filter(filter()?)).init();
        Ok(sending)
    }
}

fn filter() -> Result<EnvFilter> {
    let set = |name: &'static str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty());
        value.map(|value| (name, value))
    };
    let (name, value) = set("WINDLASS_LOG").or_else(|| set("RUST_LOG")).unwrap_or(("", DEFAULT.to_owned()));
    Ok(EnvFilter::try_new(&value).map_err(|error| format!("{name}: '{value}': {error}"))?)
}

fn is_colourful() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stderr().is_terminal() && !no_color
}
