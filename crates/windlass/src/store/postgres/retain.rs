//! Deleting history whose retention has passed, row by row. `months.rs` drops whole months.

use async_trait::async_trait;

use sqlx::postgres::PgRow;

use sqlx::{Connection as _, PgConnection};

use super::enqueue::column;

use super::error::from_sqlx;

use super::retry::retry_deadlocks;

use super::row::get;

use super::{PgStore, topology};

use crate::clock::{Timestamp, from_micros};

use crate::error::Result;

use crate::maintenance::retention::{EndedDelivery, RetentionLeftover, RetentionMark, RetentionWalk, WalkPosition};

use crate::store::{DeletedHistory, EndedPage, MarkStep, MonthStore, Retain, RetentionStore};

/// A batch takes some tens of milliseconds.
pub(super) const BATCH: usize = 1_000;

const MARKS: &str =
    "SELECT keep_ms, rules, at, id, subscription_id FROM windlass.retention_marks WHERE namespace = $1 AND walk = $2";

// The separate condition on the time lets the index scan start there; a comparison of pairs would not.
pub(super) const ATTEMPTS: &str = "
SELECT a.event_id, a.subscription_id AS of_subscription, a.subscription, a.event_type, NULL::text AS status,
       a.finished_at AS at, a.id, 0::bigint AS subscription_id
FROM windlass.event_attempts a
WHERE a.namespace = $1 AND a.finished_at >= $2 AND (a.finished_at, a.id) > ($2, $3) AND a.finished_at < $5
  AND $4::bigint IS NOT NULL
ORDER BY a.finished_at, a.id LIMIT $6";

pub(super) const DEAD_LETTERS: &str = "
SELECT d.event_id, d.subscription_id AS of_subscription, d.subscription, d.event_type, d.status, d.failed_at AS at,
       d.event_id AS id, d.subscription_id
FROM windlass.dead_letters d
WHERE d.namespace = $1 AND d.failed_at >= $2 AND (d.failed_at, d.event_id, d.subscription_id) > ($2, $3, $4)
  AND d.failed_at < $5
ORDER BY d.failed_at, d.event_id, d.subscription_id LIMIT $6";

pub(super) const LEFTOVERS: &str = "
(SELECT event_id, subscription, since FROM windlass.retention_leftovers
 WHERE namespace = $1 AND rules = $2 AND look_at <= $3 LIMIT $4)
UNION ALL
(SELECT event_id, subscription, since FROM windlass.retention_leftovers WHERE namespace = $1 AND rules < $2 LIMIT $4)
UNION ALL
(SELECT event_id, subscription, since FROM windlass.retention_leftovers WHERE namespace = $1 AND rules > $2 LIMIT $4)
LIMIT $4";

#[async_trait]
impl RetentionStore for PgStore {
    fn retain_batch(&self) -> usize {
        BATCH
    }

    fn by_months(&self) -> Option<&dyn MonthStore> {
        Some(self)
    }

    async fn marks(&self, namespace: &str, walk: RetentionWalk) -> Result<Vec<RetentionMark>> {
        let mut connection = self.maintenance.get().await?;
        let query = sqlx::query(MARKS).bind(namespace).bind(walk.as_str());
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let mark = |row: &PgRow| {
            Ok(RetentionMark {
                keep_ms: get::<i64>(row, "keep_ms")?.unsigned_abs(),
                rules: get(row, "rules")?,
                position: position(row, "at")?,
            })
        };
        rows.iter().map(mark).collect()
    }

    async fn ended(
        &self,
        namespace: &str,
        walk: RetentionWalk,
        from: WalkPosition,
        until: Timestamp,
        limit: usize,
        _now: Timestamp,
    ) -> Result<EndedPage> {
        let sql = match walk {
            RetentionWalk::Attempts => ATTEMPTS,
            RetentionWalk::DeadLetters => DEAD_LETTERS,
        };
        let mut connection = self.maintenance.get().await?;
        let query =
            sqlx::query(sql).bind(namespace).bind(from_micros(from.at)).bind(from.id).bind(from.subscription_id);
        let query = query.bind(until).bind(limit as i64);
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let next = rows.last().map_or(Ok(from), |row| position(row, "at"))?;
        Ok(EndedPage { ended: rows.iter().map(end).collect::<Result<_>>()?, next, more: rows.len() == limit })
    }

