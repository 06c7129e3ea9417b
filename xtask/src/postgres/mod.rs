//! `cargo xtask postgres`: a temporary PostgreSQL server that is removed when the command ends.

pub mod cron;
mod install;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::drivers;
use crate::install::is_root;
use crate::run::{POLL, Result, interrupted, run, signal};

/// The variable with the server's URL, for the tests.
pub const URL_VARIABLE: &str = "WINDLASS_TEST_POSTGRES";
/// For tests that start, stop and crash their own server: the folder of its programs and, if the tests run as root,
/// the user that the server must run as.
const PROGRAMS_VARIABLE: &str = "WINDLASS_TEST_POSTGRES_PROGRAMS";
const USER_VARIABLE: &str = "WINDLASS_TEST_POSTGRES_USER";
/// Set if such a server can use pg_cron.
const CRON_VARIABLE: &str = "WINDLASS_TEST_PG_CRON";

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

const INITDB: &str = "-A trust -U windlass -E UTF8 --locale=C --no-sync";
const SETTINGS: &[&str] = &["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=300"];
const FOR_TESTS: &[&str] = &["shared_buffers=256MB", "fsync=off", "full_page_writes=off"];
const DURABLE: &[&str] = &["shared_buffers=1GB", "max_wal_size=4GB", "min_wal_size=4GB"];

pub fn postgres(durable: bool, command: &[String]) -> Result {
    let mut cluster = Cluster::start(durable)?;
    match command {
        [] => {
            println!("Ctrl-C stops it.");
            cluster.wait()
        }
        [program, args @ ..] => run(set_test_environment(Command::new(program).args(args), &cluster.url)),
    }
}

/// Sets the variables with which tests find PostgreSQL and the installed drivers.
pub fn set_test_environment<'a>(command: &'a mut Command, url: &str) -> &'a mut Command {
    command.env(URL_VARIABLE, url);
    if let Some(programs) = install::find() {
        if cron::is_installed(&programs) {
            command.env(CRON_VARIABLE, "1");
        }
        command.env(PROGRAMS_VARIABLE, programs);
    }
    if let Some(drivers) = drivers::find() {
        command.envs(drivers);
    }
    if let Ok(Some(User { uid, gid })) = server_user() {
        command.env(USER_VARIABLE, format!("{uid}:{gid}"));
    }
    command
}

/// A running server with its data folder. Dropping it stops the server and removes the folder.
pub struct Cluster {
    pub url: String,
    server: Child,
    dir: Dir,
}

impl Cluster {
    pub fn start(durable: bool) -> Result<Self> {
        let bin = install::server_bin()?;
        let user = server_user()?;
        let dir = Dir::new(user)?;

        let mut initdb = dir.command(&bin.join("initdb"), user)?;
        initdb.args(INITDB.split(' ')).arg("-D").arg(dir.data());
        run(&mut initdb).map_err(|error| match interrupted() {
            true => error,
            false => format!("{error}\n{}", dir.log()),
        })?;

        let port = free_port().map_err(|error| format!("no free port on 127.0.0.1: {error}"))?;
        let mut server = dir.command(&bin.join("postgres"), user)?;
        server.args(["-p", &port.to_string()]);
        server.arg("-D").arg(dir.data());
        let settings = if durable { DURABLE } else { FOR_TESTS };
        for setting in SETTINGS.iter().chain(settings) {
            server.args(["-c", setting]);
        }
        // Its own process group; otherwise Ctrl-C would stop it before the programs that use it.
        let server = server
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", bin.join("postgres").display()))?;
        let url = format!("postgres://windlass@127.0.0.1:{port}/postgres");
        let mut cluster = Self { url, server, dir };
        cluster.wait_until_ready()?;
        println!("PostgreSQL from {}: {}", bin.display(), cluster.url);
        Ok(cluster)
    }

