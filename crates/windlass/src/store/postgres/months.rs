//! Monthly partitions of events and attempts.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use sqlx::{AssertSqlSafe, Connection as _, Executor, PgConnection};

use super::PgStore;
use super::drop_month::try_once;
use super::row::get;
use crate::maintenance::retention::RetentionRules;
use crate::policy::PolicyOverrides;
use sqlx::postgres::PgRow;

use super::error::from_sqlx;

use super::migrate::MIGRATION_LOCK;

use super::retain::{delete_events, lock};

use super::retry::retry_deadlocks;

use crate::error::{Error, Result};

use crate::maintenance::months::{HistoryPartition, HistoryTable, Month, missing_partitions};

use crate::policy::NamespacePolicy;

use crate::store::{AllRules, DropOutcome, ExpiredMonths, MonthStore};

/// Timeouts of changes of a table. All users of the table wait while such a change waits for others and while it runs.
pub(super) const SHORT_TIMEOUTS: &str = "SET LOCAL lock_timeout = '50ms'; SET LOCAL statement_timeout = '80ms'";

const FOUND: &str = "
SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = ANY(ARRAY['windlass.events'::regclass, 'windlass.event_attempts'::regclass]::oid[])";

/// The pauses between attempts to lock a table in use.
const PAUSES_MS: [u64; 4] = [0, 100, 300, 900];

const IS_EXCLUDED: &str = "SELECT EXISTS (SELECT FROM pg_constraint WHERE conrelid = $1::regclass AND conname = $2)";

/// The name suffix of a detached partition that is to be dropped. A partition that an administrator detached keeps its
/// name and is not dropped.
pub(super) const DETACHED_SUFFIX: &str = "_dropped";

const LEFT: &str = "
SELECT c.relname::text FROM pg_class c
WHERE c.relnamespace = 'windlass'::regnamespace AND c.relkind = 'r' AND NOT c.relispartition
  AND c.relname ~ '^(events|event_attempts)_[0-9]{4}_[0-9]{2}_dropped$'";

/// The name of the walk for events without attempts, in `retention_marks`.
const WALK: &str = "strays";

// A month of attempts was dropped: check from the beginning for events that have lost theirs.
pub(super) const RESTART_STRAY_CHECK: &str = "
INSERT INTO windlass.retention_marks (namespace, walk, keep_ms, rules, at, id, subscription_id)
SELECT namespace, 'strays', 0, 0, 'epoch', 0, 0 FROM windlass.namespaces ORDER BY namespace
ON CONFLICT (namespace, walk, keep_ms) DO UPDATE SET id = 0";

const PAST_STRAYS: &str = "
SELECT namespace, id FROM windlass.retention_marks WHERE walk = $1 ORDER BY namespace LIMIT 1 FOR UPDATE SKIP LOCKED";

// Excludes the month that has only expired in part: all of it would be read each time.
const STRAYS: &str = "
SELECT e.id FROM windlass.events e WHERE e.namespace = $1 AND e.id > $2 AND e.created_at < $4 ORDER BY e.id LIMIT $3";

const NOTE_STRAYS: &str = "UPDATE windlass.retention_marks SET id = $3 WHERE namespace = $2 AND walk = $1";

const NO_STRAYS: &str = "DELETE FROM windlass.retention_marks WHERE namespace = $2 AND walk = $1";

const BATCH: usize = 1_000;

const RULES: &str = "
SELECT n.namespace, n.policy::text AS policy, s.subscription, s.policy::text AS overrides,
       (SELECT sum(version) FROM windlass.namespaces)::bigint AS version
FROM windlass.namespaces n JOIN windlass.subscriptions s ON s.namespace = n.namespace";

#[async_trait]
impl MonthStore for PgStore {
    async fn rules(&self) -> Result<AllRules> {
        let mut connection = self.reads.get().await?;
        let rows = sqlx::query(RULES).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let mut found: BTreeMap<String, (NamespacePolicy, BTreeMap<String, PolicyOverrides>)> = BTreeMap::new();
        for row in &rows {
            let entry = found.entry(get(row, "namespace")?);
            let policy = parsed(row, "policy")?;
            let (_, subscriptions) = entry.or_insert_with(|| (policy, BTreeMap::new()));
            subscriptions.insert(get(row, "subscription")?, parsed(row, "overrides")?);
        }
        let rules = |(namespace, (policy, subscriptions))| (namespace, RetentionRules::new(policy, subscriptions));
        let version = rows.first().map_or(Ok(0), |row| get(row, "version"))?;
        Ok(AllRules { of: found.into_iter().map(rules).collect(), version })
    }

    async fn months(&self) -> Result<Vec<HistoryPartition>> {
        let mut connection = self.reads.get().await?;
        let found = found(&mut connection).await?;
        connection.done();
        Ok(found)
    }

