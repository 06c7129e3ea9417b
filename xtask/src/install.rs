//! Installs programs that the tests need, if that needs no password.

use std::process::Command;

use crate::run::{Result, output, run};

/// A program, and the Debian package that has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Program {
    pub name: &'static str,
    /// Arguments with which an installed program succeeds.
    pub args: &'static [&'static str],
    pub package: &'static str,
}

/// The programs that the documentation's examples use.
pub const TEST_PROGRAMS: &[Program] = &[
    Program { name: "curl", args: &["--version"], package: "curl" },
    Program { name: "python3", args: &["--version"], package: "python3" },
    Program { name: "node", args: &["--version"], package: "nodejs" },
];

/// Debian's python3 does not include the modules that create a venv.
pub const PYTHON: Program =
    Program { name: "python3", args: &["-c", "import ensurepip, venv"], package: "python3-venv" };

impl Program {
    fn is_installed(&self) -> bool {
        output(self.name, self.args).is_some()
    }
}

/// Installs the missing programs.
pub fn programs(needed: &[Program]) -> Result {
    let missing = |programs: &[Program]| -> Vec<Program> {
        programs.iter().copied().filter(|program| !program.is_installed()).collect()
    };
    let absent = missing(needed);
    if absent.is_empty() {
        return Ok(());
    }
    with_apt(&names(&absent), &apt_script(&absent), &how_to_install(&absent))?;
    match missing(&absent) {
        still if still.is_empty() => Ok(()),
        still => Err(how_to_install(&still)),
    }
}

/// Runs a script that calls `apt-get` as root. `how_to` is the error text if that is not possible.
pub fn with_apt(what: &str, script: &str, how_to: &str) -> Result {
    let mut shell = match (output("apt-get", &["--version"]), is_root()) {
        (Some(_), true) => Command::new("sh"),
        (Some(_), false) if output("sudo", &["-n", "true"]).is_some() => {
            let mut sudo = Command::new("sudo");
            sudo.args(["-n", "sh"]);
            sudo
        }
        _ => return Err(how_to.into()),
    };
    println!("Not installed: {what}. apt-get installs it.");
    run(shell.args(["-c", script])).map_err(|error| format!("{error}\n{how_to}"))
}

pub fn is_root() -> bool {
    output("id", &["-u"]).as_deref() == Some("0")
}

fn names(programs: &[Program]) -> String {
    programs.iter().map(|program| program.name).collect::<Vec<_>>().join(", ")
}

fn packages(programs: &[Program]) -> String {
    programs.iter().map(|program| program.package).collect::<Vec<_>>().join(" ")
}

fn apt_script(programs: &[Program]) -> String {
    let packages = packages(programs);
    format!(
        "set -e\nexport DEBIAN_FRONTEND=noninteractive\napt-get update\n\
         apt-get install -y --no-install-recommends {packages}\n"
    )
}

fn how_to_install(programs: &[Program]) -> String {
    let (names, packages) = (names(programs), packages(programs));
    format!(
        "These programs are needed and were not found, or do not run: {names}. Install them:\n  \
         `apt-get install {packages}` (Debian, Ubuntu), or the corresponding packages of your system."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABSENT: Program = Program { name: "no-such-program", args: &[], package: "none" };

    #[test]
    fn program_is_installed_if_it_runs() {
        assert!(Program { name: "true", ..ABSENT }.is_installed());
        assert!(!Program { name: "false", ..ABSENT }.is_installed());
        assert!(!ABSENT.is_installed());
    }

    #[test]
    fn nothing_is_installed_if_nothing_is_missing() {
        assert_eq!(programs(&[Program { name: "true", ..ABSENT }]), Ok(()));
    }

    #[test]
    fn only_missing_packages_are_named() {
        let script = apt_script(&TEST_PROGRAMS[1..]);
        assert!(script.ends_with(" --no-install-recommends python3 nodejs\n"), "{script}");
        let how_to = how_to_install(&TEST_PROGRAMS[..1]);
        assert!(how_to.contains("found, or do not run: curl.") && how_to.contains("apt-get install curl`"), "{how_to}");
    }
}
