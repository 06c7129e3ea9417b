//! Connections through PgBouncer, if it is installed.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use windlass::{Error, Queue};
use windlass_testkit::{Kind, unused_address};

use crate::bed::run_on_empty;
use crate::support::*;

/// The path on Debian, which may not be in `PATH`.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Stops PgBouncer when stdin is closed, which also happens if the test is killed.
const STOP_WITH_THE_TEST: &str = r#""$@" & read -r end; kill $!; wait"#;

struct Pooler {
    port: u16,
    running: Child,
    _folder: TempDir,
}

impl Pooler {
    /// Returns `None` if PgBouncer is not installed.
    async fn start(mode: &str, database: &str) -> Option<Pooler> {
        if !Path::new(PROGRAM).exists() {
            eprintln!("{PROGRAM} is not installed: skipping a test");
            return None;
        }
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let port = unused_address().port();
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
        command.args(["-c", STOP_WITH_THE_TEST, "sh", PROGRAM, "-q", "pgbouncer.ini"]).current_dir(folder.path());
        // Like the server, PgBouncer does not run as root.
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
fn session_pooling_works() {
    run_on_empty(Kind::Postgres, async |database| {
        let Some(pooler) = Pooler::start("session", &database.url).await else { return };
        let queue = Queue::open(&pooler.url(name_of(&database.url))).await.unwrap();
        let id = publish(&queue, "t").await.id;
        let delivery = claim_one(&queue).await;
        assert_eq!(delivery.event.id, id);
        done(&queue, &delivery).await;
        queue.close().await;
    });
}

// PgBouncer supports prepared statements in transaction mode since 1.21, depending on its settings.
#[test]
fn transaction_pooling_works_or_is_refused() {
    run_on_empty(Kind::Postgres, async |database| {
        let Some(pooler) = Pooler::start("transaction", &database.url).await else { return };
        match Queue::open(&pooler.url(name_of(&database.url))).await {
            Err(Error::DatabaseUrl { problem, .. }) => {
                assert!(problem.contains("use its session mode"), "{problem}");
            }
            Err(error) => panic!("{error}"),
            Ok(queue) => {
                let id = publish(&queue, "t").await.id;
                assert_eq!(claim_one(&queue).await.event.id, id);
                queue.close().await;
            }
        }
    });
}
