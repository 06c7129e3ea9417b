//! Finds the drivers of other languages that the guides use, or installs them under `target/`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::{self, PYTHON, Program};
use crate::run::{Result, run, target_folder};

/// The variable with a Python that has psycopg.
const PYTHON_VARIABLE: &str = "WINDLASS_TEST_PYTHON";
/// The variable with a folder in which Node finds pg.
const NODE_VARIABLE: &str = "WINDLASS_TEST_NODE_FOLDER";

const PSYCOPG: &str = "3.3.9";
const PG: &str = "8.23.1";

const NPM: Program = Program { name: "npm", args: &["--version"], package: "npm" };

/// The environment variables with the drivers, for the tests.
pub type Drivers = [(&'static str, PathBuf); 2];

/// Installs missing drivers. Installed ones are used without network access.
pub fn install() -> Result {
    let [(_, python), (_, node)] = locations()?;
    if !python.is_file() {
        install::programs(&[PYTHON])?;
        let venv = of_version("psycopg", PSYCOPG)?;
        println!("psycopg {PSYCOPG} is installed into {}", venv.display());
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let requirement = format!("psycopg[binary]=={PSYCOPG}");
        let install = run(Command::new(venv.join("bin/pip")).args(["install", "--quiet", &requirement]));
        remove_unless_installed(install, &venv)?;
    }
    if !module(&node).is_dir() {
        install::programs(&[NPM])?;
        println!("pg {PG} is installed into {}", node.display());
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(&node);
        remove_unless_installed(run(npm.arg(format!("pg@{PG}"))), &node)?;
    }
    Ok(())
}

/// The drivers, if both are installed.
pub fn find() -> Option<Drivers> {
    locations().ok().filter(|[(_, python), (_, node)]| python.is_file() && module(node).is_dir())
}

/// The locations named by the variables, or the default ones under `target/`.
fn locations() -> Result<Drivers> {
    let location = |variable: &str, default: PathBuf| {
        env::var_os(variable).filter(|named| !named.is_empty()).map_or(default, PathBuf::from)
    };
    let python = of_version("psycopg", PSYCOPG)?.join("bin/python");
    Ok([
        (PYTHON_VARIABLE, location(PYTHON_VARIABLE, python)),
        (NODE_VARIABLE, location(NODE_VARIABLE, of_version("pg", PG)?)),
    ])
}

fn of_version(name: &str, version: &str) -> Result<PathBuf> {
    Ok(target_folder("drivers")?.join(format!("{name}-{version}")))
}

fn module(node: &Path) -> PathBuf {
    node.join("node_modules/pg")
}

/// Removes the folder of a driver that could not be installed, so that it is not found the next time.
fn remove_unless_installed(installed: Result, folder: &Path) -> Result {
    if installed.is_err() {
        let _ = std::fs::remove_dir_all(folder);
    }
    installed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_installation_is_removed() {
        let folder = target_folder("drivers").unwrap().join("broken");
        std::fs::create_dir_all(module(&folder)).unwrap();
        assert_eq!(remove_unless_installed(Err("no network".into()), &folder), Err("no network".into()));
        assert!(!folder.exists());
    }

    #[test]
    fn each_version_has_its_own_folder() {
        let folder = of_version("pg", "1.2.3").unwrap();
        assert!(folder.ends_with("drivers/pg-1.2.3"), "{}", folder.display());
    }
}
