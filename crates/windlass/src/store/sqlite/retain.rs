//! Deleting history whose retention has passed.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::row::{self, INFINITY};
use super::writer::Durability;
use super::{SqliteStore, attempts, results};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::retention::{EndedDelivery, RetentionLeftover, RetentionMark, RetentionWalk, WalkPosition};
use crate::queue::handler_results::Clear;
use crate::store::{DeletedHistory, EndedPage, MarkStep, Retain, RetentionStore};

#[async_trait]
impl RetentionStore for SqliteStore {
    fn retain_batch(&self) -> usize {
        BATCH
    }

    async fn marks(&self, namespace: &str, walk: RetentionWalk) -> Result<Vec<RetentionMark>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| marks(conn, &namespace, walk)).await
    }

    async fn ended(
        &self,
        namespace: &str,
        walk: RetentionWalk,
        from: WalkPosition,
        until: Timestamp,
        limit: usize,
        now: Timestamp,
    ) -> Result<EndedPage> {
        let (namespace, until, now) = (namespace.to_owned(), until.timestamp_micros(), now.timestamp_micros());
        self.read(move |conn| ended(conn, &namespace, walk, from, until, limit, now)).await
    }

    async fn leftovers(
        &self,
        namespace: &str,
        rules: i64,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<RetentionLeftover>> {
        let (namespace, now) = (namespace.to_owned(), now.timestamp_micros());
        self.read(move |conn| leftovers(conn, &namespace, rules, limit, now)).await
    }

    async fn retain(&self, namespace: &str, retain: &Retain) -> Result<Option<DeletedHistory>> {
        let (namespace, deletion) = (namespace.to_owned(), retain.clone());
        // Relaxed: rows that come back after a power failure are deleted again.
        let work = move |conn: &Connection, _| delete(conn, &namespace, &deletion);
        self.writer.write(Durability::Relaxed, None, work).await
    }
}

/// Small, because other writes wait meanwhile.
const BATCH: usize = 100;

/// The maximum number of attempts, also of other namespaces, to read for a page.
const SCAN: usize = 2_000;

const MARKS: &str = "
SELECT keep_ms, rules, at, id, subscription_id FROM retention_marks WHERE namespace = ?1 AND walk = ?2";

fn marks(conn: &Connection, namespace: &str, walk: RetentionWalk) -> Result<Vec<RetentionMark>> {
    let mut select = conn.prepare_cached(MARKS)?;
    let marks = select.query_map((namespace, walk.as_str()), |row| {
        let position = WalkPosition { at: row.get(2)?, id: row.get(3)?, subscription_id: row.get(4)? };
        Ok(RetentionMark { keep_ms: row::count(row, 0)?, rules: row.get(1)?, position })
    })?;
    Ok(marks.collect::<rusqlite::Result<_>>()?)
}

fn ended(
    conn: &Connection,
    namespace: &str,
    walk: RetentionWalk,
    from: WalkPosition,
    until: i64,
    limit: usize,
    now: i64,
) -> Result<EndedPage> {
    match walk {
        RetentionWalk::Attempts => attempts(conn, namespace, from, until, limit, now),
        RetentionWalk::DeadLetters => dead_letters(conn, namespace, from, until, limit),
    }
}

/// Rows are appended in the order of time. Rowids are reused after the last rows were deleted: then a later row may
/// precede the mark.
const BEGIN: &str = "
SELECT rowid FROM event_attempts WHERE rowid BETWEEN 1 AND ?1 AND finished_at <= ?2 ORDER BY rowid DESC LIMIT 1";

const ATTEMPTS: &str = "
SELECT rowid, finished_at, namespace, event_id, subscription_id, subscription, event_type FROM event_attempts
WHERE rowid > ?1 ORDER BY rowid LIMIT ?2";