    async fn leftovers(
        &self,
        namespace: &str,
        rules: i64,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<RetentionLeftover>> {
        let mut connection = self.maintenance.get().await?;
        let query = sqlx::query(LEFTOVERS).bind(namespace).bind(rules).bind(now).bind(limit as i64);
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let leftover = |row: &PgRow| {
            let (event_id, subscription, since) =
                (get(row, "event_id")?, get(row, "subscription")?, get(row, "since")?);
            Ok(RetentionLeftover { event_id, subscription, since })
        };
        rows.iter().map(leftover).collect()
    }

    async fn retain(&self, namespace: &str, retain: &Retain) -> Result<Option<DeletedHistory>> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            let current = topology::lock_shared(&mut tx, namespace, Some(retain.version)).await?;
            let taken = if current && move_mark(&mut tx, namespace, retain.step.as_ref()).await? {
                let taken = take(&mut tx, namespace, retain).await?;
                tx.commit().await.map_err(from_sqlx)?;
                Some(taken)
            } else {
                tx.rollback().await.map_err(from_sqlx)?;
                None
            };
            connection.done();
            Ok(taken)
        })
    }
}

fn position(row: &PgRow, at: &'static str) -> Result<WalkPosition> {
    let (at, id, subscription_id) =
        (get::<Timestamp>(row, at)?.timestamp_micros(), get(row, "id")?, get(row, "subscription_id")?);
    Ok(WalkPosition { at, id, subscription_id })
}

fn end(row: &PgRow) -> Result<EndedDelivery> {
    let status: Option<String> = get(row, "status")?;
    Ok(EndedDelivery {
        event_id: get(row, "event_id")?,
        subscription_id: get(row, "of_subscription")?,
        subscription: get(row, "subscription")?,
        event_type: get(row, "event_type")?,
        status: status.map(|status| status.parse()).transpose()?,
        at: get(row, "at")?,
    })
}

const FIRST_STEP: &str = "
INSERT INTO windlass.retention_marks (namespace, walk, keep_ms, rules, at, id, subscription_id)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";

const STEP: &str = "
UPDATE windlass.retention_marks SET rules = $4, at = $5, id = $6, subscription_id = $7
WHERE namespace = $1 AND walk = $2 AND keep_ms = $3 AND rules = $8 AND at = $9 AND id = $10 AND subscription_id = $11";

/// Moves the mark. Returns `false` if it is not the expected one.
async fn move_mark(connection: &mut PgConnection, namespace: &str, step: Option<&MarkStep>) -> Result<bool> {
    let Some(MarkStep { walk, from, to }) = step else { return Ok(true) };
    let query = sqlx::query(if from.is_some() { STEP } else { FIRST_STEP });
    let query = query.bind(namespace).bind(walk.as_str()).bind(to.keep_ms as i64).bind(to.rules);
    let mut query = query.bind(from_micros(to.position.at)).bind(to.position.id).bind(to.position.subscription_id);
    if let Some(RetentionMark { rules, position, .. }) = from {
        query = query.bind(rules).bind(from_micros(position.at)).bind(position.id).bind(position.subscription_id);
    }
    Ok(query.execute(connection).await.map_err(from_sqlx)?.rows_affected() == 1)
}

async fn take(connection: &mut PgConnection, namespace: &str, retain: &Retain) -> Result<DeletedHistory> {
    let mut taken = DeletedHistory::default();
    if !retain.due.is_empty() {
        let mut ids = column(&retain.due, |due| due.event_id);
        ids.dedup();
        lock(connection, namespace, &ids).await?;
        taken.dead_letters = delete_letters(connection, namespace, &retain.due).await?;
        taken.deliveries = delete_attempts(connection, namespace, &retain.due).await?;
        taken.events = delete_events(connection, namespace, &ids).await?;
    }
    look_later(connection, namespace, retain).await?;
    Ok(taken)
}

// Transactions that add or delete a delivery of a stored event take this lock, so the statements after it see their
// changes.
pub(super) const LOCK: &str = "
SELECT 1 FROM unnest($2::bigint[]) AS i(id)
CROSS JOIN LATERAL (SELECT 1 FROM windlass.events e WHERE e.id = i.id AND e.namespace = $1 LIMIT 1 FOR UPDATE) AS e";

