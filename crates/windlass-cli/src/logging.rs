//! Sets up logging to stderr (stdout is for results) and, if built with `otel`, the export of traces.

use std::io::{IsTerminal, stderr};

use clap::{Args, ValueEnum};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::Result;
use crate::traces::TraceOptions;

const DEFAULT_FILTER: &str = "warn,windlass=info";

/// Logging options.
#[derive(Args)]
pub struct LoggingOptions {
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
    traces: TraceOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl LoggingOptions {
    /// Starts logging and the export of traces. The caller shuts the export down before the process exits.
    pub fn start(&self) -> Result<crate::traces::TraceExport> {
        let lines = fmt::layer().with_writer(stderr);
        let lines = match self.format {
            Format::Text => lines.compact().with_ansi(uses_colors()).boxed(),
            Format::Json => lines.json().boxed(),
        };
        let (traces, trace_export) = self.traces.start()?;
        tracing_subscriber::registry().with(traces).with(lines.with_filter(filter()?)).init();
        Ok(trace_export)
    }
}

fn filter() -> Result<EnvFilter> {
    let non_empty_variable = |name: &'static str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty());
        value.map(|value| (name, value))
    };
    let (name, value) = non_empty_variable("WINDLASS_LOG")
        .or_else(|| non_empty_variable("RUST_LOG"))
        .unwrap_or(("", DEFAULT_FILTER.to_owned()));
    Ok(EnvFilter::try_new(&value).map_err(|error| format!("{name}: '{value}': {error}"))?)
}

fn uses_colors() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stderr().is_terminal() && !no_color
}