fn attempts(
    conn: &Connection,
    namespace: &str,
    from: WalkPosition,
    until: i64,
    limit: usize,
    now: i64,
) -> Result<EndedPage> {
    let begin = conn.prepare_cached(BEGIN)?.query_row((from.id, from.at), |row| row.get(0)).optional()?;
    let mut page = EndedPage { next: WalkPosition { id: begin.unwrap_or(0), ..from }, ..EndedPage::default() };
    let mut select = conn.prepare_cached(ATTEMPTS)?;
    let mut rows = select.query((page.next.id, SCAN as i64))?;
    let mut seen = 0;
    while let Some(row) = rows.next()? {
        let (id, at): (i64, i64) = (row.get(0)?, row.get(1)?);
        // Rows that ended in the future do not stop the walk.
        if (until..=now).contains(&at) {
            return Ok(page);
        }
        if row.get_ref(2)?.as_str().is_ok_and(|of| of == namespace) {
            page.ended.push(attempt(row)?);
        }
        seen += 1;
        // Retention ignores marks in the future.
        page.next = WalkPosition { at: at.min(now), id, subscription_id: 0 };
        if page.ended.len() == limit || seen == SCAN {
            page.more = true;
            return Ok(page);
        }
    }
    Ok(page)
}

fn attempt(row: &Row) -> rusqlite::Result<EndedDelivery> {
    Ok(EndedDelivery {
        event_id: row.get(3)?,
        subscription_id: row.get(4)?,
        subscription: row.get(5)?,
        event_type: row.get(6)?,
        status: None,
        at: row::timestamp(row, 1)?,
    })
}

const DEAD_LETTERS: &str = "
SELECT event_id, subscription_id, subscription, event_type, status, failed_at
FROM dead_letters INDEXED BY dead_letters_by_time
WHERE namespace = ?1 AND failed_at >= ?2 AND (failed_at, event_id, subscription_id) > (?2, ?3, ?4) AND failed_at < ?5
ORDER BY failed_at, event_id, subscription_id LIMIT ?6";

fn dead_letters(conn: &Connection, namespace: &str, from: WalkPosition, until: i64, limit: usize) -> Result<EndedPage> {
    let mut select = conn.prepare_cached(DEAD_LETTERS)?;
    let letters =
        select.query_map((namespace, from.at, from.id, from.subscription_id, until, limit as i64), |row| {
            Ok(EndedDelivery {
                event_id: row.get(0)?,
                subscription_id: row.get(1)?,
                subscription: row.get(2)?,
                event_type: row.get(3)?,
                status: Some(row::parse_text(row, 4)?),
                at: row::timestamp(row, 5)?,
            })
        })?;
    let ended = letters.collect::<rusqlite::Result<Vec<EndedDelivery>>>()?;
    let position = |last: &EndedDelivery| WalkPosition {
        at: last.at.timestamp_micros(),
        id: last.event_id,
        subscription_id: last.subscription_id,
    };
    Ok(EndedPage { next: ended.last().map_or(from, position), more: ended.len() == limit, ended })
}

const LEFTOVERS: &str = "
SELECT event_id, subscription, since FROM (
    SELECT * FROM (SELECT * FROM retention_leftovers WHERE namespace = ?1 AND rules = ?2 AND look_at <= ?3 LIMIT ?4)
    UNION ALL SELECT * FROM (SELECT * FROM retention_leftovers WHERE namespace = ?1 AND rules < ?2 LIMIT ?4)
    UNION ALL SELECT * FROM (SELECT * FROM retention_leftovers WHERE namespace = ?1 AND rules > ?2 LIMIT ?4))
LIMIT ?4";

