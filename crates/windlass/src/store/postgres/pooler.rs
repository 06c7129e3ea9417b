//! Checks for a connection pooler that breaks prepared statements.
//!
//! A pooler may use another server connection for each transaction. Then it must support prepared statements: otherwise
//! some statements fail or return the results of others.

use sqlx::PgConnection;

use super::connections::Connections;
use super::error::from_sqlx;
use super::row::get;
use crate::error::{Error, Result};

// Not a prepared statement: it must work with any pooler.
async fn raw_pid(connection: &mut PgConnection) -> Result<i32> {
    let row = sqlx::raw_sql("SELECT pg_backend_pid() AS pid").fetch_one(connection).await.map_err(from_sqlx)?;
    get(&row, "pid")
}

async fn prepared_pid(connection: &mut PgConnection) -> sqlx::Result<i32> {
    sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(connection).await
}

/// Returns an error if a pooler mixes up prepared statements.
pub(super) async fn check(connections: &Connections) -> Result<()> {
    let (mut one, mut other) = (connections.get().await?, connections.get().await?);
    let before = raw_pid(&mut one).await?;
    execute(&mut other, "BEGIN").await?;
    let meanwhile = raw_pid(&mut other).await?;
    let after = raw_pid(&mut one).await?;
    execute(&mut other, "ROLLBACK").await?;
    if are_shared(before, meanwhile, after) {
        let first = prepared_pid(&mut one).await;
        execute(&mut other, "BEGIN").await?;
        let again = prepared_pid(&mut one).await;
        execute(&mut other, "ROLLBACK").await?;
        first.and(again).map_err(|error| refusal(&error))?;
        tracing::info!(
            "the pooler does not support notifications: events that other processes publish are found within a second"
        );
    }
    one.done();
    other.done();
    Ok(())
}

async fn execute(connection: &mut PgConnection, statement: &'static str) -> Result<()> {
    sqlx::raw_sql(statement).execute(connection).await.map_err(from_sqlx)?;
    Ok(())
}

/// Without a pooler, two open connections have different server processes, and each keeps its own.
fn are_shared(one_before: i32, other: i32, one_after: i32) -> bool {
    one_before == other || one_before != one_after
}

fn refusal(error: &sqlx::Error) -> Error {
    let problem = format!(
        "leads to a pooler that changes connections between transactions and does not carry prepared statements along \
         ({error}); use its session mode, or PgBouncer 1.21 or later with max_prepared_statements above 0"
    );
    Error::DatabaseUrl { url: "postgres://…".to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::are_shared;

    #[test]
    fn unshared_connections_keep_their_server_process() {
        assert!(!are_shared(1, 2, 1));
        assert!(are_shared(1, 1, 2) && are_shared(1, 2, 3) && are_shared(1, 1, 1));
    }
}
