//! Colors and their meanings. Printing removes them if stdout is no terminal or `NO_COLOR` is set.

use anstyle::{AnsiColor, Effects, Style};
use windlass::Status;

/// An error or failure.
pub const BAD: Style = AnsiColor::Red.on_default();
/// Needs attention.
pub const WARN: Style = AnsiColor::Yellow.on_default();
/// Success.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// In progress.
pub const BUSY: Style = AnsiColor::Cyan.on_default();
/// Less important.
pub const FAINT: Style = Style::new().effects(Effects::DIMMED);
/// A heading.
pub const HEADING: Style = Style::new().effects(Effects::BOLD);

/// Returns the style of a status. A status of a newer server has none.
pub fn status_style(status: &str) -> Style {
    match status.parse() {
        Ok(Status::Pending | Status::CompletedWithErrors) => WARN,
        Ok(Status::Processing) => BUSY,
        Ok(Status::Completed) => GOOD,
        Ok(Status::Failed | Status::Expired) => BAD,
        Ok(Status::Cancelled) => FAINT,
        Err(_) => Style::new(),
    }
}
