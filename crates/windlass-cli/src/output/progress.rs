//! Progress of long operations, shown on stderr if it is a terminal.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// A spinner, for work of unknown size.
pub fn spinner() -> ProgressBar {
    if stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() }
}

/// A progress bar with this total, which may be set later.
pub fn progress(what: &str, total: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total).with_message(what.to_owned());
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {percent} % {eta}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}
