//! Creates and drops databases on the PostgreSQL server at `WINDLASS_TEST_POSTGRES`, and runs SQL on them. A migrated
//! database is a copy of a template that each test process migrates once.

use std::future::pending;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use tokio::sync::OnceCell;
use windlass::Queue;

use crate::{block_on, eventually};

/// The URL of the server, with a role that may create databases.
pub fn server_url() -> String {
    match std::env::var("WINDLASS_TEST_POSTGRES") {
        Ok(url) if !url.is_empty() => url,
        _ => panic!("WINDLASS_TEST_POSTGRES is not set: run the tests with `cargo xtask test`"),
    }
}

/// The URL of another database on the same server.
pub fn url_of(database: &str) -> String {
    let url = server_url();
    let (server, query) = url.split_once('?').map_or((&url[..], None), |(server, query)| (server, Some(query)));
    let (server, _) = server.rsplit_once('/').expect("WINDLASS_TEST_POSTGRES names a database");
    match query {
        Some(query) => format!("{server}/{database}?{query}"),
        None => format!("{server}/{database}"),
    }
}

/// Opens a connection.
pub async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap_or_else(|error| panic!("cannot connect to {url}: {error}"))
}

/// Runs SQL on a new connection.
pub async fn execute(url: &str, sql: &str) {
    let mut connection = connect(url).await;
    let done = connection.execute(AssertSqlSafe(sql.to_owned())).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    connection.close().await.expect("a connection can be closed");
}

/// Runs a query that returns one text column.
pub async fn lines(url: &str, sql: &str) -> Vec<String> {
    let mut connection = connect(url).await;
    let rows = connection.fetch_all(AssertSqlSafe(sql.to_owned())).await;
    rows.unwrap_or_else(|error| panic!("{sql}: {error}")).iter().map(|row| row.get(0)).collect()
}

const BLOCKED_CONNECTIONS: &str = "
SELECT pid::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// Waits until this many connections to the database wait for a lock.
pub async fn wait_for_blocked_connections(url: &str, count: usize) {
    let mut connection = connect(url).await;
    for _ in 0..10_000 {
        if connection.fetch_all(BLOCKED_CONNECTIONS).await.expect("activity can be read").len() >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("too few connections wait for a lock");
}

/// Creates a database, migrated or empty, and returns its name.
pub async fn create_database(migrated: bool) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let database = format!("{}_{}", run_prefix(), COUNT.fetch_add(1, Ordering::Relaxed));
    let template = if migrated { template().await } else { "template0" };
    execute(&server_url(), &format!("CREATE DATABASE {database} TEMPLATE {template}")).await;
    database
}

/// Closes all connections to a database and drops it.
pub async fn drop_database(database: &str) {
    execute(&server_url(), &format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)")).await;
}

/// The prefix of the names of all databases of this process. The process holds an advisory lock on it, so that a later
/// run can tell which databases were left behind by a killed process and drop them.
fn run_prefix() -> &'static str {
    static RUN_PREFIX: OnceLock<String> = OnceLock::new();
    RUN_PREFIX.get_or_init(|| {
        let (ready, run_prefix) = mpsc::channel();
        // The thread keeps the connection, and so the lock, until the process ends.
        thread::spawn(move || block_on(hold_run_prefix(ready)));
        run_prefix.recv().expect("the server accepts connections")
    })
}

async fn hold_run_prefix(ready: mpsc::Sender<String>) {
    let mut connection = connect(&server_url()).await;
    remove_leftovers(&mut connection).await;
    let run_prefix = format!("windlass_test_{}_{:06x}", std::process::id(), fastrand::u32(..1 << 24));
    assert!(try_lock(&mut connection, &run_prefix).await, "another process has locked {run_prefix}");
    ready.send(run_prefix).expect("the first test waits");
    pending::<()>().await
}

/// The name of the migrated template of this process.
async fn template() -> &'static str {
    static TEMPLATE: OnceCell<String> = OnceCell::const_new();
    TEMPLATE.get_or_init(make_template).await
}

async fn make_template() -> String {
    let (template, server) = (format!("{}_template", run_prefix()), server_url());
    execute(&server, &format!("CREATE DATABASE {template} TEMPLATE template0")).await;
    migrate(url_of(&template));
    // A database with open connections cannot be copied.
    let connections = format!("SELECT count(*)::text FROM pg_stat_activity WHERE datname = '{template}'");
    eventually("no connection to the template is open", async || lines(&server, &connections).await == ["0"]).await;
    template
}

/// Migrates the template in a separate runtime, so that no background task keeps a connection.
fn migrate(url: String) {
    let migration = async move { Queue::open(&url).await.expect("an empty database can be migrated").close().await };
    thread::spawn(|| block_on(migration)).join().expect("the template can be migrated");
}

async fn remove_leftovers(connection: &mut PgConnection) {
    let found = "SELECT datname::text FROM pg_database WHERE datname LIKE 'windlass\\_test\\_%'";
    for row in connection.fetch_all(found).await.expect("databases can be listed") {
        let database: String = row.get(0);
        let (run_prefix, _) = database.rsplit_once('_').expect("a run prefix and a number");
        if try_lock(connection, run_prefix).await {
            let sql = format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)");
            connection.execute(AssertSqlSafe(sql)).await.expect("a leftover database can be dropped");
            let sql = format!("SELECT pg_advisory_unlock(hashtext('{run_prefix}'))");
            connection.execute(AssertSqlSafe(sql)).await.expect("a lock can be released");
        }
    }
}

async fn try_lock(connection: &mut PgConnection, run_prefix: &str) -> bool {
    let sql = format!("SELECT pg_try_advisory_lock(hashtext('{run_prefix}'))");
    connection.fetch_one(AssertSqlSafe(sql)).await.expect("a lock can be tried").get(0)
}
