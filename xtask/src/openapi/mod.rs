//! `cargo xtask openapi-check`: checks the server against its OpenAPI document with Schemathesis.

mod server;

use std::path::{Path, PathBuf};
use std::process::Command;

use self::server::Server;
use crate::install::{self, PYTHON};
use crate::run::{Result, build_folder_path, cargo, root, run, target_folder};

/// The tested version: other versions may find other problems or have other options.
const VERSION: &str = "4.32.5";

const OPTIONS: &[&str] = &[
    "--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
    "--phases=examples,coverage,fuzzing,stateful",
    // The same requests every time. `-- --seed=2 --max-examples=500` sends other and more requests.
    "--seed=1",
    "--max-examples=50",
    "--generation-database=none",
    "--continue-on-failure",
    // A response that never ends cannot be checked.
    "--exclude-path-regex=/events/stream$",
    "--request-timeout=70",
];

pub fn check(args: &[String]) -> Result {
    install::programs(&[PYTHON])?;
    let folder = target_folder("openapi-check")?;
    let schemathesis = schemathesis(&folder)?;
    // With the same features as the tests, so that nothing is compiled twice.
    run(&mut cargo(["build", "--workspace", "--bin", "windlass"]))?;
    let server = Server::start(&build_folder_path("windlass")?, &folder)?;
    let mut check = Command::new(schemathesis);
    check.arg("run").arg(format!("{}/openapi.json", server.url)).args(OPTIONS).args(args);
    check.env("SCHEMATHESIS_HOOKS", root().join("xtask/src/openapi/hooks.py"));
    // Run outside the repository, so that no file there is used as configuration.
    run(check.current_dir(&folder).env("PYTHONDONTWRITEBYTECODE", "1"))
}

/// Schemathesis, installed into its own venv if missing.
fn schemathesis(folder: &Path) -> Result<PathBuf> {
    let venv = folder.join(format!("schemathesis-{VERSION}"));
    let program = venv.join("bin/schemathesis");
    if !program.is_file() {
        println!("Schemathesis {VERSION} is installed into {}", venv.display());
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let mut pip = Command::new(venv.join("bin/pip"));
        run(pip.args(["install", "--quiet", &format!("schemathesis=={VERSION}")]))?;
    }
    Ok(program)
}