/// Locks in the order of ids.
pub(super) async fn lock(connection: &mut PgConnection, namespace: &str, event_ids: &[i64]) -> Result<()> {
    let lock = sqlx::query(LOCK).bind(namespace).bind(event_ids);
    lock.execute(connection).await.map_err(from_sqlx).map(drop)
}

pub(super) const DELETE_LETTERS: &str = "
WITH found AS MATERIALIZED (
    SELECT d.tid FROM unnest($2::bigint[], $3::bigint[], $4::timestamptz[]) AS i(event_id, subscription_id, failed_at)
    CROSS JOIN LATERAL (
        SELECT d.ctid AS tid FROM windlass.dead_letters d
        WHERE d.event_id BETWEEN i.event_id AND i.event_id AND d.subscription_id = i.subscription_id AND d.namespace = $1
          AND d.failed_at = i.failed_at
        ORDER BY d.event_id LIMIT 1) AS d
), gone AS (
    DELETE FROM windlass.dead_letters d USING found WHERE d.ctid = found.tid AND (d.namespace = $1) IS TRUE
    RETURNING d.event_id, d.subscription_id
), results AS MATERIALIZED (
    SELECT r.tid FROM gone CROSS JOIN LATERAL (
        SELECT r.ctid AS tid FROM windlass.handler_results r
        WHERE r.event_id = gone.event_id AND r.subscription_id = gone.subscription_id AND r.namespace = $1 OFFSET 0) AS r
), cleared AS (
    DELETE FROM windlass.handler_results r USING results WHERE r.ctid = results.tid AND r.namespace = $1
)
SELECT FROM gone";

async fn delete_letters(connection: &mut PgConnection, namespace: &str, due: &[EndedDelivery]) -> Result<usize> {
    let letters: Vec<&EndedDelivery> = due.iter().filter(|due| due.status.is_some()).collect();
    if letters.is_empty() {
        return Ok(0);
    }
    let query = sqlx::query(DELETE_LETTERS)
        .bind(namespace)
        .bind(column(&letters, |letter| letter.event_id))
        .bind(column(&letters, |letter| letter.subscription_id))
        .bind(column(&letters, |letter| letter.at));
    Ok(query.execute(connection).await.map_err(from_sqlx)?.rows_affected() as usize)
}

// Rows of a partitioned table are identified by partition and ctid. The namespace is compared `IS TRUE` so that the
// planner cannot use an index for it, or it might scan all entries of a month that statistics call empty. The ORDER BY
// on the event id, of which there is one, leaves only the index on it.
pub(super) const DELETE_ATTEMPTS: &str = "
WITH over AS MATERIALIZED (
    SELECT i.event_id, i.subscription
    FROM unnest($2::bigint[], $3::text[], $4::timestamptz[]) AS i(event_id, subscription, at)
    WHERE NOT EXISTS (SELECT FROM windlass.subscriptions s CROSS JOIN LATERAL (
                          SELECT FROM windlass.event_queue q
                          WHERE q.subscription_id = s.subscription_id AND q.event_id BETWEEN i.event_id AND i.event_id
                          ORDER BY q.event_id LIMIT 1) AS q
                      WHERE s.namespace = $1 AND s.subscription = i.subscription)
      AND NOT EXISTS (SELECT FROM windlass.dead_letters d
                      WHERE d.event_id BETWEEN i.event_id AND i.event_id AND d.namespace = $1
                        AND d.subscription = i.subscription ORDER BY d.event_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM windlass.event_attempts a
                      WHERE a.event_id BETWEEN i.event_id AND i.event_id AND a.namespace = $1
                        AND a.subscription = i.subscription AND a.finished_at > i.at ORDER BY a.event_id OFFSET 0)
), found AS MATERIALIZED (
    SELECT a.part, a.tid FROM over CROSS JOIN LATERAL (
        SELECT a.tableoid AS part, a.ctid AS tid FROM windlass.event_attempts a
        WHERE a.event_id BETWEEN over.event_id AND over.event_id AND a.namespace = $1
          AND a.subscription = over.subscription ORDER BY a.event_id OFFSET 0) AS a
), gone AS (
    DELETE FROM windlass.event_attempts a USING found
    WHERE a.ctid = found.tid AND a.tableoid = found.part AND (a.namespace = $1) IS TRUE
)
SELECT FROM over";

