//! A fresh PostgreSQL database for each test: a copy of one that was migrated once.

use std::future::pending;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use windlass::Queue;

use crate::support::eventually;

/// The URL of a role that may create databases.
pub fn server_url() -> String {
    match std::env::var("WINDLASS_TEST_POSTGRES") {
        Ok(url) if !url.is_empty() => url,
        _ => panic!("WINDLASS_TEST_POSTGRES is not set: run the tests with `cargo xtask test`"),
    }
}

/// The same server, another database.
pub fn url_of(database: &str) -> String {
    let url = server_url();
    let (server, query) = url.split_once('?').map_or((&url[..], None), |(server, query)| (server, Some(query)));
    let (server, _) = server.rsplit_once('/').expect("WINDLASS_TEST_POSTGRES names a database");
    match query {
        Some(query) => format!("{server}/{database}?{query}"),
        None => format!("{server}/{database}"),
    }
}

pub async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap_or_else(|error| panic!("cannot connect to {url}: {error}"))
}

pub async fn execute(url: &str, sql: &str) {
    let mut connection = connect(url).await;
    let done = connection.execute(AssertSqlSafe(sql.to_owned())).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    connection.close().await.expect("a connection can be closed");
}

/// Every row as one text.
pub async fn lines(url: &str, sql: &str) -> Vec<String> {
    let mut connection = connect(url).await;
    let rows = connection.fetch_all(AssertSqlSafe(sql.to_owned())).await;
    rows.unwrap_or_else(|error| panic!("{sql}: {error}")).iter().map(|row| row.get(0)).collect()
}

const WAITING: &str = "
SELECT pid::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// Until so many connections to the database wait for a lock.
pub async fn until_waiting(url: &str, count: usize) {
    let mut connection = connect(url).await;
    for _ in 0..10_000 {
        if connection.fetch_all(WAITING).await.expect("activity can be read").len() >= count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("nobody waits for a lock");
}

/// A new database; migrated, or with nothing in it.
pub async fn create(migrated: bool) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let run = run();
    let database = format!("{run}_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let template = if migrated { format!("{run}_template") } else { "template0".to_owned() };
    execute(&server_url(), &format!("CREATE DATABASE {database} TEMPLATE {template}")).await;
    database
}

pub async fn drop_database(database: &str) {
    execute(&server_url(), &format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)")).await;
}

/// What the names of all databases of this process begin with. Its lock says that the process lives,
/// so that the next one clears up after one that was killed.
fn run() -> &'static str {
    static RUN: OnceLock<String> = OnceLock::new();
    RUN.get_or_init(|| {
        let (url, (ready, template)) = (server_url(), mpsc::channel());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut connection = connect(&url).await;
                remove_leftovers(&mut connection).await;
                let run = format!("windlass_test_{}_{:06x}", std::process::id(), fastrand::u32(..1 << 24));
                assert!(lock(&mut connection, &run).await);
                make_template(&mut connection, &run).await;
                ready.send(run).unwrap();
                pending::<()>().await
            });
        });
        template.recv().expect("the template database can be made")
    })
}

async fn make_template(connection: &mut PgConnection, run: &str) {
    let template = format!("{run}_template");
    let sql = format!("CREATE DATABASE {template} TEMPLATE template0");
    connection.execute(AssertSqlSafe(sql)).await.expect("the role may create databases");
    migrate(url_of(&template));
    // A database that somebody is connected to cannot be copied.
    let url = server_url();
    let users = format!("SELECT count(*)::text FROM pg_stat_activity WHERE datname = '{template}'");
    eventually("everyone has left the template", async || lines(&url, &users).await == ["0"]).await;
}

/// In a runtime of its own, which takes everything that still runs along.
fn migrate(url: String) {
    let migrate = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let queue = runtime.block_on(Queue::open(&url)).expect("an empty database can be migrated");
        runtime.block_on(queue.close());
    };
    thread::spawn(migrate).join().expect("the template can be migrated");
}

async fn remove_leftovers(connection: &mut PgConnection) {
    let found = "SELECT datname::text FROM pg_database WHERE datname LIKE 'windlass\\_test\\_%'";
    for row in connection.fetch_all(found).await.expect("databases can be listed") {
        let database: String = row.get(0);
        let (run, _) = database.rsplit_once('_').expect("the name of a run and a number");
        if lock(connection, run).await {
            let sql = format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)");
            connection.execute(AssertSqlSafe(sql)).await.expect("a leftover database can be dropped");
            let sql = format!("SELECT pg_advisory_unlock(hashtext('{run}'))");
            connection.execute(AssertSqlSafe(sql)).await.expect("a lock can be released");
        }
    }
}

async fn lock(connection: &mut PgConnection, run: &str) -> bool {
    let sql = format!("SELECT pg_try_advisory_lock(hashtext('{run}'))");
    connection.fetch_one(AssertSqlSafe(sql)).await.expect("a lock can be tried").get(0)
}
