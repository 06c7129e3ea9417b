//! The months of history.

use sqlx::{AssertSqlSafe, Connection as _, Executor, PgConnection};

use super::PgStore;
use super::error::from_sqlx;
use super::migrate::MIGRATION_LOCK;
use super::retain::{delete_events, lock};
use crate::error::Result;
use crate::maintenance::months::{Kept, Month, Part, missing};
use crate::store::ExpiredMonths;

/// While a table is changed, everyone who uses it waits: for as long as the change waits for others, and for as long as
/// it takes. Both are bounded.
pub(super) const BRIEFLY: &str = "SET LOCAL lock_timeout = '50ms'; SET LOCAL statement_timeout = '80ms'";

const FOUND: &str = "
SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = ANY(ARRAY['windlass.events'::regclass, 'windlass.event_attempts'::regclass]::oid[])";

pub(super) async fn months(store: &PgStore) -> Result<Vec<Part>> {
    let mut connection = store.reads.get().await?;
    let found = found(&mut connection).await?;
    connection.done();
    Ok(found)
}

async fn found(connection: &mut PgConnection) -> Result<Vec<Part>> {
    let names: Vec<String> = sqlx::query_scalar(FOUND).fetch_all(connection).await.map_err(from_sqlx)?;
    Ok(names.iter().filter_map(|name| part(name)).collect())
}

fn part(name: &str) -> Option<Part> {
    let of = |kept: Kept| Some((kept, name.strip_prefix(kept.as_str())?.strip_prefix('_')?.parse().ok()?));
    Kept::ALL.into_iter().find_map(of)
}

/// The partition's name.
pub(super) fn name((kept, month): Part) -> String {
    format!("{}_{month}", kept.as_str())
}

/// When a queue is opened: what cannot be made now is made by upkeep.
pub(super) async fn add_ahead(connection: &mut PgConnection) -> Result<()> {
    let now = sqlx::query_scalar("SELECT now()").fetch_one(&mut *connection).await.map_err(from_sqlx)?;
    for part in missing(&found(connection).await?, now) {
        if let Err(error) = add(connection, part).await {
            tracing::warn!(%error, "could not make the partition {}; the default one serves", name(part));
        }
    }
    Ok(())
}

pub(super) async fn add_month(store: &PgStore, part: Part, ahead: bool) -> Result<bool> {
    let mut connection = store.reads.get().await?;
    let mut added = add_soon(&mut connection, part).await;
    if ahead && added.as_ref().is_err_and(is_too_slow) {
        added = match rule_out(&mut connection, part).await {
            Ok(()) => add_soon(&mut connection, part).await,
            Err(error) => Err(error),
        };
    }
    if added.is_err()
        && let Err(error) = admit(&mut connection, part).await
    {
        tracing::warn!(%error, "the default partition may refuse what belongs to {}, until upkeep comes by again", name(part));
    }
    match added {
        Ok(()) => connection.done(),
        // No right to, or the default partition has rows of that month.
        Err(error) if store.is_news(&name(part)) => {
            tracing::warn!(%error, "could not make the partition {}; the default one serves", name(part));
            return Ok(false);
        }
        Err(_) => return Ok(false),
    }
    Ok(true)
}

async fn add_soon(connection: &mut PgConnection, part: Part) -> sqlx::Result<()> {
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

/// A table in use is tried again after these pauses.
pub(super) const PAUSES_MS: [u64; 4] = [0, 100, 300, 900];

/// Somebody uses the table: locked, or it would have taken too long.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    has_code(error, &["55P03", "57014", "40P01"])
}

/// What would have to be looked at takes too long.
fn is_too_slow(error: &sqlx::Error) -> bool {
    has_code(error, &["57014"])
}

/// Makes sure, at leisure, that the default partition has no rows of a month to come, and gets none. A large one cannot be
/// looked through in a moment when the month is made: while that happens, nobody can use it.
pub(super) async fn rule_out(connection: &mut PgConnection, (kept, month): Part) -> sqlx::Result<()> {
    let (default, rule, at) = (default(kept), rule((kept, month)), instant(kept));
    let (begins, ends) = (month.begins().to_rfc3339(), month.ends().to_rfc3339());
    let mut tx = connection.begin().await?;
    tx.execute(BRIEFLY).await?;
    let add = format!(
        "ALTER TABLE {default} DROP CONSTRAINT IF EXISTS {rule};
         ALTER TABLE {default} ADD CONSTRAINT {rule} CHECK ({at} < '{begins}' OR {at} >= '{ends}') NOT VALID"
    );
    tx.execute(AssertSqlSafe(add)).await?;
    tx.commit().await?;
    // This keeps nobody from reading or writing.
    connection.execute(AssertSqlSafe(format!("ALTER TABLE {default} VALIDATE CONSTRAINT {rule}"))).await.map(drop)
}

const IS_RULED_OUT: &str = "SELECT EXISTS (SELECT FROM pg_constraint WHERE conrelid = $1::regclass AND conname = $2)";

/// Lets the default partition serve the month, also where somebody ruled it out and did not come to make it.
pub(super) async fn admit(connection: &mut PgConnection, part: Part) -> sqlx::Result<()> {
    let (default, rule) = (default(part.0), rule(part));
    let ruled_out = sqlx::query_scalar(IS_RULED_OUT).bind(&default).bind(&rule);
    if !ruled_out.fetch_one(&mut *connection).await? {
        return Ok(());
    }
    let mut tx = connection.begin().await?;
    tx.execute(BRIEFLY).await?;
    tx.execute(AssertSqlSafe(format!("ALTER TABLE {default} DROP CONSTRAINT IF EXISTS {rule}"))).await?;
    tx.commit().await
}

