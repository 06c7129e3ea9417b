//! Finds pg_cron beside PostgreSQL's server programs, or installs it where that needs no question.

use std::fs;
use std::path::Path;

use crate::install::with_apt;
use crate::run::output;

/// Installs it for the server that tests start, if it can be; tests of it are left out where it cannot.
pub fn install() {
    let Some(bin) = super::install::find() else { return };
    if is_there(&bin) {
        return;
    }
    let version = output(&bin.join("postgres").display().to_string(), &["--version"]);
    let installed = version.as_deref().and_then(major).is_some_and(|major| {
        let how_to = format!("Its Debian package is postgresql-{major}-cron.");
        with_apt("pg_cron", &apt_script(major), &how_to).is_ok() && is_there(&bin)
    });
    if !installed {
        println!("pg_cron is not installed beside {}: its tests are left out.", bin.display());
    }
}

/// Whether it is installed beside these programs.
pub fn is_there(bin: &Path) -> bool {
    // They may be links to where the others are.
    let pg_config = fs::canonicalize(bin.join("postgres")).map(|postgres| postgres.with_file_name("pg_config"));
    let shared = pg_config.ok().and_then(|program| output(&program.display().to_string(), &["--sharedir"]));
    shared.is_some_and(|dir| Path::new(&dir).join("extension/pg_cron.control").is_file())
}

/// The 15 of `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn major(version: &str) -> Option<u32> {
    let (_, number) = version.split_once("(PostgreSQL) ")?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Most often the lists of packages are there already; to get them takes longer than the package.
fn apt_script(major: u32) -> String {
    format!(
        "export DEBIAN_FRONTEND=noninteractive\n\
         install='apt-get install -y -qq --no-install-recommends postgresql-{major}-cron'\n\
         $install >/dev/null 2>&1 || {{ apt-get update -qq && $install >/dev/null; }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_names_the_package() {
        assert_eq!(major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(major("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(major("postgres 15"), None);
        assert!(apt_script(16).contains(" postgresql-16-cron'\n"));
    }

    #[test]
    fn it_is_not_beside_other_programs() {
        assert!(!is_there(Path::new("/no/such/folder")));
    }
}