    async fn add_month(&self, part: HistoryPartition, ahead: bool) -> Result<bool> {
        let mut connection = self.reads.get().await?;
        let mut added = add_soon(&mut connection, part).await;
        if ahead && added.as_ref().is_err_and(is_too_slow) {
            added = match exclude_month(&mut connection, part).await {
                Ok(()) => add_soon(&mut connection, part).await,
                Err(error) => Err(error),
            };
        }
        if added.is_err()
            && let Err(error) = include_month(&mut connection, part).await
        {
            tracing::warn!(%error, "the default partition may refuse rows of {} until the next maintenance run", name(part));
        }
        match added {
            Ok(()) => connection.done(),
            // The user lacks the permission, or the default partition has rows of that month.
            Err(error) if self.should_log_failure(&name(part)) => {
                tracing::warn!(%error, "could not create the partition {}; the default partition stores its rows", name(part));
                return Ok(false);
            }
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    async fn drop_month(&self, part: HistoryPartition, over: &ExpiredMonths) -> Result<DropOutcome> {
        for pause in PAUSES_MS {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            // After an error, the connection is closed instead of reused.
            let mut connection = self.writes.get().await?;
            match try_once(&mut connection, part, over).await {
                Ok(dropping) => {
                    connection.done();
                    return Ok(dropping);
                }
                Err(error) if is_gone(&error) => return Ok(DropOutcome::Dropped),
                Err(error) if is_busy(&error) => {}
                Err(error) if is_refused(&error) => return Ok(DropOutcome::Refused),
                Err(error) => return Err(from_sqlx(error)),
            }
        }
        Ok(DropOutcome::Busy)
    }

    async fn finish_dropping(&self) -> Result<usize> {
        let mut connection = self.reads.get().await?;
        let left: Vec<String> = sqlx::query_scalar(LEFT).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        let mut dropped = 0;
        for table in left.iter().filter(|table| table.strip_suffix(DETACHED_SUFFIX).and_then(part).is_some()) {
            match drop_table(&mut connection, table).await {
                Ok(()) => dropped += 1,
                Err(error) if is_busy(&error) || is_refused(&error) => {
                    tracing::info!(%error, "the detached partition {table} cannot be dropped now");
                }
                Err(error) => return Err(from_sqlx(error)),
            }
        }
        connection.done();
        Ok(dropped)
    }

    async fn delete_strays(&self, over: &ExpiredMonths) -> Result<Option<usize>> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            let mark = sqlx::query_as(PAST_STRAYS).bind(WALK).fetch_optional(&mut *tx).await.map_err(from_sqlx)?;
            // Another process is at work, or there is nothing to check.
            let Some((namespace, mark)): Option<(String, i64)> = mark else {
                tx.rollback().await.map_err(from_sqlx)?;
                connection.done();
                return Ok(None);
            };
            let mut strays: Vec<i64> = Vec::new();
            if !over.spared.contains(&namespace) {
                let (most, before) = (BATCH as i64, Month::of(over.before).start());
                let select = sqlx::query_scalar(STRAYS).bind(&namespace).bind(mark).bind(most).bind(before);
                strays = select.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
            }
            lock(&mut tx, &namespace, &strays).await?;
            let deleted = delete_events(&mut tx, &namespace, &strays).await?;
            let note = match strays.last() {
                Some(last) if strays.len() == BATCH => sqlx::query(NOTE_STRAYS).bind(WALK).bind(&namespace).bind(*last),
                _ => sqlx::query(NO_STRAYS).bind(WALK).bind(&namespace),
            };
            note.execute(&mut *tx).await.map_err(from_sqlx)?;
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            Ok(Some(deleted))
        })
    }
}

async fn found(connection: &mut PgConnection) -> Result<Vec<HistoryPartition>> {
    let names: Vec<String> = sqlx::query_scalar(FOUND).fetch_all(connection).await.map_err(from_sqlx)?;
    Ok(names.iter().filter_map(|name| part(name)).collect())
}

fn part(name: &str) -> Option<HistoryPartition> {
    let of = |kept: HistoryTable| Some((kept, name.strip_prefix(kept.as_str())?.strip_prefix('_')?.parse().ok()?));
    HistoryTable::ALL.into_iter().find_map(of)
}

/// The partition's name.
pub(super) fn name((kept, month): HistoryPartition) -> String {
    format!("{}_{month}", kept.as_str())
}

/// Creates the next partitions while a queue is opened. Maintenance creates those that cannot be created now.
pub(super) async fn add_ahead(connection: &mut PgConnection) -> Result<()> {
    let now = sqlx::query_scalar("SELECT now()").fetch_one(&mut *connection).await.map_err(from_sqlx)?;
    for part in missing_partitions(&found(connection).await?, now) {
        if let Err(error) = add(connection, part).await {
            tracing::warn!(%error, "could not create the partition {}; the default partition stores its rows", name(part));
        }
    }
    Ok(())
}

