//! Creates the server's WAL files before anything is measured.
//!
//! PostgreSQL recycles old WAL files. Until there are enough of them it creates new ones and writes each twice, which
//! slows a steady load by a quarter. Only the first measured system would pay for that.

use sqlx::{Connection, Executor, PgConnection};

/// The most passes over all files: files in use cannot be recycled yet.
const ROUNDS_MAX: usize = 4;

const KEPT: &str = "
SELECT (SELECT count(*) FROM pg_ls_waldir()),
  pg_size_bytes(current_setting('min_wal_size')) / pg_size_bytes(current_setting('wal_segment_size'))";

/// Creates the WAL files that the server keeps for recycling.
pub async fn preallocate(server: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(server).await?;
    for _ in 0..ROUNDS_MAX {
        let (existing, kept): (i64, i64) = sqlx::query_as(KEPT).fetch_one(&mut connection).await?;
        if existing >= kept {
            break;
        }
        for _ in 0..kept {
            // PostgreSQL does not switch away from an empty file.
            connection.execute("SELECT txid_current()").await?;
            connection.execute("SELECT pg_switch_wal()").await?;
        }
        connection.execute("CHECKPOINT").await?;
    }
    Ok(())
}
