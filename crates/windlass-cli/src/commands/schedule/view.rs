//! The parts of a schedule's text form that several subcommands share.

use crate::api::responses::Schedule;
use crate::output::{GOOD, WARN};
use crate::time;

pub fn status(view: &Schedule) -> (&'static str, anstyle::Style) {
    if view.active { ("active", GOOD) } else { ("paused", WARN) }
}

/// Returns the next tick, formatted.
pub fn next_tick(view: &Schedule) -> Option<String> {
    view.next_runs.first().copied().map(time::format_timestamp)
}
