//! Finds the drivers of other languages that the guides are written for, or installs them under `target/`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::{self, PYTHON, Program};
use crate::run::{Result, kept, run};

/// A Python that has psycopg.
const PYTHON_VARIABLE: &str = "WINDLASS_TEST_PYTHON";
/// A folder in which Node finds pg.
const NODE_VARIABLE: &str = "WINDLASS_TEST_NODE_FOLDER";

const PSYCOPG: &str = "3.3.9";
const PG: &str = "8.23.1";

const NPM: Program = Program { name: "npm", args: &["--version"], package: "npm" };

/// What the tests are told of drivers.
pub type Drivers = [(&'static str, PathBuf); 2];

/// Installs those that are missing. What is there is used without a network.
pub fn install() -> Result {
    let [(_, python), (_, node)] = places()?;
    if !python.is_file() {
        install::programs(&[PYTHON])?;
        let venv = of_version("psycopg", PSYCOPG)?;
        println!("psycopg {PSYCOPG} is installed into {}", venv.display());
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let requirement = format!("psycopg[binary]=={PSYCOPG}");
        let install = run(Command::new(venv.join("bin/pip")).args(["install", "--quiet", &requirement]));
        forget_unless(install, &venv)?;
    }
    if !module(&node).is_dir() {
        install::programs(&[NPM])?;
        println!("pg {PG} is installed into {}", node.display());
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(&node);
        forget_unless(run(npm.arg(format!("pg@{PG}"))), &node)?;
    }
    Ok(())
}

/// Those that are there.
pub fn find() -> Option<Drivers> {
    places().ok().filter(|[(_, python), (_, node)]| python.is_file() && module(node).is_dir())
}

/// Named by the variables, or where they are installed.
fn places() -> Result<Drivers> {
    let place = |variable: &str, kept: PathBuf| {
        env::var_os(variable).filter(|named| !named.is_empty()).map_or(kept, PathBuf::from)
    };
    let python = of_version("psycopg", PSYCOPG)?.join("bin/python");
    Ok([
        (PYTHON_VARIABLE, place(PYTHON_VARIABLE, python)),
        (NODE_VARIABLE, place(NODE_VARIABLE, of_version("pg", PG)?)),
    ])
}

fn of_version(name: &str, version: &str) -> Result<PathBuf> {
    Ok(kept("drivers")?.join(format!("{name}-{version}")))
}

fn module(node: &Path) -> PathBuf {
    node.join("node_modules/pg")
}

/// A driver that could not be installed is not found the next time.
fn forget_unless(installed: Result, folder: &Path) -> Result {
    if installed.is_err() {
        let _ = std::fs::remove_dir_all(folder);
    }
    installed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_installed_is_not_found() {
        let folder = kept("drivers").unwrap().join("broken");
        std::fs::create_dir_all(module(&folder)).unwrap();
        assert_eq!(forget_unless(Err("no network".into()), &folder), Err("no network".into()));
        assert!(!folder.exists());
    }

    #[test]
    fn each_version_has_a_folder_of_its_own() {
        let folder = of_version("pg", "1.2.3").unwrap();
        assert!(folder.ends_with("drivers/pg-1.2.3"), "{}", folder.display());
    }
}
