//! Detaching the partition of a month.

use sqlx::{AssertSqlSafe, Connection as _, Executor, PgConnection};

use super::months::{DETACHED_SUFFIX, RESTART_STRAY_CHECK, SHORT_TIMEOUTS, name};
use crate::maintenance::months::{HistoryPartition, HistoryTable, Month};
use crate::store::{DropOutcome, ExpiredMonths};

/// The maximum number of rows to keep: more cannot be moved within milliseconds.
const KEPT_ROWS_MAX: i64 = 1_000;

/// For the remaining statements, while other transactions wait for this one.
const FINAL_TIMEOUT: &str = "SET LOCAL statement_timeout = '30ms'";

/// An arbitrary key that no other program should use for an advisory lock.
const MONTHS_LOCK: i64 = 0x0077_696e_6d6f_6e74;

pub(super) async fn try_once(
    connection: &mut PgConnection,
    part: HistoryPartition,
    over: &ExpiredMonths,
) -> sqlx::Result<DropOutcome> {
    // First without the table lock, which blocks all users of the table.
    match rows_to_keep(connection, part, &name(part), over).await? {
        Some(_) => detach(connection, part, over).await,
        None => Ok(DropOutcome::TooMuchStays),
    }
}

async fn detach(
    connection: &mut PgConnection,
    part: HistoryPartition,
    over: &ExpiredMonths,
) -> sqlx::Result<DropOutcome> {
    let (table, parent) = (name(part), part.0.as_str());
    let mut tx = connection.begin().await?;
    let lock = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)").bind(MONTHS_LOCK);
    if !lock.fetch_one(&mut *tx).await? {
        tx.rollback().await?;
        return Ok(DropOutcome::Busy);
    }
    if part.0 == HistoryTable::Attempts {
        tx.execute(RESTART_STRAY_CHECK).await?;
    }
    tx.execute(SHORT_TIMEOUTS).await?;
    if !is_current(&mut tx, over).await? {
        tx.rollback().await?;
        return Ok(DropOutcome::Outdated);
    }
    // CONCURRENTLY does not work with a default partition. The interpolated names are not user input.
    let detach = format!(
        "ALTER TABLE windlass.{parent} DETACH PARTITION windlass.{table};
         ALTER TABLE windlass.{table} RENAME TO {table}{DETACHED_SUFFIX}"
    );
    tx.execute(AssertSqlSafe(detach)).await?;
    // From here on, other transactions that use the table wait for this one.
    tx.execute(FINAL_TIMEOUT).await?;
    let table = table + DETACHED_SUFFIX;
    let Some(rows_to_keep) = rows_to_keep(&mut tx, part, &table, over).await? else {
        tx.rollback().await?;
        return Ok(DropOutcome::TooMuchStays);
    };
    if !rows_to_keep.is_empty() {
        let put = format!("INSERT INTO windlass.{parent} SELECT t.* FROM {}", rows_of(part.0, &table));
        let (namespaces, ids): (Vec<String>, Vec<i64>) = rows_to_keep.into_iter().unzip();
        sqlx::query(AssertSqlSafe(put)).bind(namespaces).bind(ids).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(DropOutcome::Dropped)
}

// Taken first: transactions that change the rules also lock the namespaces before the history.
const HOLD_RULES: &str = "LOCK TABLE windlass.namespaces IN SHARE MODE";

const VERSION: &str = "SELECT sum(version)::bigint FROM windlass.namespaces";

/// Whether the retention rules still have this version. They cannot change before the transaction ends.
async fn is_current(connection: &mut PgConnection, over: &ExpiredMonths) -> sqlx::Result<bool> {
    connection.execute(HOLD_RULES).await?;
    let version: Option<i64> = sqlx::query_scalar(VERSION).fetch_one(connection).await?;
    Ok(version == Some(over.version))
}

fn key(kept: HistoryTable) -> &'static str {
    match kept {
        HistoryTable::Events => "id",
        HistoryTable::Attempts => "event_id",
    }
}

/// Selects the rows of these events – $1: namespaces, $2: ids – as `t`. A partition of events is ordered by namespace.
pub(super) fn rows_of(kept: HistoryTable, table: &str) -> String {
    let of = match kept {
        HistoryTable::Events => "t.namespace = i.namespace AND t.id = i.id",
        HistoryTable::Attempts => "t.event_id = i.id",
    };
    format!(
        "unnest($1::text[], $2::bigint[]) AS i(namespace, id)
         CROSS JOIN LATERAL (SELECT * FROM windlass.{table} t WHERE {of} OFFSET 0) AS t"
    )
}

/// A namespace and the id of one of its events.
type EventKey = (String, i64);

// Keys that refer to an event start with its id, and ids grow with time, so those of a month are a small range. Each id
// is returned once, however many deliveries the event has: a list of more than the limit means too many rows to keep.
const LIVE: &str = "
SELECT DISTINCT ON (q.event_id) q.namespace, q.event_id
FROM windlass.subscriptions s CROSS JOIN LATERAL (
    SELECT q.namespace, q.event_id FROM windlass.event_queue q
    WHERE q.subscription_id = s.subscription_id AND q.event_id BETWEEN $1 AND $2 AND ($3 OR q.attempts > 0)
      AND q.created_at < $4
    ORDER BY q.event_id LIMIT $5) AS q
