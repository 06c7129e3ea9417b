//! Installs the peers on demand below the target folder, and finds or installs the brokers.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::adapter_process::last_lines;
use super::systems::{Package, Storage, System};
use crate::AnyError;

const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

const APT_INSTALL: &str = "
export DEBIAN_FRONTEND=noninteractive
apt-get update && apt-get install -y --no-install-recommends \"$1\"";

/// Without root: unpacks the package into the folder `$2`.
const APT_UNPACK: &str = "
set -e
mkdir -p \"$2\"
cd \"$2\"
apt-get download \"$1\"
for package in *.deb; do dpkg -x \"$package\" .; done
rm *.deb";

/// Installs packages, each at most once.
pub struct Installer {
    folder: PathBuf,
    may_install: bool,
    packages: HashMap<Package, Result<(), String>>,
}

/// An installed system and how to run it.
pub struct Installed {
    program: PathBuf,
    arguments: Vec<String>,
    broker: Option<PathBuf>,
}

impl Installed {
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    pub fn broker(&self) -> Result<&Path, AnyError> {
        self.broker.as_deref().ok_or_else(|| "it needs no broker".into())
    }
}

impl Installer {
    pub fn new(may_install: bool) -> Result<Installer, AnyError> {
        let program = std::env::current_exe()?;
        let target = program.parent().and_then(Path::parent).ok_or("this program is in no target folder")?;
        let folder = target.join("bench");
        fs::create_dir_all(folder.join("log"))?;
        Ok(Installer { folder, may_install, packages: HashMap::new() })
    }

    /// The log file for the adapter's stderr.
    pub fn log(&self, system: &System) -> PathBuf {
        self.folder.join("log").join(format!("{}.log", system.name))
    }

    pub fn install(&mut self, system: &System) -> Result<Installed, String> {
        if self.may_install {
            let package = system.package;
            if !self.packages.contains_key(&package) {
                let installed = self.install_package(package);
                self.packages.insert(package, installed);
            }
            self.packages[&package].clone()?;
        }
        let (program, arguments) = self.adapter(system)?;
        let broker = match system.storage {
            Storage::Nats => Some(self.broker("nats-server")?),
            Storage::Beanstalkd => Some(self.broker("beanstalkd")?),
            Storage::Postgres | Storage::Sqlite => None,
        };
        Ok(Installed { program, arguments, broker })
    }

    fn adapter(&self, system: &System) -> Result<(PathBuf, Vec<String>), String> {
        let name = system.name.to_owned();
        let file = |path: PathBuf| match path.is_file() {
            true => Ok(path),
            false => Err(format!("there is no {}", path.display())),
        };
        Ok(match system.package {
            Package::Own => {
                let program = std::env::current_exe().map_err(|error| error.to_string())?;
                (program, vec!["adapter".to_owned(), name])
            }
            Package::Rust => (file(self.folder.join("rust/release/windlass-bench-peers"))?, vec![name]),
            Package::Effectum => (file(self.folder.join("rust/release/windlass-bench-effectum"))?, vec![name]),
            Package::Node => {
                let folder = self.folder.join("node");
                let script = file(folder.join(name + ".mjs"))?;
                // The peers need a newer Node than many systems have; their packages include it if necessary.
                let node = file(folder.join("node_modules/.bin/node")).unwrap_or_else(|_| PathBuf::from("node"));
                (node, vec![script.display().to_string()])
            }
            Package::Python => {
                let script = file(Path::new(PEERS).join("python").join(format!("{name}_peer.py")))?;
                (file(self.folder.join("python/bin/python"))?, vec![script.display().to_string()])
            }
        })
    }

    fn install_package(&self, package: Package) -> Result<(), String> {
        match package {
            Package::Own => Ok(()),
            Package::Rust => self.cargo_build("rust"),
            Package::Effectum => self.cargo_build("rust/effectum"),
            Package::Node => self.npm_ci(),
            Package::Python => self.pip_install(),
        }
    }

