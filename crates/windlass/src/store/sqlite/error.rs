//! Translates SQLite errors into the library's errors.

use rusqlite::ErrorCode;

use crate::error::Error;

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        let detail = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Error::DatabaseReadOnly { detail },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::DatabaseLocked { detail },
            Some(ErrorCode::DiskFull) => Error::DatabaseFull { detail },
            Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => Error::DatabaseUnavailable { detail },
            Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig) => {
                Error::DataRefused { detail }
            }
            _ => Error::Database { detail },
        }
    }
}

/// Whether the connection must be reopened after this error: the file may have been deleted or replaced.
pub(super) fn breaks_connection(error: &Error) -> bool {
    matches!(error, Error::DatabaseUnavailable { .. } | Error::DatabaseReadOnly { .. })
}

pub(super) fn from_json(error: serde_json::Error) -> Error {
    Error::Database { detail: format!("JSON in the database: {error}") }
}