ORDER BY q.event_id LIMIT $5";

// Events that are not routed yet.
const ARRIVED: &str = "
SELECT a.namespace, a.event_id FROM windlass.arrivals a
WHERE a.event_id BETWEEN $1 AND $2 AND $3 AND a.created_at < $4 ORDER BY a.event_id LIMIT $5";

const DEAD: &str = "
SELECT DISTINCT ON (d.event_id) d.namespace, d.event_id FROM windlass.dead_letters d
WHERE d.event_id BETWEEN $1 AND $2 AND ($3 OR d.failed_at >= $6) AND d.created_at < $4
ORDER BY d.event_id LIMIT $5";

const ENDED_LATER: &str = "
SELECT DISTINCT ON (a.event_id) a.namespace, a.event_id FROM windlass.event_attempts a
WHERE a.event_id BETWEEN $1 AND $2 AND a.finished_at >= $3
ORDER BY a.event_id LIMIT $4";

/// The events with rows to keep in this table; `None`: too many. In a partition of attempts, the rows to keep are those
/// whose delivery is in the queue, is a dead letter or has ended later, which may be known by event only.
async fn rows_to_keep(
    connection: &mut PgConnection,
    (kept, month): HistoryPartition,
    table: &str,
    over: &ExpiredMonths,
) -> sqlx::Result<Option<Vec<EventKey>>> {
    let Some((first, last)) = range(connection, kept, table).await? else { return Ok(Some(Vec::new())) };
    let mut events: Vec<EventKey> = Vec::new();
    let all = kept == HistoryTable::Events;
    let (begins, ends) = (Month::start(month), Month::end(month));
    for sql in [LIVE, ARRIVED, DEAD] {
        let query = sqlx::query_as(sql).bind(first).bind(last).bind(all).bind(ends).bind(KEPT_ROWS_MAX + 1);
        let query = if sql == DEAD { query.bind(begins) } else { query };
        events.extend(query.fetch_all(&mut *connection).await?);
    }
    let later = sqlx::query_as(ENDED_LATER).bind(first).bind(last).bind(over.before).bind(KEPT_ROWS_MAX + 1);
    events.extend(later.fetch_all(&mut *connection).await?);
    for namespace in &over.spared {
        // The interpolated names are not user input.
        let of_namespace =
            format!("SELECT namespace, {} FROM windlass.{table} WHERE namespace = $1 LIMIT $2", key(kept));
        let query = sqlx::query_as(AssertSqlSafe(of_namespace)).bind(namespace).bind(KEPT_ROWS_MAX + 1);
        events.extend(query.fetch_all(&mut *connection).await?);
    }
    events.sort_unstable();
    events.dedup();
    let there = there(connection, kept, table, &events).await?;
    Ok((there <= KEPT_ROWS_MAX && events.len() as i64 <= KEPT_ROWS_MAX).then_some(events))
}

/// The first and the last event of a month.
pub(super) fn ends_of(kept: HistoryTable, table: &str) -> String {
    let key = key(kept);
    let ends = |of: &str| {
        format!(
            "SELECT (SELECT {key} FROM windlass.{table} t {of} ORDER BY {key} LIMIT 1) AS first,
                    (SELECT {key} FROM windlass.{table} t {of} ORDER BY {key} DESC LIMIT 1) AS last"
        )
    };
    match kept {
        HistoryTable::Events => format!(
            "SELECT min(r.first), max(r.last) FROM windlass.namespaces n CROSS JOIN LATERAL ({}) AS r",
            ends("WHERE t.namespace = n.namespace")
        ),
        HistoryTable::Attempts => ends(""),
    }
}

/// The first and the last event of the table, if any.
async fn range(connection: &mut PgConnection, kept: HistoryTable, table: &str) -> sqlx::Result<Option<(i64, i64)>> {
    let ends = sqlx::query_as(AssertSqlSafe(ends_of(kept, table)));
    let (first, last): (Option<i64>, Option<i64>) = ends.fetch_one(connection).await?;
    Ok(first.zip(last))
}

/// How many rows of the table belong to these events, counted up to the limit.
async fn there(
    connection: &mut PgConnection,
    kept: HistoryTable,
    table: &str,
    events: &[EventKey],
) -> sqlx::Result<i64> {
    let count = format!("SELECT count(*) FROM (SELECT FROM {} LIMIT $3) AS rows", rows_of(kept, table));
    let (namespaces, ids): (Vec<&str>, Vec<i64>) = events.iter().map(|(namespace, id)| (&**namespace, *id)).unzip();
    let query = sqlx::query_scalar(AssertSqlSafe(count)).bind(namespaces).bind(ids).bind(KEPT_ROWS_MAX + 1);
    query.fetch_one(connection).await
}
