//! Finds Chromium, in which the tests use the dashboard, or installs it if that needs no password.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::with_apt;
use crate::run::{Result, output, run, target_folder};

/// The variable with the program, for the tests.
pub const VARIABLE: &str = "WINDLASS_TEST_CHROMIUM";

/// Program names; the tests search PATH for the same ones if the variable is not set.
const NAMES: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

const ON_MACOS: &str = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome";

const APT_INSTALL: &str = "
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends chromium
";

/// Without root: unpacks the missing packages into the folder `$1` and writes a script there that runs Chromium.
const APT_UNPACK: &str = r#"
set -e
cd "$1"
rm -rf packages root
mkdir packages
missing=$(apt-get install -s --no-install-recommends chromium | sed -n 's/^Inst \([^ ]*\).*/\1/p')
(cd packages && apt-get download $missing)
for package in packages/*.deb; do dpkg -x "$package" root; done
rm -r packages
libraries=$(find "$PWD/root" -name '*.so*' -exec dirname {} + | sort -u | tr '\n' ':')
[ -d root/etc/fonts ] && fonts="FONTCONFIG_SYSROOT='$PWD/root'"
printf '#!/bin/sh\nexec env LD_LIBRARY_PATH="%s" %s "%s" "$@"\n' "$libraries" "$fonts" "$PWD/root/usr/lib/chromium/chromium" > chromium
chmod +x chromium
"#;

const HOW_TO_INSTALL: &str = "\
The tests use the dashboard in Chromium, and none was found. Either
  - install it: `apt-get install chromium` (Debian), `dnf install chromium` (Fedora), or Google Chrome (Ubuntu, where
    Chromium is a snap that cannot be driven from outside; macOS); or
  - set WINDLASS_TEST_CHROMIUM to the path of a Chromium or Chrome.";

/// The program: named by the variable, found, installed or unpacked.
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
    match with_apt("Chromium", APT_INSTALL, HOW_TO_INSTALL) {
        Ok(()) => find().ok_or_else(|| HOW_TO_INSTALL.into()),
        Err(error) => unpacked().ok_or(error),
    }
}

/// Chromium in cargo's target folder; unpacks it if missing.
fn unpacked() -> Option<PathBuf> {
    let folder = target_folder("chromium").ok()?;
    let program = folder.join("chromium");
    if !runs(&program) {
        println!("Chromium is unpacked into {}", folder.display());
        run(Command::new("sh").args(["-c", APT_UNPACK, "sh"]).arg(&folder)).ok()?;
    }
    Some(program).filter(|program| runs(program))
}

fn find() -> Option<PathBuf> {
    NAMES.iter().copied().chain([ON_MACOS]).map(PathBuf::from).find(|program| runs(program))
}

fn runs(program: &Path) -> bool {
    program.to_str().is_some_and(|program| output(program, &["--version"]).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_does_not_run_is_rejected() {
        assert!(runs(Path::new("true")));
        assert!(!runs(Path::new("false")));
        assert!(!runs(Path::new("/no/such/browser")));
    }
}
