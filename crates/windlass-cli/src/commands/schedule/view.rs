//! The parts of a schedule's text form that several subcommands share.

use windlass::ScheduleRunner;
use windlass_api::ScheduleView;

use crate::output::{GOOD, WARN};
use crate::time;

pub fn status(view: &ScheduleView) -> (&'static str, anstyle::Style) {
    if view.active { ("active", GOOD) } else { ("paused", WARN) }
}

/// Returns the next tick, formatted.
pub fn next_tick(view: &ScheduleView) -> Option<String> {
    view.next_runs.first().copied().map(time::format_timestamp)
}

/// Returns the name of the process that fires the schedule.
pub fn runner(view: &ScheduleView) -> &'static str {
    match view.runner {
        ScheduleRunner::Windlass => "windlass",
        ScheduleRunner::PgCron => "pg_cron",
    }
}
