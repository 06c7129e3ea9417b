//! Through PgBouncer, where it is installed.

use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use windlass::{Error, Queue};

use crate::bed::{Kind, run_on_empty};
use crate::support::*;

/// Where Debian puts it; `PATH` need not lead there.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Ends it when its own input ends: also when the test is killed.
const UNTIL_THE_TEST_ENDS: &str = r#""$@" & read -r end; kill $!; wait"#;

struct Pooler {
    port: u16,
    running: Child,
    _folder: TempDir,
}

impl Pooler {
    /// `None`: it is not installed.
    async fn start(mode: &str, database: &str) -> Option<Pooler> {
        if !Path::new(PROGRAM).exists() {
            eprintln!("{PROGRAM} is not installed: connections through it are not tested");
            return None;
        }
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = database.split_once('@').unwrap().1;
        let (at, name) = at.split_once('/').unwrap();
        let (host, server_port) = at.split_once(':').unwrap();
        let settings = format!(
            "[databases]\n{name} = host={host} port={server_port} user=windlass\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
             listen_port={port}\nauth_type=any\npool_mode={mode}\nunix_socket_dir=\n\
             ignore_startup_parameters=extra_float_digits\n"
        );
        std::fs::write(folder.path().join("pgbouncer.ini"), settings).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", UNTIL_THE_TEST_ENDS, "sh", PROGRAM, "-q", "pgbouncer.ini"]).current_dir(folder.path());
        // Like the server, it does not run as root.
        if let Ok(user) = std::env::var("WINDLASS_TEST_POSTGRES_USER") {
            let (uid, gid) = user.split_once(':').map(|(u, g)| (u.parse().unwrap(), g.parse().unwrap())).unwrap();
            chown(folder.path(), Some(uid), Some(gid)).unwrap();
            command.uid(uid).gid(gid);
        }
        let running = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pooler = Pooler { port, running, _folder: folder };
        let url = pooler.url(name);
        eventually("PgBouncer is ready", async || PgConnection::connect(&url).await.is_ok()).await;
        Some(pooler)
    }

    fn url(&self, name: &str) -> String {
        format!("postgres://windlass@127.0.0.1:{}/{name}", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.running.stdin.take());
        let _ = self.running.wait();
    }
}

fn name_of(url: &str) -> &str {
    url.rsplit_once('/').unwrap().1
}

#[test]
fn sessions_through_a_pooler_are_like_ones_own() {
    run_on_empty(Kind::Postgres, async |database| {
        let Some(pooler) = Pooler::start("session", &database.url).await else { return };
        let queue = Queue::open(&pooler.url(name_of(&database.url))).await.unwrap();
        let id = publish(&queue, "t").await.id;
        let delivery = take(&queue).await;
        assert_eq!(delivery.event.id, id);
        done(&queue, &delivery).await;
        queue.close().await;
    });
}

// Before 1.21 PgBouncer mixes prepared statements up; from there on it is the settings' doing.
#[test]
fn a_pooler_that_mixes_up_prepared_statements_is_refused() {
    run_on_empty(Kind::Postgres, async |database| {
        let Some(pooler) = Pooler::start("transaction", &database.url).await else { return };
        match Queue::open(&pooler.url(name_of(&database.url))).await {
            Err(Error::DatabaseUrl { problem, .. }) => {
                assert!(problem.contains("use its session mode"), "{problem}");
            }
            Err(error) => panic!("{error}"),
            Ok(queue) => {
                let id = publish(&queue, "t").await.id;
                assert_eq!(take(&queue).await.event.id, id);
                queue.close().await;
            }
        }
    });
}
