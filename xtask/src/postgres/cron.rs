//! Finds pg_cron next to PostgreSQL's server programs, or installs it if that needs no password.

use std::fs;
use std::path::Path;

use crate::install::with_apt;
use crate::run::output;

/// Installs pg_cron for the tests' server if possible. Its tests are skipped otherwise.
pub fn install() {
    let Some(bin) = super::install::find() else { return };
    if is_installed(&bin) {
        return;
    }
    let version = output(&bin.join("postgres").display().to_string(), &["--version"]);
    let installed = version.as_deref().and_then(major).is_some_and(|major| {
        let how_to = format!("Its Debian package is postgresql-{major}-cron.");
        with_apt("pg_cron", &apt_script(major), &how_to).is_ok() && is_installed(&bin)
    });
    if !installed {
        println!("pg_cron is not installed for {}: its tests are skipped.", bin.display());
    }
}

/// Whether pg_cron is installed for these server programs.
pub fn is_installed(bin: &Path) -> bool {
    // The programs may be symbolic links into the installation folder.
    let pg_config = fs::canonicalize(bin.join("postgres")).map(|postgres| postgres.with_file_name("pg_config"));
    let shared = pg_config.ok().and_then(|program| output(&program.display().to_string(), &["--sharedir"]));
    shared.is_some_and(|dir| Path::new(&dir).join("extension/pg_cron.control").is_file())
}

/// The 15 of `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn major(version: &str) -> Option<u32> {
    let (_, number) = version.split_once("(PostgreSQL) ")?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The package lists are usually present; updating them takes longer than the installation.
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
    fn major_version_selects_the_package() {
        assert_eq!(major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(major("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(major("postgres 15"), None);
        assert!(apt_script(16).contains(" postgresql-16-cron'\n"));
    }

    #[test]
    fn missing_pg_cron_is_detected() {
        assert!(!is_installed(Path::new("/no/such/folder")));
    }
}
