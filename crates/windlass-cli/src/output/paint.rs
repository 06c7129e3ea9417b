//! Colours, each with one meaning. Whatever is printed loses them where they are not wanted.

use anstyle::{AnsiColor, Effects, Style};

/// Something is wrong.
pub const BAD: Style = AnsiColor::Red.on_default();
/// Somebody should look.
pub const WARN: Style = AnsiColor::Yellow.on_default();
/// All is well.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Something is under way.
pub const BUSY: Style = AnsiColor::Cyan.on_default();
/// Of less interest.
pub const FAINT: Style = Style::new().effects(Effects::DIMMED);
/// A heading.
pub const HEADING: Style = Style::new().effects(Effects::BOLD);

/// How a status looks, by its name in the API.
pub fn of_status(status: &str) -> Style {
    match status {
        "PENDING" => WARN,
        "PROCESSING" => BUSY,
        "COMPLETED" => GOOD,
        "COMPLETED_WITH_ERRORS" => WARN,
        "FAILED" | "EXPIRED" => BAD,
        _ => FAINT,
    }
}
