//! How far long work is, on stderr and for people only.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// What is told while nobody knows how much there is to do.
pub fn spinner() -> ProgressBar {
    if stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() }
}

/// A bar up to this number, which may be set later.
pub fn progress(what: &str, of: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(of).with_message(what.to_owned());
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {percent} % {eta}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}