    fn wait_until_ready(&mut self) -> Result {
        let started = Instant::now();
        while !self.is_ready() {
            if self.has_ended() {
                return Err("PostgreSQL did not start".into());
            } else if interrupted() {
                return Err("interrupted".into());
            } else if started.elapsed() > START_TIMEOUT {
                let log = self.dir.log();
                return Err(format!("PostgreSQL was not ready after {START_TIMEOUT:?}\n{log}"));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The server writes its state into line 8 of its pid file, where `pg_ctl` reads it as well.
    fn is_ready(&self) -> bool {
        let pid_file = fs::read_to_string(self.dir.data().join("postmaster.pid"));
        pid_file.is_ok_and(|text| text.lines().nth(7).is_some_and(|line| line.trim() == "ready"))
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.server.try_wait(), Ok(None))
    }

    /// Waits for a signal.
    fn wait(&mut self) -> Result {
        while !interrupted() {
            if self.has_ended() {
                return Err("PostgreSQL has ended".into());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.has_ended() {
            eprintln!("PostgreSQL ended by itself. The end of its log:\n{}", self.dir.log());
            return;
        }
        // SIGINT is its fast shutdown: open transactions are rolled back.
        signal("INT", &self.server.id().to_string());
        let started = Instant::now();
        while !self.has_ended() {
            if started.elapsed() > STOP_TIMEOUT {
                let _ = self.server.kill();
            }
            std::thread::sleep(POLL);
        }
    }
}

/// The folder of one cluster and its log, removed when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new(user: Option<User>) -> Result<Self> {
        // Root's TMPDIR may not be accessible to the user that the server runs as.
        let parent = if user.is_some() { "/tmp".into() } else { std::env::temp_dir() };
        let nanos = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
        let path = parent.join(format!("windlass-postgres-{nanos}"));
        let error = |error| format!("cannot create {}: {error}", path.display());
        DirBuilder::new().mode(0o700).create(&path).map_err(error)?;
        let dir = Self(path.clone());
        if let Some(User { uid, gid }) = user {
            chown(&path, Some(uid), Some(gid)).map_err(error)?;
        }
        Ok(dir)
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// A PostgreSQL program that runs in this folder as `user` and writes to the log.
    fn command(&self, program: &Path, user: Option<User>) -> Result<Command> {
        let path = self.0.join("log");
        let log = File::options().create(true).append(true).open(&path);
        let log = log.and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = log.map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        let mut command = Command::new(program);
        command.current_dir(&self.0).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        if let Some(User { uid, gid }) = user {
            command.uid(uid).gid(gid);
        }
        Ok(command)
    }

    /// The end of the log.
    fn log(&self) -> String {
        let text = fs::read(self.0.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Retries, because children of an interrupted initdb may still be writing.
        let remove = || {
            std::thread::sleep(POLL);
            fs::remove_dir_all(&self.0)
        };
        if let Err(error) = remove().or_else(|_| remove()).or_else(|_| remove()) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct User {
    uid: u32,
    gid: u32,
}

/// The user that the server must run as, because PostgreSQL refuses to run as root; `None` for the current user.
fn server_user() -> Result<Option<User>> {
    if !is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = find_user(&passwd, "postgres").or_else(|| find_user(&passwd, "nobody"));
    match user {
        Some(user) => Ok(Some(user)),
        None => Err("PostgreSQL refuses to run as root, and no user postgres or nobody exists".into()),
    }
}

fn find_user(passwd: &str, name: &str) -> Option<User> {
    passwd.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [user, _, uid, gid, ..] if user == name => Some(User { uid: uid.parse().ok()?, gid: gid.parse().ok()? }),
        _ => None,
    })
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_full_name() {
        let passwd = "postgres2:x:7:8::/:/bin/sh\npostgres:x:101:104:admin,,,:/var:/bin/bash\n";
        assert_eq!(find_user(passwd, "postgres"), Some(User { uid: 101, gid: 104 }));
        assert_eq!(find_user(passwd, "nobody"), None);
    }

    #[test]
    fn folder_is_private_and_removed_when_dropped() {
        use std::os::unix::fs::PermissionsExt;
        let dir = Dir::new(None).unwrap();
        let path = dir.0.clone();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        run(dir.command(Path::new("echo"), None).unwrap().arg("hello")).unwrap();
        assert_eq!(dir.log(), "hello");
        drop(dir);
        assert!(!path.exists());
    }
}