fn leftovers(conn: &Connection, namespace: &str, rules: i64, limit: usize, now: i64) -> Result<Vec<RetentionLeftover>> {
    let mut select = conn.prepare_cached(LEFTOVERS)?;
    let found = select.query_map((namespace, rules, now, limit as i64), |row| {
        Ok(RetentionLeftover { event_id: row.get(0)?, subscription: row.get(1)?, since: row::timestamp(row, 2)? })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

fn delete(conn: &Connection, namespace: &str, retain: &Retain) -> Result<Option<DeletedHistory>> {
    let current = row::version(conn, namespace)? == Some(retain.version);
    if !current || !move_mark(conn, namespace, retain.step.as_ref())? {
        return Ok(None);
    }
    let mut taken = DeletedHistory::default();
    for due in &retain.due {
        take(conn, namespace, due, &mut taken)?;
    }
    for leftover in &retain.settled {
        let since = leftover.since.timestamp_micros();
        conn.prepare_cached(SETTLE)?.execute((leftover.event_id, &leftover.subscription, namespace, since))?;
    }
    for (leftover, at) in &retain.later {
        let look_at = row::micros(*at).unwrap_or(INFINITY);
        look_later(conn, namespace, leftover, retain.rules, look_at)?;
    }
    Ok(Some(taken))
}

const FIRST_STEP: &str = "
INSERT INTO retention_marks (namespace, walk, keep_ms, rules, at, id, subscription_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO NOTHING";

const STEP: &str = "
UPDATE retention_marks SET rules = ?4, at = ?5, id = ?6, subscription_id = ?7
WHERE namespace = ?1 AND walk = ?2 AND keep_ms = ?3 AND rules = ?8 AND at = ?9 AND id = ?10 AND subscription_id = ?11";

/// Moves the mark. Returns `false` if it is not the expected one.
fn move_mark(conn: &Connection, namespace: &str, step: Option<&MarkStep>) -> Result<bool> {
    let Some(MarkStep { walk, from, to: RetentionMark { keep_ms, rules, position } }) = step else { return Ok(true) };
    let (walk, keep_ms) = (walk.as_str(), *keep_ms as i64);
    let moved = match from {
        None => {
            let new = (namespace, walk, keep_ms, rules, position.at, position.id, position.subscription_id);
            conn.prepare_cached(FIRST_STEP)?.execute(new)?
        }
        Some(RetentionMark { rules: old, position: from, .. }) => conn.prepare_cached(STEP)?.execute((
            namespace,
            walk,
            keep_ms,
            rules,
            position.at,
            position.id,
            position.subscription_id,
            old,
            from.at,
            from.id,
            from.subscription_id,
        ))?,
    };
    Ok(moved == 1)
}

const DELETE_LETTER: &str = "DELETE FROM dead_letters WHERE event_id = ?1 AND subscription_id = ?2 AND failed_at = ?3";

const IS_OVER: &str = "
SELECT NOT EXISTS (SELECT 1 FROM event_queue WHERE event_id = ?1 AND subscription_id =
                   (SELECT subscription_id FROM subscriptions WHERE namespace = ?4 AND subscription = ?2))
   AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE event_id = ?1 AND subscription = ?2)
   AND NOT EXISTS (SELECT 1 FROM event_attempts INDEXED BY event_attempts_by_event
                   WHERE event_id = ?1 AND subscription = ?2 AND finished_at > ?3)";

fn take(conn: &Connection, namespace: &str, due: &EndedDelivery, taken: &mut DeletedHistory) -> Result<()> {
    let at = due.at.timestamp_micros();
    if due.status.is_some() && conn.prepare_cached(DELETE_LETTER)?.execute((due.event_id, due.subscription_id, at))? > 0
    {
        results::clear(conn, due.event_id, due.subscription_id, Clear::All)?;
        taken.dead_letters += 1;
    }
    let over = (due.event_id, &due.subscription, at, namespace);
    if conn.prepare_cached(IS_OVER)?.query_row(over, |row| row.get(0))? {
        taken.deliveries += 1;
        taken.events += attempts::forget(conn, namespace, due.event_id, &due.subscription)?;
    }
    Ok(())
}

// Skips leftovers that have ended again meanwhile.
const SETTLE: &str = "
DELETE FROM retention_leftovers WHERE event_id = ?1 AND subscription = ?2 AND namespace = ?3 AND since <= ?4";

const LOOK_LATER: &str = "
INSERT INTO retention_leftovers (event_id, subscription, namespace, since, rules, look_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE SET since = excluded.since, rules = excluded.rules, look_at = excluded.look_at
WHERE since <= excluded.since";

fn look_later(
    conn: &Connection,
    namespace: &str,
    leftover: &RetentionLeftover,
    rules: i64,
    look_at: i64,
) -> Result<()> {
    let since = leftover.since.timestamp_micros();
    let row = (leftover.event_id, &leftover.subscription, namespace, since, rules, look_at);
    conn.prepare_cached(LOOK_LATER)?.execute(row)?;
    Ok(())
}
