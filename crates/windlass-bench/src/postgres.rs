//! The PostgreSQL server for the benchmarks.

use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::{Connection, Executor, PgConnection};

/// How many databases are in use at a time; older ones are dropped.
const DATABASES_MAX: usize = 2;

const VARIABLE: &str = "WINDLASS_TEST_POSTGRES";

/// The URL of a server on which databases may be created.
pub fn url() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// Runs this program again with a temporary server.
pub fn run_again_with_server() -> ExitCode {
    let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
    let mut again = Command::new("cargo");
    again.args(["xtask", "postgres", "--durable", "--"]).arg(program).args(std::env::args_os().skip(1));
    match again.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {VARIABLE} is not set, and `cargo xtask postgres` cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A new, empty database on the server.
pub async fn fresh_database(server: &str) -> Result<String, sqlx::Error> {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let name =
        format!("windlass_bench_{}_{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed) % DATABASES_MAX);
    drop_database(server, &name).await?;
    let mut connection = PgConnection::connect(server).await?;
    connection.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
    let (server, _) = server.rsplit_once('/').unwrap_or((server, ""));
    Ok(format!("{server}/{name}"))
}

/// Drops the database if it exists.
pub async fn drop_database(server: &str, name: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(server).await?;
    let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    connection.execute(sqlx::AssertSqlSafe(drop)).await?;
    Ok(())
}