async fn add_soon(connection: &mut PgConnection, part: HistoryPartition) -> sqlx::Result<()> {
    let mut added = Ok(());
    for pause in PAUSES_MS {
        tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
        added = add(connection, part).await;
        if !added.as_ref().is_err_and(is_busy) {
            break;
        }
    }
    added
}

/// The table is in use: the lock or the statement timed out.
fn is_busy(error: &sqlx::Error) -> bool {
    has_code(error, &["55P03", "57014", "40P01"])
}

/// Checking the default partition takes too long.
fn is_too_slow(error: &sqlx::Error) -> bool {
    has_code(error, &["57014"])
}

/// Adds a constraint so that the default partition has no rows of a future month and gets none. Without it, creating
/// the partition scans the default partition under an exclusive lock.
pub(super) async fn exclude_month(connection: &mut PgConnection, (kept, month): HistoryPartition) -> sqlx::Result<()> {
    let (default, rule, at) = (default(kept), rule((kept, month)), instant(kept));
    let (begins, ends) = (month.start().to_rfc3339(), month.end().to_rfc3339());
    let mut tx = connection.begin().await?;
    tx.execute(SHORT_TIMEOUTS).await?;
    let add = format!(
        "ALTER TABLE {default} DROP CONSTRAINT IF EXISTS {rule};
         ALTER TABLE {default} ADD CONSTRAINT {rule} CHECK ({at} < '{begins}' OR {at} >= '{ends}') NOT VALID"
    );
    tx.execute(AssertSqlSafe(add)).await?;
    tx.commit().await?;
    // Validation blocks neither readers nor writers.
    connection.execute(AssertSqlSafe(format!("ALTER TABLE {default} VALIDATE CONSTRAINT {rule}"))).await.map(drop)
}

/// Removes the constraint, so that the default partition accepts rows of the month again, also if another process added
/// it and did not create the partition.
pub(super) async fn include_month(connection: &mut PgConnection, part: HistoryPartition) -> sqlx::Result<()> {
    let (default, rule) = (default(part.0), rule(part));
    let ruled_out = sqlx::query_scalar(IS_EXCLUDED).bind(&default).bind(&rule);
    if !ruled_out.fetch_one(&mut *connection).await? {
        return Ok(());
    }
    let mut tx = connection.begin().await?;
    tx.execute(SHORT_TIMEOUTS).await?;
    tx.execute(AssertSqlSafe(format!("ALTER TABLE {default} DROP CONSTRAINT IF EXISTS {rule}"))).await?;
    tx.commit().await
}

fn default(kept: HistoryTable) -> String {
    format!("windlass.{}_default", kept.as_str())
}

fn rule(part: HistoryPartition) -> String {
    format!("not_{}", name(part))
}

/// The column that determines the month of a row.
fn instant(kept: HistoryTable) -> &'static str {
    match kept {
        HistoryTable::Events => "created_at",
        HistoryTable::Attempts => "finished_at",
    }
}

pub(super) async fn add(connection: &mut PgConnection, (kept, month): HistoryPartition) -> sqlx::Result<()> {
    // The interpolated names are not user input.
    let statement = format!(
        "CREATE TABLE windlass.{} PARTITION OF windlass.{} FOR VALUES FROM ('{}') TO ('{}');
         ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}",
        name((kept, month)),
        kept.as_str(),
        month.start().to_rfc3339(),
        month.end().to_rfc3339(),
        default(kept),
        rule((kept, month)),
    );
    let mut tx = connection.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION_LOCK).execute(&mut *tx).await?;
    // Another process may have created it first.
    let names: Vec<String> = sqlx::query_scalar(FOUND).fetch_all(&mut *tx).await?;
    if names.contains(&name((kept, month))) {
        return tx.rollback().await;
    }
    tx.execute(SHORT_TIMEOUTS).await?;
    tx.execute(AssertSqlSafe(statement)).await?;
    tx.commit().await
}

async fn drop_table(connection: &mut PgConnection, table: &str) -> sqlx::Result<()> {
    let mut tx = connection.begin().await?;
    tx.execute("SET LOCAL lock_timeout = '50ms'").await?;
    // Another process may drop it concurrently.
    tx.execute(AssertSqlSafe(format!("DROP TABLE IF EXISTS windlass.{table}"))).await?;
    tx.commit().await
}

/// Another process has dropped the table.
fn is_gone(error: &sqlx::Error) -> bool {
    has_code(error, &["42P01"])
}

/// The user lacks the permission: another role owns the table.
pub(super) fn is_refused(error: &sqlx::Error) -> bool {
    has_code(error, &["42501"])
}

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| codes.contains(&&*code))
}

fn parsed<T: serde::de::DeserializeOwned>(row: &PgRow, column: &'static str) -> Result<T> {
    let text: String = get(row, column)?;
    serde_json::from_str(&text).map_err(|error| Error::Database { detail: format!("stored {column}: {error}") })
}
