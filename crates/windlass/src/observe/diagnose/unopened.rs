//! What to say where the database cannot be opened, or does not answer: that itself is what is wrong.

use super::{Assessment, CheckFailure, Finding, FindingLevel};
use crate::error::Error;

impl Finding {
    /// The finding `database`, for a database that could not be opened for this reason.
    pub fn unopened(url: &str, error: &Error) -> Finding {
        verdict(url, error).of("database")
    }
}

/// A check that could not be done. Where not even the first question is answered, the database is what is wrong.
pub(super) fn verdict_of(unseen: CheckFailure, check: &str) -> Assessment {
    match unseen {
        CheckFailure::Failed(error) if check == "database" => verdict("", &error),
        unseen => unseen.verdict(),
    }
}

fn verdict(url: &str, error: &Error) -> Assessment {
    let file = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:"));
    let (summary, advice) = match (error, file) {
        (Error::SchemaTooOld { found: 0, .. }, Some(file)) if !std::path::Path::new(file).exists() => (
            format!("there is no file '{file}'"),
            "name the right one with --database; `windlass serve` and `windlass migrate up` make a new one".to_owned(),
        ),
        (Error::SchemaTooOld { found: 0, .. }, _) => (
            "the database has no windlass schema".to_owned(),
            "see that it is the right database; `windlass migrate up` makes the schema".to_owned(),
        ),
        (error, _) => (error.to_string(), advice(error, file)),
    };
    Assessment::new(FindingLevel::Problem, summary, advice)
}

fn advice(error: &Error, file: Option<&str>) -> String {
    let what = file.unwrap_or("FILE");
    match error {
        Error::SchemaTooOld { .. } => "stop older processes, make a backup, and run `windlass migrate up`".to_owned(),
        Error::SchemaTooNew { .. } => "use the windlass that migrated it, or a newer one".to_owned(),
        Error::DatabaseUrl { .. } => "give --database as sqlite://FILE or postgres://USER@HOST/DATABASE".to_owned(),
        Error::DatabaseLocked { .. } => {
            format!("end the transaction that holds it, or its program: `fuser {what}` names who has it open")
        }
        Error::DatabaseReadOnly { .. } => match file {
            Some(file) => {
                format!("let this user write '{file}' and its folder, and see that the disk is not read-only")
            }
            None => "connect to the primary server, not to a standby".to_owned(),
        },
        Error::DatabaseFull { .. } => "make room on the disk of the database".to_owned(),
        Error::Database { detail } if detail.contains("not a database") => {
            format!("'{what}' is something else: name the right file with --database, or restore a backup")
        }
        Error::Database { detail } if detail.contains("malformed") => {
            format!("the file is damaged: restore a backup, or save what can be read with `sqlite3 {what} .recover`")
        }
        Error::DatabaseUnavailable { .. } if file.is_some() => {
            format!("see that '{what}' and its folder are there, and that this user may open them")
        }
        _ => {
            "see that the server runs, that this machine reaches it, and that the address, user, password and database \
              are right: `psql URL -c ''` tells"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_advice() {
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
            (sqlite, Error::Database { detail: detail("file is not a database") }, "not a database", "something else"),
            (sqlite, Error::Database { detail: detail("disk image is malformed") }, "malformed", ".recover"),
            (sqlite, Error::DatabaseUnavailable { detail: detail("no") }, "cannot be reached", "folder"),
            (postgres, Error::DatabaseUnavailable { detail: detail("no") }, "cannot be reached", "server runs"),
        ];
        for (url, error, summary, advice) in table {
            let found = Finding::unopened(url, &error);
            assert_eq!((found.check, found.level), ("database", FindingLevel::Problem));
            assert!(found.summary.contains(summary), "{found:?}");
            assert!(found.advice.as_ref().is_some_and(|found| found.contains(advice)), "{found:?}");
        }
    }
}
