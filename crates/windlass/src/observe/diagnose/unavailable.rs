//! The finding for a database that cannot be opened or does not answer, with advice for each error.

use super::{Assessment, CheckFailure, Finding, FindingLevel};
use crate::error::Error;

impl Finding {
    /// The finding `database`, for a database that could not be opened because of this error.
    pub fn database_unavailable(url: &str, error: &Error) -> Finding {
        assess(url, error).into_finding("database")
    }
}

/// A check that failed. If the first check failed, the database itself is the problem.
pub(super) fn assess_failure(failure: CheckFailure, check: &str) -> Assessment {
    match failure {
        CheckFailure::Failed(error) if check == "database" => assess("", &error),
        failure => failure.into_assessment(),
    }
}

fn assess(url: &str, error: &Error) -> Assessment {
    let file = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:"));
    let (summary, advice) = match (error, file) {
        (Error::SchemaTooOld { found: 0, .. }, Some(file)) if !std::path::Path::new(file).exists() => (
            format!("there is no file '{file}'"),
            "name the right file with --database, or create it with `windlass serve` or `windlass migrate up`"
                .to_owned(),
        ),
        (Error::SchemaTooOld { found: 0, .. }, _) => (
            "the database has no windlass schema".to_owned(),
            "check that it is the right database; `windlass migrate up` creates the schema".to_owned(),
        ),
        (error, _) => (error.to_string(), advice(error, file)),
    };
    Assessment::new(FindingLevel::Problem, summary, advice)
}

fn advice(error: &Error, file: Option<&str>) -> String {
    let file_or_placeholder = file.unwrap_or("FILE");
    match error {
        Error::SchemaTooOld { .. } => "stop older processes, make a backup, and run `windlass migrate up`".to_owned(),
        Error::SchemaTooNew { .. } => "use the windlass version that migrated it, or a newer one".to_owned(),
        Error::DatabaseUrl { .. } => "pass --database as sqlite://FILE or postgres://USER@HOST/DATABASE".to_owned(),
        Error::DatabaseLocked { .. } => {
            format!(
                "end the transaction that holds the lock, or its program: `fuser {file_or_placeholder}` lists the \
                 processes that have the file open"
            )
        }
        Error::DatabaseReadOnly { .. } => match file {
            Some(file) => {
                format!("let this user write '{file}' and its folder, and check that the disk is not read-only")
            }
            None => "connect to the primary server, not to a standby".to_owned(),
        },
        Error::DatabaseFull { .. } => "free space on the disk of the database".to_owned(),
        Error::Database { detail } if detail.contains("not a database") => {
            format!(
                "'{file_or_placeholder}' is not an SQLite file: name the right file with --database, or restore a backup"
            )
        }
        Error::Database { detail } if detail.contains("malformed") => {
            format!(
                "the file is damaged: restore a backup, or recover the readable part with \
                 `sqlite3 {file_or_placeholder} .recover`"
            )
        }
        Error::DatabaseUnavailable { .. } if file.is_some() => {
            format!("check that '{file_or_placeholder}' and its folder exist, and that this user may open them")
        }
        _ => {
            "check that the server runs, that this machine reaches it, and that the address, user, password and database \
             are right: try `psql URL -c ''`"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_advice() {
        let (sqlite, postgres) = ("sqlite:///nowhere/at/all.db", "postgres://host/db");
        let detail = |text: &str| text.to_owned();
        let table = [
            (sqlite, Error::SchemaTooOld { found: 0, known: 9 }, "there is no file '/nowhere/at/all.db'", "serve"),
            (postgres, Error::SchemaTooOld { found: 0, known: 9 }, "has no windlass schema", "windlass migrate up"),
            (postgres, Error::SchemaTooOld { found: 3, known: 9 }, "schema version 3", "windlass migrate up"),
            (postgres, Error::SchemaTooNew { found: 10, known: 9 }, "schema version 10", "newer"),
            (sqlite, Error::DatabaseLocked { detail: detail("busy") }, "locked", "fuser /nowhere/at/all.db"),
            (sqlite, Error::DatabaseReadOnly { detail: detail("ro") }, "read-only", "let this user write"),
            (postgres, Error::DatabaseReadOnly { detail: detail("ro") }, "read-only", "standby"),
            (
                sqlite,
                Error::Database { detail: detail("file is not a database") },
                "not a database",
                "not an SQLite file",
            ),
            (sqlite, Error::Database { detail: detail("disk image is malformed") }, "malformed", ".recover"),
            (sqlite, Error::DatabaseUnavailable { detail: detail("no") }, "cannot be reached", "folder"),
            (postgres, Error::DatabaseUnavailable { detail: detail("no") }, "cannot be reached", "server runs"),
        ];
        for (url, error, summary, advice) in table {
            let found = Finding::database_unavailable(url, &error);
            assert_eq!((&*found.check, found.level), ("database", FindingLevel::Problem));
            assert!(found.summary.contains(summary), "{found:?}");
            assert!(found.advice.as_ref().is_some_and(|found| found.contains(advice)), "{found:?}");
        }
    }
}
