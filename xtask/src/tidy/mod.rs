//! `cargo xtask tidy`: the rules of CONTRIBUTING.md that a program can check.

mod rules;
mod source;

use std::fs;
use std::io;
use std::path::Path;

use crate::run::{Result, root};

pub fn tidy() -> Result {
    let mut paths = Vec::new();
    walk(root(), "", &mut paths).map_err(|error| format!("cannot list the files: {error}"))?;
    paths.sort();

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
        for rule in rules::OF_A_FILE {
            for (line, message) in rule(path, &text) {
                report(path, line, &message);
            }
        }
    }
    for (path, message) in rules::migrations_are_twins(&paths) {
        report(&path, 1, &message);
    }
    match count {
        0 => Ok(()),
        count => Err(format!("{count} violations; the rules are in CONTRIBUTING.md")),
    }
}

/// All files below `root`, as paths relative to it, but not git's and cargo's own.
fn walk(root: &Path, below: &str, paths: &mut Vec<String>) -> io::Result<()> {
    let dir = root.join(below);
    // Cargo marks its target folders, whatever they are called, with this file.
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
