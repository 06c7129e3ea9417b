//! Starts a PostgreSQL server for one test, which can crash and restart it or change its settings.

use std::fs::File;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use windlass_testkit::{eventually, unused_address};

/// The folder with `initdb` and `postgres` and, if the tests run as root, the user to run them as. `cargo xtask` sets
/// both.
const PROGRAMS: &str = "WINDLASS_TEST_POSTGRES_PROGRAMS";
const USER: &str = "WINDLASS_TEST_POSTGRES_USER";

const INITDB: &str = "-A trust -U windlass -E UTF8 --locale=C --no-sync -D data";
const POSTGRES: &str = "-D data -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c shared_buffers=16MB \
                        -c fsync=off -c full_page_writes=off";

/// Stops the server like a crash when stdin is closed, which also happens if the test is killed.
const STOP_WITH_THE_TEST: &str = r#""$@" & read -r end; kill -s QUIT $!; wait"#;

pub struct Server {
    programs: PathBuf,
    user: Option<(u32, u32)>,
    folder: TempDir,
    port: u16,
    settings: &'static [&'static str],
    running: Option<Child>,
}

impl Server {
    /// Returns `None` if PostgreSQL is not installed on this machine and the tests use a remote server.
    pub async fn start_new() -> Option<Server> {
        Server::start_new_with(&[]).await
    }

    /// Like [`Server::start_new`], with additional settings.
    pub async fn start_new_with(settings: &'static [&'static str]) -> Option<Server> {
        let Some(programs) = std::env::var_os(PROGRAMS) else {
            eprintln!("{PROGRAMS} is not set: skipping a test that starts its own server");
            return None;
        };
        let user = std::env::var(USER).ok().map(|user| {
            let (uid, gid) = user.split_once(':').expect("two numbers");
            (uid.parse().unwrap(), gid.parse().unwrap())
        });
        // The user may have no access to root's temporary folder.
        let folder = if user.is_some() { tempfile::tempdir_in("/tmp") } else { tempfile::tempdir() }.unwrap();
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let port = unused_address().port();
        let mut server = Server { programs: programs.into(), user, folder, port, settings, running: None };
        let made = server.command(&server.programs.join("initdb")).args(INITDB.split(' ')).status();
        assert!(made.unwrap().success(), "{}", server.log());
        server.start().await;
        Some(server)
    }

    pub fn url(&self) -> String {
        format!("postgres://windlass@127.0.0.1:{}/postgres", self.port)
    }

    pub async fn start(&mut self) {
        let mut command = self.command(Path::new("sh"));
        command.args(["-c", STOP_WITH_THE_TEST, "sh"]).arg(self.programs.join("postgres")).args(POSTGRES.split(' '));
        command.args(["-p", &self.port.to_string()]).stdin(Stdio::piped());
        command.args(self.settings.iter().flat_map(|setting| ["-c", setting]));
        self.running = Some(command.spawn().unwrap());
        let url = self.url();
        eventually("the server is ready", async || PgConnection::connect(&url).await.is_ok()).await;
    }

    /// Crashes the server like `pg_ctl stop -m immediate`: nothing is rolled back or written.
    pub fn crash(&mut self) {
        if let Some(mut running) = self.running.take() {
            drop(running.stdin.take());
            running.wait().unwrap();
        }
    }

    fn command(&self, program: &Path) -> Command {
        let log = || File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(log()).stderr(log());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.crash();
    }
}
