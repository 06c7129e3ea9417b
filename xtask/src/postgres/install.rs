//! Finds PostgreSQL's server programs, or installs them if that needs no password.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::install::with_apt;
use crate::run::{Result, output};

/// Debian's server package creates and starts its own cluster unless a configuration file of postgresql-common
/// disables it. The script restores that file afterwards.
const APT_INSTALL: &str = "
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends postgresql-common
conf=/etc/postgresql-common/createcluster.conf
cp -p $conf $conf.windlass
trap 'mv $conf.windlass $conf' EXIT
echo 'create_main_cluster = false' >> $conf
apt-get install -y --no-install-recommends postgresql
";

const HOW_TO_INSTALL: &str = "\
The tests need PostgreSQL's server programs (initdb, postgres), and none were found. Either
  - install them: `apt-get install postgresql` (Debian, Ubuntu), `dnf install postgresql-server`
    (Fedora), `brew install postgresql` (macOS); or put their folder into PATH; or
  - set WINDLASS_TEST_POSTGRES to the postgres:// URL of a role that may create databases.";

/// The folder with `initdb` and `postgres`.
pub fn server_bin() -> Result<PathBuf> {
    if let Some(bin) = find() {
        return Ok(bin);
    }
    with_apt("PostgreSQL", APT_INSTALL, HOW_TO_INSTALL)?;
    find().ok_or_else(|| HOW_TO_INSTALL.into())
}

/// The folder, if PostgreSQL is installed.
pub fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(output("pg_config", &["--bindir"]).map(PathBuf::from))
        .chain(bins_of_versions("/usr/lib/postgresql", "")) // Debian
        .chain(bins_of_versions("/usr", "pgsql-")) // Red Hat, the packages of postgresql.org
        .chain([PathBuf::from("/usr/local/pgsql/bin")]) // from source
        .chain(bins_of_versions("/opt/homebrew/opt", "postgresql"))
        .chain(bins_of_versions("/usr/local/opt", "postgresql"))
        .find(|bin| bin.join("initdb").is_file() && bin.join("postgres").is_file())
}

/// `<parent>/<prefix>*/bin`, the newest version first.
fn bins_of_versions(parent: &str, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    dirs.retain(|dir| name(dir).starts_with(prefix));
    dirs.sort_by_key(|dir| std::cmp::Reverse(version(name(dir))));
    dirs.into_iter().map(|dir| dir.join("bin")).collect()
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

/// The numbers in a name: `postgresql@9.6` is `[9, 6]`.
fn version(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_numbers() {
        let mut names = ["pgsql-9.6", "pgsql-16", "pgsql-9.10", "pgsql-10"];
        names.sort_by_key(|name| version(name));
        assert_eq!(names, ["pgsql-9.6", "pgsql-9.10", "pgsql-10", "pgsql-16"]);
    }
}
