//! The server that is measured: `windlass serve` as a process of its own, or one that runs already.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::AnyError;
use crate::store::{Backend, Fresh};
use crate::usage::Usage;

/// Longer than the server's own grace for requests that are under way.
const STOP_MAX: Duration = Duration::from_secs(40);

/// Where the server is to be found.
pub enum Place {
    /// It runs already. Without its pid nothing is known about its use of the machine.
    Running { url: String, pid: Option<u32> },
    /// Started by us, on an empty database.
    Own(Backend),
}

impl Place {
    pub fn name(&self) -> &'static str {
        match self {
            Place::Running { .. } => "as given",
            Place::Own(backend) => backend.name(),
        }
    }

    pub async fn server(&self) -> Result<Server, AnyError> {
        match self {
            Place::Running { url, pid } => Server::running(url, *pid).await,
            Place::Own(backend) => {
                let database = backend.fresh().await?;
                Server::start(&database.url.clone(), Some(database))
            }
        }
    }
}

pub struct Server {
    pub address: SocketAddr,
    pid: Option<u32>,
    own: Option<Own>,
}

/// Fields are dropped in order: the process ends before its database goes.
struct Own {
    process: Process,
    _database: Option<Fresh>,
}

impl Server {
    async fn running(url: &str, pid: Option<u32>) -> Result<Server, AnyError> {
        let host = url.strip_prefix("http://").ok_or("--server: give http://HOST:PORT")?.trim_end_matches('/');
        let found = tokio::net::lookup_host(host).await.map_err(|error| format!("--server {url}: {error}"))?.next();
        let address = found.ok_or_else(|| format!("--server {url}: no such host"))?;
        Ok(Server { address, pid, own: None })
    }

    /// One of our own, on a database that somebody else looks after.
    pub fn on(url: &str) -> Result<Server, AnyError> {
        Server::start(url, None)
    }

    fn start(url: &str, database: Option<Fresh>) -> Result<Server, AnyError> {
        let mut command = Command::new(program()?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--database", url]);
        // What is set for other servers, tokens say, is not for this one.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"WINDLASS_")) {
            command.env_remove(name);
        }
        command.env("WINDLASS_LOG", std::env::var("WINDLASS_LOG").unwrap_or("warn".to_owned()));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("the server has no stdout")?;
        let process = Process(child);
        let address = listening_address(stdout)?;
        let pid = Some(process.0.id());
        Ok(Server { address, pid, own: Some(Own { process, _database: database }) })
    }

    /// None where the system does not tell.
    pub fn usage(&self) -> Option<Usage> {
        Usage::of(self.pid?)
    }

    /// An error if our own server has ended by itself, or does not end well.
    pub fn stop(mut self) -> Result<(), AnyError> {
        match &mut self.own {
            Some(own) => own.process.stop(),
            None => Ok(()),
        }
    }
}

/// The `windlass` that was built together with this program.
fn program() -> Result<PathBuf, AnyError> {
    let program = std::env::current_exe()?.with_file_name("windlass");
    match program.is_file() {
        true => Ok(program),
        false => Err(format!("there is no {}: build it with `cargo build --release`", program.display()).into()),
    }
}

/// Reads up to the address; what follows is read too, or the server could not write it.
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

/// A process that is ended by SIGTERM when dropped.
struct Process(Child);

impl Process {
    fn stop(&mut self) -> Result<(), AnyError> {
        if let Some(status) = self.0.try_wait()? {
            return Err(format!("the server ended by itself: {status}").into());
        }
        let kill = format!("kill -s TERM {}", self.0.id());
        Command::new("sh").args(["-c", &kill]).status()?;
        let begun = Instant::now();
        while begun.elapsed() < STOP_MAX {
            match self.0.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the server ended badly: {status}").into()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(format!("the server did not end within {STOP_MAX:?} of SIGTERM").into())
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
    fn the_address_is_found_among_the_first_lines() {
        assert_eq!(address_in("windlass 0.1.0\n"), None);
        assert_eq!(address_in("  database   postgres://me@127.0.0.1:5432/events\n"), None);
        assert_eq!(address_in("  listening  http://127.0.0.1:7700\n"), "127.0.0.1:7700".parse().ok());
    }

    #[tokio::test]
    async fn a_running_server_is_given_by_its_url() {
        assert_eq!(Server::running("http://127.0.0.1:7700/", None).await.unwrap().address.port(), 7700);
        assert!(Server::running("127.0.0.1:7700", None).await.is_err());
    }
}