fn default(kept: Kept) -> String {
    format!("windlass.{}_default", kept.as_str())
}

fn rule(part: Part) -> String {
    format!("not_{}", name(part))
}

/// The column that says to which month a row belongs.
fn instant(kept: Kept) -> &'static str {
    match kept {
        Kept::Events => "created_at",
        Kept::Attempts => "finished_at",
    }
}

pub(super) async fn add(connection: &mut PgConnection, (kept, month): Part) -> sqlx::Result<()> {
    // Nothing here comes from outside.
    let statement = format!(
        "CREATE TABLE windlass.{} PARTITION OF windlass.{} FOR VALUES FROM ('{}') TO ('{}');
         ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}",
        name((kept, month)),
        kept.as_str(),
        month.begins().to_rfc3339(),
        month.ends().to_rfc3339(),
        default(kept),
        rule((kept, month)),
    );
    let mut tx = connection.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION_LOCK).execute(&mut *tx).await?;
    // Another process may have been faster.
    let names: Vec<String> = sqlx::query_scalar(FOUND).fetch_all(&mut *tx).await?;
    if names.contains(&name((kept, month))) {
        return tx.rollback().await;
    }
    tx.execute(BRIEFLY).await?;
    tx.execute(AssertSqlSafe(statement)).await?;
    tx.commit().await
}

/// What a partition is called from when it is taken out until it is deleted. One that somebody took out by hand keeps
/// its name, and is his.
pub(super) const TAKEN_OUT: &str = "_dropped";

const LEFT: &str = "
SELECT c.relname::text FROM pg_class c
WHERE c.relnamespace = 'windlass'::regnamespace AND c.relkind = 'r' AND NOT c.relispartition
  AND c.relname ~ '^(events|event_attempts)_[0-9]{4}_[0-9]{2}_dropped$'";

pub(super) async fn finish_dropping(store: &PgStore) -> Result<usize> {
    let mut connection = store.reads.get().await?;
    let left: Vec<String> = sqlx::query_scalar(LEFT).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    let mut dropped = 0;
    for table in left.iter().filter(|table| table.strip_suffix(TAKEN_OUT).and_then(part).is_some()) {
        match drop_table(&mut connection, table).await {
            Ok(()) => dropped += 1,
            Err(error) if is_busy(&error) || is_refused(&error) => {
                tracing::info!(%error, "the table {table} was taken out of the history, and cannot be dropped now");
            }
            Err(error) => return Err(from_sqlx(error)),
        }
    }
    connection.done();
    Ok(dropped)
}

async fn drop_table(connection: &mut PgConnection, table: &str) -> sqlx::Result<()> {
    let mut tx = connection.begin().await?;
    tx.execute("SET LOCAL lock_timeout = '50ms'").await?;
    // Another process may be at it.
    tx.execute(AssertSqlSafe(format!("DROP TABLE IF EXISTS windlass.{table}"))).await?;
    tx.commit().await
}

/// The walk through what is left of months that are over, in the table of marks.
const WALK: &str = "strays";

// Attempts have gone: look from the beginning for events that have lost theirs.
pub(super) const LOOK_FOR_STRAYS: &str = "
INSERT INTO windlass.retention_marks (namespace, walk, keep_ms, rules, at, id, subscription_id)
SELECT namespace, 'strays', 0, 0, 'epoch', 0, 0 FROM windlass.namespaces ORDER BY namespace
ON CONFLICT (namespace, walk, keep_ms) DO UPDATE SET id = 0";

const PAST_STRAYS: &str = "
SELECT namespace, id FROM windlass.retention_marks WHERE walk = $1 ORDER BY namespace LIMIT 1 FOR UPDATE SKIP LOCKED";

// Not the month that is only over in part: all of it would be read each time.
const STRAYS: &str = "
SELECT e.id FROM windlass.events e WHERE e.namespace = $1 AND e.id > $2 AND e.created_at < $4 ORDER BY e.id LIMIT $3";

const NOTE_STRAYS: &str = "UPDATE windlass.retention_marks SET id = $3 WHERE namespace = $2 AND walk = $1";
const NO_STRAYS: &str = "DELETE FROM windlass.retention_marks WHERE namespace = $2 AND walk = $1";

const BATCH: usize = 1_000;

pub(super) async fn delete_strays(store: &PgStore, over: &ExpiredMonths) -> Result<Option<usize>> {
    let mut connection = store.writes.get().await?;
    let mut tx = connection.begin().await.map_err(from_sqlx)?;
    let mark = sqlx::query_as(PAST_STRAYS).bind(WALK).fetch_optional(&mut *tx).await.map_err(from_sqlx)?;
    // Another process is at it, or there is nothing to look for.
    let Some((namespace, mark)): Option<(String, i64)> = mark else {
        tx.rollback().await.map_err(from_sqlx)?;
        connection.done();
        return Ok(None);
    };
    let mut strays: Vec<i64> = Vec::new();
    if !over.spared.contains(&namespace) {
        let (most, before) = (BATCH as i64, Month::of(over.before).begins());
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
}

/// Another process has dropped the table.
pub(super) fn is_gone(error: &sqlx::Error) -> bool {
    has_code(error, &["42P01"])
}

/// The table belongs to somebody else.
pub(super) fn is_refused(error: &sqlx::Error) -> bool {
    has_code(error, &["42501"])
}

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| codes.contains(&&*code))
}
