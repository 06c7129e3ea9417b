//! Schema migrations.

use sqlx::{Connection as _, Executor, PgConnection};

use super::error::from_sqlx;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::policy::NamespacePolicy;
use crate::topology::DEFAULT_NAMESPACE;

/// Number, name, statements.
const MIGRATIONS: [(i64, &str, &str); 2] = [
    (1, "schema", include_str!("migrations/0001_schema.sql")),
    (2, "functions", include_str!("migrations/0002_functions.sql")),
];

pub(super) const KNOWN: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// An arbitrary key that no other program should use for an advisory lock.
pub(super) const MIGRATION_LOCK: i64 = 0x0077_696e_646c_6173;

const PREPARE: &str = "
CREATE SCHEMA IF NOT EXISTS windlass;
CREATE TABLE IF NOT EXISTS windlass.migrations (
    version bigint PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());";

/// The schema version of the database; 0 if there is no schema.
pub(super) async fn found(connection: &mut PgConnection) -> Result<i64> {
    let exists: bool = sqlx::query_scalar("SELECT to_regclass('windlass.migrations') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await
        .map_err(from_sqlx)?;
    if !exists {
        return Ok(0);
    }
    let version = "SELECT coalesce(max(version), 0) FROM windlass.migrations";
    sqlx::query_scalar(version).fetch_one(connection).await.map_err(from_sqlx)
}

/// Checks the version and applies missing migrations if `apply`. An advisory lock serializes concurrent migrations.
pub(super) async fn migrate(connection: &mut PgConnection, apply: bool) -> Result<()> {
    let version = found(connection).await?;
    if version > KNOWN {
        return Err(Error::SchemaTooNew { found: version, known: KNOWN });
    }
    if version == KNOWN {
        return Ok(());
    }
    if !apply {
        return Err(Error::SchemaTooOld { found: version, known: KNOWN });
    }
    let mut tx = connection.begin().await.map_err(from_sqlx)?;
    let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION_LOCK);
    lock.execute(&mut *tx).await.map_err(from_sqlx)?;
    tx.execute(PREPARE).await.map_err(from_sqlx)?;
    let version = found(&mut tx).await?;
    for (number, name, statements) in MIGRATIONS.iter().filter(|(number, ..)| *number > version) {
        tx.execute(*statements).await.map_err(from_sqlx)?;
        let note = sqlx::query("INSERT INTO windlass.migrations (version, name) VALUES ($1, $2)");
        note.bind(number).bind(name).execute(&mut *tx).await.map_err(from_sqlx)?;
    }
    tx.commit().await.map_err(from_sqlx)
}

const ADD_DEFAULT: &str = "
WITH namespace AS (
    INSERT INTO windlass.namespaces (namespace, policy, created_at)
    VALUES ($1, $2::json, coalesce($3, now())) ON CONFLICT DO NOTHING)
INSERT INTO windlass.subscriptions (namespace, subscription, starts_at, created_at)
VALUES ($1, 'main', coalesce($3, now()), coalesce($3, now())) ON CONFLICT DO NOTHING";

pub(super) async fn add_default_namespace(connection: &mut PgConnection, now: Option<Timestamp>) -> Result<()> {
    let there = sqlx::query("SELECT FROM windlass.subscriptions WHERE namespace = $1").bind(DEFAULT_NAMESPACE);
    if there.fetch_optional(&mut *connection).await.map_err(from_sqlx)?.is_some() {
        return Ok(());
    }
    let policy = super::to_json(&NamespacePolicy::default())?;
    let add = sqlx::query(ADD_DEFAULT).bind(DEFAULT_NAMESPACE).bind(policy).bind(now);
    add.execute(connection).await.map_err(from_sqlx).map(drop)
}
