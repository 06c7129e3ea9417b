//! What is logged, to stderr: stdout is for results.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use crate::Result;

const DEFAULT: &str = "warn,windlass=info";

pub fn start() -> Result {
    let set = |name: &'static str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty());
        value.map(|value| (name, value))
    };
    let (name, value) = set("WINDLASS_LOG").or_else(|| set("RUST_LOG")).unwrap_or(("", DEFAULT.to_owned()));
    let filter = EnvFilter::try_new(&value).map_err(|error| format!("{name}: '{value}': {error}"))?;
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .compact()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal() && !no_color)
        .init();
    Ok(())
}
