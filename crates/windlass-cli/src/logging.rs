//! What is logged, to stderr: stdout is for results.

use std::io::{IsTerminal, stderr};

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::Result;

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
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl Logging {
    /// From here on what happens is logged.
    pub fn start(&self) -> Result {
        let log = tracing_subscriber::fmt().with_env_filter(filter()?).with_writer(stderr);
        match self.format {
            Format::Text => log.compact().with_ansi(is_colourful()).init(),
            Format::Json => log.json().init(),
        }
        Ok(())
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
