//! Schema migrations.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::connection::open_reader;
use super::topology;
use crate::error::{Error, Result};
use crate::topology::DEFAULT_NAMESPACE;

/// In the order of their versions, which start at 1.
const MIGRATIONS: [(&str, &str); 2] = [
    ("schema", include_str!("migrations/0001_schema.sql")),
    ("functions", include_str!("migrations/0002_functions.sql")),
];

/// The version this build needs.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;

const REGISTRY: &str = "
CREATE TABLE IF NOT EXISTS windlass_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at INTEGER NOT NULL
)";

/// Applies missing migrations if `migrate`, and creates the namespace `default`.
pub(super) fn prepare(conn: &mut Connection, migrate: bool, now: i64) -> Result<()> {
    if found(conn)? < KNOWN {
        if !migrate {
            return Err(Error::SchemaTooOld { found: found(conn)?, known: KNOWN });
        }
        apply_missing(conn, now)?;
    }
    match found(conn)? {
        newer if newer > KNOWN => Err(Error::SchemaTooNew { found: newer, known: KNOWN }),
        _ => add_default_namespace(conn, now),
    }
}

fn apply_missing(conn: &mut Connection, now: i64) -> Result<()> {
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(REGISTRY)?;
    // Another process may have migrated it first.
    let found = found(&transaction)?;
    for ((name, sql), version) in MIGRATIONS.into_iter().zip(1..).filter(|(_, version)| *version > found) {
        transaction.execute_batch(sql)?;
        note(&transaction, version, name, now)?;
    }
    Ok(transaction.commit()?)
}

const NOTE: &str = "INSERT INTO windlass_migrations (version, name, applied_at) VALUES (?1, ?2, ?3)";

fn note(conn: &Connection, version: i64, name: &str, now: i64) -> Result<()> {
    conn.execute(NOTE, (version, name, now))?;
    Ok(())
}

fn add_default_namespace(conn: &mut Connection, now: i64) -> Result<()> {
    if topology::exists(conn, DEFAULT_NAMESPACE)? {
        return Ok(());
    }
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if !topology::exists(&transaction, DEFAULT_NAMESPACE)? {
        topology::put_namespace(&transaction, DEFAULT_NAMESPACE, None, None, now)?;
    }
    Ok(transaction.commit()?)
}

const HAS_REGISTRY: &str = "SELECT 1 FROM sqlite_schema WHERE name = 'windlass_migrations'";

const FOUND: &str = "SELECT coalesce(max(version), 0) FROM windlass_migrations";

pub(super) fn found(conn: &Connection) -> Result<i64> {
    if conn.query_row(HAS_REGISTRY, [], |_| Ok(())).optional()?.is_none() {
        return Ok(0);
    }
    Ok(conn.query_row(FOUND, [], |row| row.get(0))?)
}

/// The schema version of the database in this file; 0 if there is no database. Does not change the file.
pub(super) fn version_of(path: &Path) -> Result<i64> {
    if !path.exists() {
        return Ok(0);
    }
    found(&open_reader(path)?)
}
