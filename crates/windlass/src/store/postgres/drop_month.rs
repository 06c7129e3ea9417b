//! Taking a month out of the history.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, Executor, PgConnection};

use super::PgStore;
use super::error::from_sqlx;
use super::partitions::{BRIEFLY, LOOK_FOR_STRAYS, PAUSES_MS, TAKEN_OUT, is_busy, is_gone, is_refused, name};
use crate::error::Result;
use crate::maintenance::months::{Kept, Month, Part};
use crate::store::{DropOutcome, ExpiredMonths};

/// As many rows can be put aside in a moment.
const STAYING_MAX: i64 = 1_000;

/// What is still to be done takes a few statements.
const NOW_QUICKLY: &str = "SET LOCAL statement_timeout = '30ms'";

/// Any number will do, as long as no other program uses it for an advisory lock.
const MONTHS_LOCK: i64 = 0x0077_696e_6d6f_6e74;

pub(super) async fn drop_month(store: &PgStore, part: Part, over: &ExpiredMonths) -> Result<DropOutcome> {
    for pause in PAUSES_MS {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        // After a failure it is not given back, and closed.
        let mut connection = store.writes.get().await?;
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

async fn try_once(connection: &mut PgConnection, part: Part, over: &ExpiredMonths) -> sqlx::Result<DropOutcome> {
    // First without a lock, for which everybody would have to wait.
    match staying(connection, part, &name(part), over).await? {
        Some(_) => take_out(connection, part, over).await,
        None => Ok(DropOutcome::TooMuchStays),
    }
}

async fn take_out(connection: &mut PgConnection, part: Part, over: &ExpiredMonths) -> sqlx::Result<DropOutcome> {
    let (table, parent) = (name(part), part.0.as_str());
    let mut tx = connection.begin().await?;
    let lock = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)").bind(MONTHS_LOCK);
    if !lock.fetch_one(&mut *tx).await? {
        tx.rollback().await?;
        return Ok(DropOutcome::Busy);
    }
    if part.0 == Kept::Attempts {
        tx.execute(LOOK_FOR_STRAYS).await?;
    }
    tx.execute(BRIEFLY).await?;
    if !is_current(&mut tx, over).await? {
        tx.rollback().await?;
        return Ok(DropOutcome::Outdated);
    }
    // Not CONCURRENTLY: that cannot be where there is a default partition. Nothing here comes from outside.
    let detach = format!(
        "ALTER TABLE windlass.{parent} DETACH PARTITION windlass.{table};
         ALTER TABLE windlass.{table} RENAME TO {table}{TAKEN_OUT}"
    );
    tx.execute(AssertSqlSafe(detach)).await?;
    // From here on nobody can add to it, and everybody waits.
    tx.execute(NOW_QUICKLY).await?;
    let table = table + TAKEN_OUT;
    let Some(staying) = staying(&mut tx, part, &table, over).await? else {
        tx.rollback().await?;
        return Ok(DropOutcome::TooMuchStays);
    };
    if !staying.is_empty() {
        let put = format!("INSERT INTO windlass.{parent} SELECT t.* FROM {}", rows_of(part.0, &table));
        let (namespaces, ids): (Vec<String>, Vec<i64>) = staying.into_iter().unzip();
        sqlx::query(AssertSqlSafe(put)).bind(namespaces).bind(ids).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(DropOutcome::Dropped)
}

// Before all else, since others change the rules first, too, and the history then.
const HOLD_RULES: &str = "LOCK TABLE windlass.namespaces IN SHARE MODE";
const VERSION: &str = "SELECT sum(version)::bigint FROM windlass.namespaces";

/// Whether the rules are those by which it was decided. They stay so until the transaction ends.
async fn is_current(connection: &mut PgConnection, over: &ExpiredMonths) -> sqlx::Result<bool> {
    connection.execute(HOLD_RULES).await?;
    let version: Option<i64> = sqlx::query_scalar(VERSION).fetch_one(connection).await?;
    Ok(version == Some(over.version))
}

fn key(kept: Kept) -> &'static str {
    match kept {
        Kept::Events => "id",
        Kept::Attempts => "event_id",
    }
}

/// The rows of these events – $1 their namespaces, $2 their ids –, as `t`. A month of events is in the order of namespaces.
pub(super) fn rows_of(kept: Kept, table: &str) -> String {
    let of = match kept {
        Kept::Events => "t.namespace = i.namespace AND t.id = i.id",
        Kept::Attempts => "t.event_id = i.id",
    };
    format!(
        "unnest($1::text[], $2::bigint[]) AS i(namespace, id)
         CROSS JOIN LATERAL (SELECT * FROM windlass.{table} t WHERE {of} OFFSET 0) AS t"
    )
}

/// A namespace, and the id of an event of its own.
type Owned = (String, i64);

// Ids lead the keys of all that refers to an event, and grow with time: those of a month are a small range of them. Each
// is wanted once, however many deliveries it has: a list that was cut must be longer than what may stay.
const LIVE: &str = "
SELECT DISTINCT ON (q.event_id) q.namespace, q.event_id
FROM windlass.subscriptions s CROSS JOIN LATERAL (
    SELECT q.namespace, q.event_id FROM windlass.event_queue q
    WHERE q.subscription_id = s.subscription_id AND q.event_id BETWEEN $1 AND $2 AND ($3 OR q.attempts > 0)
      AND q.created_at < $4
    ORDER BY q.event_id LIMIT $5) AS q
ORDER BY q.event_id LIMIT $5";

// Events that no router has delivered yet.
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

/// The events of which something in this table must stay; `None`: too many. Of a month of attempts those stay whose
/// delivery is live, a dead letter, or ended later: which may be known of the event only.
async fn staying(
    connection: &mut PgConnection,
    (kept, month): Part,
    table: &str,
    over: &ExpiredMonths,
) -> sqlx::Result<Option<Vec<Owned>>> {
    let Some((first, last)) = range(connection, kept, table).await? else { return Ok(Some(Vec::new())) };
    let mut events: Vec<Owned> = Vec::new();
    let all = kept == Kept::Events;
    let (begins, ends) = (Month::begins(month), Month::ends(month));
    for sql in [LIVE, ARRIVED, DEAD] {
        let query = sqlx::query_as(sql).bind(first).bind(last).bind(all).bind(ends).bind(STAYING_MAX + 1);
        let query = if sql == DEAD { query.bind(begins) } else { query };
        events.extend(query.fetch_all(&mut *connection).await?);
    }
    let later = sqlx::query_as(ENDED_LATER).bind(first).bind(last).bind(over.before).bind(STAYING_MAX + 1);
    events.extend(later.fetch_all(&mut *connection).await?);
    for namespace in &over.spared {
        // Nothing else here comes from outside.
        let of_namespace =
            format!("SELECT namespace, {} FROM windlass.{table} WHERE namespace = $1 LIMIT $2", key(kept));
        let query = sqlx::query_as(AssertSqlSafe(of_namespace)).bind(namespace).bind(STAYING_MAX + 1);
        events.extend(query.fetch_all(&mut *connection).await?);
    }
    events.sort_unstable();
    events.dedup();
    let there = there(connection, kept, table, &events).await?;
    Ok((there <= STAYING_MAX && events.len() as i64 <= STAYING_MAX).then_some(events))
}

/// The first and the last event of a month.
pub(super) fn ends_of(kept: Kept, table: &str) -> String {
    let key = key(kept);
    let ends = |of: &str| {
        format!(
            "SELECT (SELECT {key} FROM windlass.{table} t {of} ORDER BY {key} LIMIT 1) AS first,
                    (SELECT {key} FROM windlass.{table} t {of} ORDER BY {key} DESC LIMIT 1) AS last"
        )
    };
    match kept {
        Kept::Events => format!(
            "SELECT min(r.first), max(r.last) FROM windlass.namespaces n CROSS JOIN LATERAL ({}) AS r",
            ends("WHERE t.namespace = n.namespace")
        ),
        Kept::Attempts => ends(""),
    }
}

/// The first and the last event of the table, if any.
async fn range(connection: &mut PgConnection, kept: Kept, table: &str) -> sqlx::Result<Option<(i64, i64)>> {
    let ends = sqlx::query_as(AssertSqlSafe(ends_of(kept, table)));
    let (first, last): (Option<i64>, Option<i64>) = ends.fetch_one(connection).await?;
    Ok(first.zip(last))
}

/// How many rows of the table belong to these events; no more than matters are counted.
async fn there(connection: &mut PgConnection, kept: Kept, table: &str, events: &[Owned]) -> sqlx::Result<i64> {
    let count = format!("SELECT count(*) FROM (SELECT FROM {} LIMIT $3) AS rows", rows_of(kept, table));
    let (namespaces, ids): (Vec<&str>, Vec<i64>) = events.iter().map(|(namespace, id)| (&**namespace, *id)).unzip();
    let query = sqlx::query_scalar(AssertSqlSafe(count)).bind(namespaces).bind(ids).bind(STAYING_MAX + 1);
    query.fetch_one(connection).await
}
