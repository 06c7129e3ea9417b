//! `windlass serve` on a temporary SQLite file. Both are removed when dropped.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{POLL, Result, signal};

/// Longer than the server's grace period for open requests.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

pub struct Server {
    pub url: String,
    process: Child,
    data: PathBuf,
}

impl Server {
    pub fn start(program: &Path, folder: &Path) -> Result<Server> {
        let data = folder.join(format!("data-{}", std::process::id()));
        fs::create_dir_all(&data).map_err(|error| format!("cannot create {}: {error}", data.display()))?;
        let mut serve = Command::new(program);
        let database = format!("sqlite://{}", data.join("windlass.db").display());
        serve.args(["serve", "--listen", "127.0.0.1:0", "--database", &database]);
        remove_windlass_variables(&mut serve);
        // Its own process group; otherwise Ctrl-C would stop it before the programs that use it.
        serve.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        let process = serve.spawn().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let mut server = Server { url: String::new(), process, data };
        let stdout = server.process.stdout.take().ok_or("the server has no stdout")?;
        server.url = listening_url(stdout)?;
        println!("The server listens on {}", server.url);
        Ok(server)
    }
}

/// Settings for other servers, such as tokens, do not apply to this one.
fn remove_windlass_variables(serve: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"WINDLASS_")) {
        serve.env_remove(name);
    }
}

/// Reads the output up to the address, and discards the rest so that the server does not block on a full pipe.
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
        let stop_requested_at = Instant::now();
        while let Ok(None) = self.process.try_wait() {
            if stop_requested_at.elapsed() > STOP_TIMEOUT {
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
    fn url_is_found_in_the_startup_output() {
        assert_eq!(url_in("  database   sqlite://windlass.db\n"), None);
        assert_eq!(url_in("  listening  http://127.0.0.1:7700\n").as_deref(), Some("http://127.0.0.1:7700"));
    }
}
