//! Translates errors of PostgreSQL and of the connection to it into the library's errors.

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::error::Error;

pub(super) fn from_sqlx(error: sqlx::Error) -> Error {
    let detail = error.to_string();
    match &error {
        sqlx::Error::Database(database) => {
            from_code(database.code().as_deref().unwrap_or(""), ends_session(database.as_ref()), detail)
        }
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

/// Whether the server refused or ended the connection (severity FATAL or PANIC), not only the statement.
fn ends_session(error: &dyn DatabaseError) -> bool {
    let severity = error.try_downcast_ref::<PgDatabaseError>().map(PgDatabaseError::severity);
    matches!(severity, Some(PgSeverity::Fatal | PgSeverity::Panic))
}

fn from_code(code: &str, ends_session: bool, detail: String) -> Error {
    match code {
        // Read-only transaction: a standby, or default_transaction_read_only.
        "25006" => Error::DatabaseReadOnly { detail },
        "53100" => Error::DatabaseFull { detail },
        // Serialization failure, deadlock, lock not available: the same call may work now.
        "40001" | "40P01" | "55P03" => Error::DatabaseLocked { detail },
        // No such database (yet), too many connections.
        "3D000" | "53300" => Error::DatabaseUnavailable { detail },
        // The database does not accept connections (ALLOW_CONNECTIONS false). Statements fail with the same code for
        // other reasons, but those do not end the session.
        "55000" if ends_session => Error::DatabaseUnavailable { detail },
        // 57P01 to 57P05: shutting down, crashed, starting up, database dropped, session idle for too long.
        _ if code.starts_with("57P") => Error::DatabaseUnavailable { detail },
        // Connection exceptions; connection poolers use them too.
        _ if code.starts_with("08") => Error::DatabaseUnavailable { detail },
        // Data exceptions and violated constraints.
        _ if code.starts_with("22") || code.starts_with("23") => Error::DataRefused { detail },
        _ => Error::Database { detail },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_connection_codes_are_temporary() {
        for code in ["57P01", "57P02", "57P03", "57P04", "57P05", "53300", "3D000", "08006", "08P01", "55000"] {
            let error = from_code(code, true, String::new());
            assert!(matches!(error, Error::DatabaseUnavailable { .. }) && error.is_temporary(), "{code}");
        }
        // Wrong password, no right to connect, canceled statement, object not in the required state.
        for (code, ends_session) in [("28P01", true), ("42501", true), ("57014", false), ("55000", false)] {
            assert!(matches!(from_code(code, ends_session, String::new()), Error::Database { .. }), "{code}");
        }
    }
}
