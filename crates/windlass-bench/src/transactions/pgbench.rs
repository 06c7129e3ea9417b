//! Runs pgbench with a script.

use std::io::Write;
use std::process::Command;

use sqlx::{Connection, PgConnection};

use crate::AnyError;

/// Transactions per second.
pub async fn run(url: &str, script: &str, connections: usize, seconds: u64) -> Result<f64, AnyError> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(script.as_bytes())?;
    let (connections, seconds) = (connections.to_string(), seconds.to_string());
    let mut pgbench = Command::new("pgbench");
    pgbench.args([
        "--no-vacuum",
        "--jobs",
        "2",
        "--max-tries",
        "1",
        "--client",
        &connections,
        "--time",
        &seconds,
        "--file",
    ]);
    pgbench.arg(file.path()).arg(url);
    let output = tokio::task::spawn_blocking(move || pgbench.output()).await??;
    let printed = String::from_utf8_lossy(&output.stdout);
    let rate = printed.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| format!("pgbench: {printed}{}", String::from_utf8_lossy(&output.stderr)).into())
}

/// The next multixact member and the number of deadlocks so far.
pub async fn side_effects(url: &str) -> Result<(i64, i64), AnyError> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::query("CHECKPOINT").execute(&mut connection).await?;
    let members = sqlx::query_scalar("SELECT next_multi_offset::text::bigint FROM pg_control_checkpoint()");
    let members = members.fetch_one(&mut connection).await?;
    let deadlocks = sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()");
    Ok((members, deadlocks.fetch_one(&mut connection).await?))
}