async fn delete_attempts(connection: &mut PgConnection, namespace: &str, due: &[EndedDelivery]) -> Result<usize> {
    let query = sqlx::query(DELETE_ATTEMPTS)
        .bind(namespace)
        .bind(column(due, |due| due.event_id))
        .bind(column(due, |due| due.subscription.as_str()))
        .bind(column(due, |due| due.at));
    Ok(query.execute(connection).await.map_err(from_sqlx)?.rows_affected() as usize)
}

pub(super) const DELETE_EVENTS: &str = "
WITH found AS MATERIALIZED (
    SELECT e.part, e.tid FROM unnest($2::bigint[]) AS i(id)
    CROSS JOIN LATERAL (
        SELECT e.tableoid AS part, e.ctid AS tid FROM windlass.events e WHERE e.id = i.id AND e.namespace = $1
        LIMIT 1) AS e
    WHERE NOT EXISTS (SELECT FROM windlass.subscriptions s CROSS JOIN LATERAL (
                          SELECT FROM windlass.event_queue q
                          WHERE q.subscription_id = s.subscription_id AND q.event_id BETWEEN i.id AND i.id
                          ORDER BY q.event_id LIMIT 1) AS q
                      WHERE s.namespace = $1)
      AND NOT EXISTS (SELECT FROM windlass.dead_letters d
                      WHERE d.event_id BETWEEN i.id AND i.id AND d.namespace = $1 ORDER BY d.event_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM windlass.event_attempts a
                      WHERE a.event_id BETWEEN i.id AND i.id AND a.namespace = $1 ORDER BY a.event_id OFFSET 0)
)
DELETE FROM windlass.events e USING found
WHERE e.ctid = found.tid AND e.tableoid = found.part AND (e.namespace = $1) IS TRUE";

/// Deletes those of these events, which are locked, that nothing refers to. Returns how many.
pub(super) async fn delete_events(connection: &mut PgConnection, namespace: &str, event_ids: &[i64]) -> Result<usize> {
    let query = sqlx::query(DELETE_EVENTS).bind(namespace).bind(event_ids);
    Ok(query.execute(connection).await.map_err(from_sqlx)?.rows_affected() as usize)
}

// Skips leftovers that have ended again meanwhile.
pub(super) const SETTLE: &str = "
DELETE FROM windlass.retention_leftovers l
USING unnest($2::bigint[], $3::text[], $4::timestamptz[]) AS i(event_id, subscription, since)
CROSS JOIN LATERAL (
    SELECT f.ctid AS tid FROM windlass.retention_leftovers f
    WHERE f.event_id = i.event_id AND f.subscription = i.subscription AND f.namespace = $1 LIMIT 1) AS f
WHERE l.ctid = f.tid AND (l.namespace = $1) IS TRUE AND l.since <= i.since";

const LOOK_LATER: &str = "
INSERT INTO windlass.retention_leftovers (event_id, subscription, namespace, since, rules, look_at)
SELECT i.event_id, i.subscription, $1, i.since, $5, coalesce(i.look_at, 'infinity')
FROM unnest($2::bigint[], $3::text[], $4::timestamptz[], $6::timestamptz[]) AS i(event_id, subscription, since, look_at)
ON CONFLICT (event_id, subscription, namespace) DO UPDATE
SET since = excluded.since, rules = excluded.rules, look_at = excluded.look_at
WHERE retention_leftovers.since <= excluded.since";

async fn look_later(connection: &mut PgConnection, namespace: &str, retain: &Retain) -> Result<()> {
    let Retain { settled, later, rules, .. } = retain;
    if !settled.is_empty() {
        let settle = sqlx::query(SETTLE)
            .bind(namespace)
            .bind(column(settled, |leftover| leftover.event_id))
            .bind(column(settled, |leftover| leftover.subscription.as_str()))
            .bind(column(settled, |leftover| leftover.since));
        settle.execute(&mut *connection).await.map_err(from_sqlx)?;
    }
    if !later.is_empty() {
        let look = sqlx::query(LOOK_LATER)
            .bind(namespace)
            .bind(column(later, |(leftover, _)| leftover.event_id))
            .bind(column(later, |(leftover, _)| leftover.subscription.as_str()))
            .bind(column(later, |(leftover, _)| leftover.since))
            .bind(rules)
            .bind(column(later, |(_, at)| *at));
        look.execute(connection).await.map_err(from_sqlx)?;
    }
    Ok(())
}
