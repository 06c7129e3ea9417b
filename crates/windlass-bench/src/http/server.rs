//! The measured server: `windlass serve` in its own process, or a running one.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::AnyError;
use crate::store::{Backend, TempDatabase};
use crate::usage::Usage;

/// Longer than the server's grace period for open requests.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// The server to measure.
pub enum ServerTarget {
    /// A running server. Without its pid, its CPU time and memory are unknown.
    Running { url: String, pid: Option<u32> },
    /// A server started for the measurement, on a new database.
    Started(Backend),
}

impl ServerTarget {
    pub fn name(&self) -> &'static str {
        match self {
            ServerTarget::Running { .. } => "as given",
            ServerTarget::Started(backend) => backend.name(),
        }
    }

    pub async fn server(&self) -> Result<Server, AnyError> {
        match self {
            ServerTarget::Running { url, pid } => Server::running(url, *pid).await,
            ServerTarget::Started(backend) => {
                let database = backend.create_database().await?;
                Server::start(&database.url.clone(), Some(database))
            }
        }
    }
}

pub struct Server {
    pub address: SocketAddr,
    pid: Option<u32>,
    started: Option<StartedServer>,
}

/// Fields are dropped in order: the process ends before its database is removed.
struct StartedServer {
    process: Process,
    _database: Option<TempDatabase>,
}

impl Server {
    async fn running(url: &str, pid: Option<u32>) -> Result<Server, AnyError> {
        let host = url.strip_prefix("http://").ok_or("--server: expected http://HOST:PORT")?.trim_end_matches('/');
        let found = tokio::net::lookup_host(host).await.map_err(|error| format!("--server {url}: {error}"))?.next();
        let address = found.ok_or_else(|| format!("--server {url}: no such host"))?;
        Ok(Server { address, pid, started: None })
    }

    /// Starts a server on a database that the caller owns.
    pub fn on(url: &str) -> Result<Server, AnyError> {
        Server::start(url, None)
    }

    fn start(url: &str, database: Option<TempDatabase>) -> Result<Server, AnyError> {
        let mut command = Command::new(program()?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--database", url]);
        // Settings for other servers, such as tokens, do not apply to this one.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"WINDLASS_")) {
            command.env_remove(name);
        }
        command.env("WINDLASS_LOG", std::env::var("WINDLASS_LOG").unwrap_or("warn".to_owned()));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("the server has no stdout")?;
        let process = Process(child);
        let address = listening_address(stdout)?;
        let pid = Some(process.0.id());
        Ok(Server { address, pid, started: Some(StartedServer { process, _database: database }) })
    }

    /// `None` if unknown.
    pub fn usage(&self) -> Option<Usage> {
        Usage::of(self.pid?)
    }

    /// Stops a started server; an error if it ended by itself or with a failure.
    pub fn stop(mut self) -> Result<(), AnyError> {
        match &mut self.started {
            Some(started) => started.process.stop(),
            None => Ok(()),
        }
    }
}

/// The `windlass` binary next to this program.
fn program() -> Result<PathBuf, AnyError> {
    let program = std::env::current_exe()?.with_file_name("windlass");
    match program.is_file() {
        true => Ok(program),
        false => Err(format!("there is no {}: build it with `cargo build --release`", program.display()).into()),
    }
}

/// Reads the output up to the address, and discards the rest so that the server does not block on a full pipe.
fn listening_address(stdout: ChildStdout) -> Result<SocketAddr, AnyError> {
    let mut stdout = BufReader::new(stdout);
    let mut line = String::new();
    loop {
        line.clear();
        if stdout.read_line(&mut line)? == 0 {
            return Err("the server did not start".into());
        }
        if let Some(address) = address_in(&line) {
            std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
            return Ok(address);
        }
    }
}

fn address_in(line: &str) -> Option<SocketAddr> {
    line.split_whitespace().find_map(|word| word.strip_prefix("http://")?.parse().ok())
}

/// A process that is stopped with SIGTERM when dropped.
struct Process(Child);

impl Process {
    fn stop(&mut self) -> Result<(), AnyError> {
        if let Some(status) = self.0.try_wait()? {
            return Err(format!("the server ended by itself: {status}").into());
        }
        let kill = format!("kill -s TERM {}", self.0.id());
        Command::new("sh").args(["-c", &kill]).status()?;
        let started = Instant::now();
        while started.elapsed() < STOP_TIMEOUT {
            match self.0.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the server ended badly: {status}").into()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(format!("the server did not end within {STOP_TIMEOUT:?} of SIGTERM").into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) && self.stop().is_err() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_found_in_the_startup_output() {
        assert_eq!(address_in("windlass 0.1.0\n"), None);
        assert_eq!(address_in("  database   postgres://me@127.0.0.1:5432/events\n"), None);
        assert_eq!(address_in("  listening  http://127.0.0.1:7700\n"), "127.0.0.1:7700".parse().ok());
    }

    #[tokio::test]
    async fn running_server_is_named_by_its_url() {
        assert_eq!(Server::running("http://127.0.0.1:7700/", None).await.unwrap().address.port(), 7700);
        assert!(Server::running("127.0.0.1:7700", None).await.is_err());
    }
}
