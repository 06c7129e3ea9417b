//! The server's log before anything is measured.
//!
//! While PostgreSQL has no files of its log to use again it makes new ones, writing each twice; a steady load is slower by a
//! quarter then. Whoever comes first would pay for that, and who comes later would not.

use sqlx::{Connection, Executor, PgConnection};

/// So many times through all files: those in use cannot be used again yet.
const ROUNDS_MAX: usize = 4;

const KEPT: &str = "
SELECT (SELECT count(*) FROM pg_ls_waldir()),
  pg_size_bytes(current_setting('min_wal_size')) / pg_size_bytes(current_setting('wal_segment_size'))";

/// Makes the files that the server keeps for later.
pub async fn fill(server: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(server).await?;
    for _ in 0..ROUNDS_MAX {
        let (there, kept): (i64, i64) = sqlx::query_as(KEPT).fetch_one(&mut connection).await?;
        if there >= kept {
            break;
        }
        for _ in 0..kept {
            // A file without anything in it is not left.
            connection.execute("SELECT txid_current()").await?;
            connection.execute("SELECT pg_switch_wal()").await?;
        }
        connection.execute("CHECKPOINT").await?;
    }
    Ok(())
}
