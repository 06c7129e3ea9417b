//! `windlass serve` on an empty SQLite file, gone with it when dropped.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{POLL, Result, signal};

/// Longer than its own grace for requests that are under way.
const STOP_MAX: Duration = Duration::from_secs(40);

pub struct Server {
    pub url: String,
    process: Child,
    data: PathBuf,
}

impl Server {
    pub fn start(program: &Path, folder: &Path) -> Result<Server> {
        let data = folder.join(format!("data-{}", std::process::id()));
        fs::create_dir_all(&data).map_err(|error| format!("cannot make {}: {error}", data.display()))?;
        let mut serve = Command::new(program);
        let database = format!("sqlite://{}", data.join("windlass.db").display());
        serve.args(["serve", "--listen", "127.0.0.1:0", "--database", &database]);
        without_settings(&mut serve);
        // A group of its own, or Ctrl-C would stop it before those who use it.
        serve.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        let process = serve.spawn().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let mut server = Server { url: String::new(), process, data };
        let stdout = server.process.stdout.take().ok_or("the server has no stdout")?;
        server.url = listening_url(stdout)?;
        println!("The server listens on {}", server.url);
        Ok(server)
    }
}

/// What is set for other servers, tokens say, is not for this one.
fn without_settings(serve: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"WINDLASS_")) {
        serve.env_remove(name);
    }
}

/// Reads up to the address; what follows is read too, or the server could not write it.
fn listening_url(stdout: ChildStdout) -> Result<String> {
    let mut stdout = BufReader::new(stdout);
    let mut line = String::new();
    while stdout.read_line(&mut line).is_ok_and(|length| length > 0) {
        if let Some(url) = url_in(&line) {
            std::thread::spawn(move || io::copy(&mut stdout, &mut io::sink()));
            return Ok(url);
        }
        line.clear();
    }
    Err("the server did not start".into())
}

fn url_in(line: &str) -> Option<String> {
    line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned)
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(Some(status)) = self.process.try_wait() {
            eprintln!("The server had ended by itself: {status}");
        } else {
            signal("TERM", &self.process.id().to_string());
        }
        let asked = Instant::now();
        while let Ok(None) = self.process.try_wait() {
            if asked.elapsed() > STOP_MAX {
                let _ = self.process.kill();
            }
            std::thread::sleep(POLL);
        }
        if let Err(error) = fs::remove_dir_all(&self.data) {
            eprintln!("cannot remove {}: {error}", self.data.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_found_among_the_first_lines() {
        assert_eq!(url_in("  database   sqlite://windlass.db\n"), None);
        assert_eq!(url_in("  listening  http://127.0.0.1:7700\n").as_deref(), Some("http://127.0.0.1:7700"));
    }
}
