//! `cargo xtask tidy`: the rules of CONTRIBUTING.md that a program can check.

mod rules;
mod source;
mod style;

use std::fs;
use std::io;
use std::path::Path;

use crate::acceptance;
use crate::run::{Result, root};

pub fn tidy() -> Result {
    let paths = paths()?;

    let mut count = 0;
    let mut report = |path: &str, line: usize, message: &str| {
        println!("{path}:{line}: {message}");
        count += 1;
    };
    for path in &paths {
        let text = if rules::is_text(path) {
            fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))?
        } else {
            String::new()
        };
        for rule in rules::FILE_RULES {
            for (line, message) in rule(path, &text) {
                report(path, line, &message);
            }
        }
    }
    for (path, message) in rules::migrations_are_twins(&paths) {
        report(&path, 1, &message);
    }
    if let Some(message) = style::root_is_small(&paths) {
        report("crates/windlass/src", 1, &message);
    }
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).map_err(|error| error.to_string())?;
    for message in style::architecture_is_true(&architecture, &paths) {
        report("ARCHITECTURE.md", 1, &message);
    }
    for message in acceptance::violations(&paths)? {
        report("docs/acceptance.md", 1, &message);
    }
    match count {
        0 => Ok(()),
        count => Err(format!("{count} violations; the rules are in CONTRIBUTING.md")),
    }
}

/// All files of the project, in order.
pub fn paths() -> Result<Vec<String>> {
    let mut paths = Vec::new();
    walk(root(), "", &mut paths).map_err(|error| format!("cannot list the files: {error}"))?;
    paths.sort();
    Ok(paths)
}

/// All files below `root` except git's and cargo's, as paths relative to it.
fn walk(root: &Path, below: &str, paths: &mut Vec<String>) -> io::Result<()> {
    let dir = root.join(below);
    // Cargo marks its target folders with this file, whatever their name.
    if dir.join("CACHEDIR.TAG").exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().display().to_string();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() {
            if name != ".git" && name != "target" {
                walk(root, &path, paths)?;
            }
        } else {
            paths.push(path);
        }
    }
    Ok(())
}
