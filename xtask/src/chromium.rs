//! Finds Chromium, in which the tests use the dashboard, or installs it where that needs no question.

use std::env;
use std::path::PathBuf;

use crate::install::with_apt;
use crate::run::{Result, output};

/// Names the program to the tests.
pub const VARIABLE: &str = "WINDLASS_TEST_CHROMIUM";

/// The tests look for the same names in PATH where nobody tells them.
const NAMES: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

const ON_MACOS: &str = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome";

const APT_INSTALL: &str = "
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends chromium
";

const HOW_TO_INSTALL: &str = "\
The tests use the dashboard in Chromium, and none was found. Either
  - install it: `apt-get install chromium` (Debian), `dnf install chromium` (Fedora), or Google Chrome (Ubuntu, where
    Chromium is a snap that cannot be driven from outside; macOS); or
  - set WINDLASS_TEST_CHROMIUM to the path of a Chromium or Chrome.";

/// The program.
pub fn program() -> Result<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from) {
        return match runs(&named) {
            true => Ok(named),
            false => Err(format!("{VARIABLE} is {}, which does not run", named.display())),
        };
    }
    if let Some(found) = find() {
        return Ok(found);
    }
    with_apt("Chromium", APT_INSTALL, HOW_TO_INSTALL)?;
    find().ok_or_else(|| HOW_TO_INSTALL.into())
}

fn find() -> Option<PathBuf> {
    NAMES.iter().copied().chain([ON_MACOS]).map(PathBuf::from).find(runs)
}

fn runs(program: &PathBuf) -> bool {
    program.to_str().is_some_and(|program| output(program, &["--version"]).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_run_is_not_taken() {
        assert!(runs(&"true".into()));
        assert!(!runs(&"false".into()));
        assert!(!runs(&"/no/such/browser".into()));
    }
}