    fn cargo_build(&self, folder: &str) -> Result<(), String> {
        let manifest = Path::new(PEERS).join(folder).join("Cargo.toml");
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--release", "--locked", "--manifest-path"]).arg(&manifest);
        run(cargo.env("CARGO_TARGET_DIR", self.folder.join("rust")))
    }

    /// Installs in a copy of the folder, because npm puts packages next to the lock file.
    fn npm_ci(&self) -> Result<(), String> {
        let (from, to) = (Path::new(PEERS).join("node"), self.folder.join("node"));
        fs::create_dir_all(&to).map_err(|error| format!("cannot create {}: {error}", to.display()))?;
        let is_new = !to.join("node_modules").is_dir() || is_changed(&from, &to, "package-lock.json");
        let files = fs::read_dir(&from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
        for file in files.flatten().filter(|file| file.path().is_file()) {
            let copied = fs::copy(file.path(), to.join(file.file_name()));
            copied.map_err(|error| format!("cannot copy {}: {error}", file.path().display()))?;
        }
        if is_new {
            // The lock file is removed on failure, so that an incomplete installation is not reused.
            let ci = run(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&to));
            return ci.inspect_err(|_| drop(fs::remove_file(to.join("package-lock.json"))));
        }
        Ok(())
    }

    fn pip_install(&self) -> Result<(), String> {
        let (from, to) = (Path::new(PEERS).join("python"), self.folder.join("python"));
        if !is_changed(&from, &to, "requirements.txt") {
            return Ok(());
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(&to))?;
        let list = from.join("requirements.txt");
        run(Command::new(to.join("bin/python")).args(["-m", "pip", "install", "--quiet", "-r"]).arg(&list))?;
        let copied = fs::copy(&list, to.join("requirements.txt"));
        copied.map(drop).map_err(|error| format!("cannot copy {}: {error}", list.display()))
    }

    /// The program of the Debian package with the same name.
    fn broker(&self, name: &str) -> Result<PathBuf, String> {
        let unpacked = self.folder.join("brokers");
        let find = || {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::env::split_paths(&path).chain(["usr/sbin", "usr/bin"].map(|bin| unpacked.join(bin)));
            // Daemons are in folders that may not be in PATH.
            let mut folders = folders.chain(["/usr/sbin", "/usr/bin"].map(PathBuf::from));
            folders.find_map(|folder| Some(folder.join(name)).filter(|program| program.is_file()))
        };
        if find().is_none() && self.may_install {
            eprintln!("installing {name}");
            let as_root = run(Command::new("sh").args(["-c", APT_INSTALL, "sh", name]));
            as_root.or_else(|_| run(Command::new("sh").args(["-c", APT_UNPACK, "sh", name]).arg(&unpacked)))?;
        }
        find().ok_or_else(|| format!("there is no {name}"))
    }
}

fn is_changed(from: &Path, to: &Path, name: &str) -> bool {
    let (wanted, installed) = (fs::read(from.join(name)), fs::read(to.join(name)));
    !matches!((wanted, installed), (Ok(wanted), Ok(installed)) if wanted == installed)
}

/// Runs a command; on failure returns the last lines of its output.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let arguments: Vec<_> = command.get_args().take(3).map(|argument| argument.to_string_lossy()).collect();
    eprintln!("running {program} {}", arguments.join(" ").lines().next().unwrap_or_default());
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program}: {}", last_lines(&String::from_utf8_lossy(&output.stderr)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_command_reports_its_output() {
        assert_eq!(run(Command::new("sh").args(["-c", "exit 0"])), Ok(()));
        let failed = run(Command::new("sh").args(["-c", "echo gone >&2; exit 1"]));
        assert_eq!(failed, Err("sh: gone".into()));
    }

    #[test]
    fn files_are_compared_by_what_they_say() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("list"), "a").unwrap();
        assert!(is_changed(from.path(), to.path(), "list"));
        fs::write(to.path().join("list"), "a").unwrap();
        assert!(!is_changed(from.path(), to.path(), "list"));
        fs::write(to.path().join("list"), "b").unwrap();
        assert!(is_changed(from.path(), to.path(), "list"));
    }
}
