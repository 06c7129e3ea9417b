//! What PostgreSQL and the wire say, in our words.

use crate::error::Error;

pub(super) fn from_sqlx(error: sqlx::Error) -> Error {
    let detail = error.to_string();
    match &error {
        sqlx::Error::Database(database) => from_code(database.code().as_deref().unwrap_or(""), detail),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::PoolTimedOut => Error::DatabaseUnavailable { detail },
        sqlx::Error::PoolClosed => Error::Closed,
        sqlx::Error::Configuration(_) => Error::DatabaseUrl { url: "postgres://…".to_owned(), problem: detail },
        _ => Error::Database { detail },
    }
}

fn from_code(code: &str, detail: String) -> Error {
    match code {
        // Read-only transaction: a standby, or default_transaction_read_only.
        "25006" => Error::DatabaseReadOnly { detail },
        "53100" => Error::DatabaseFull { detail },
        // Serialization failure, deadlock, lock not available: the same call may work now.
        "40001" | "40P01" | "55P03" => Error::DatabaseLocked { detail },
        // Shutting down, crashed, starting up, no such database (yet), too many connections.
        "57P01" | "57P02" | "57P03" | "3D000" | "53300" => Error::DatabaseUnavailable { detail },
        _ if code.starts_with("08") => Error::DatabaseUnavailable { detail },
        _ => Error::Database { detail },
    }
}
