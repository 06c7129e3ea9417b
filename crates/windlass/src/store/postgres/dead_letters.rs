//! Dead letters: listing, redriving and purging them.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::Connection as _;
use sqlx::postgres::PgRow;

use super::enqueue::{Row, column, enqueue, signed};
use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use super::row::{count, count_or_none, event, get};
use super::{PgStore, topology};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::inspect::{DeadLetter, DeadLetterFilter, DeadLetterGroup, Page};
use crate::store::{DeadLetterStore, NewDelivery};

/// The condition of every statement with a filter; it binds $1 to $7.
macro_rules! matching {
    () => {
        "d.namespace = $1
  AND (cardinality($2::bigint[]) = 0 OR d.event_id = ANY($2))
  AND ($3::text IS NULL OR d.subscription = $3)
  AND ($4::text IS NULL OR d.status = $4)
  AND (cardinality($5::text[]) = 0 OR EXISTS (
        SELECT FROM unnest($5::text[]) AS p
        WHERE d.event_type = p OR (right(p, 1) = '*' AND starts_with(d.event_type, left(p, -1)))))
  AND ($6::text IS NULL OR d.reason = $6)
  AND ($7::timestamptz IS NULL OR d.failed_at < $7)"
    };
}

/// Joins only the listed rows with their events.
macro_rules! list {
    ($order:literal) => {
        concat!(
            "
SELECT d.subscription, d.status, d.reason, d.error, d.attempts, d.retry_count, d.max_retries, d.failed_at,
       e.id, e.namespace, e.event_type, e.title, e.description, e.tags,
       CASE WHEN $10 THEN 'null' ELSE e.payload::text END AS payload, e.group_id,
       e.key, e.priority, e.producer, e.scheduled_task_id::text AS scheduled_task_id, e.run_at, e.expires_at,
       e.metadata::text AS metadata, e.created_at
FROM (SELECT * FROM windlass.dead_letters d WHERE ",
            matching!(),
            " ORDER BY ",
            $order,
            " LIMIT $8 OFFSET $9) AS d
JOIN windlass.events e ON e.namespace = $1 AND e.id = d.event_id AND e.created_at = d.created_at ORDER BY ",
            $order
        )
    };
}

const NEWEST: &str = list!("d.failed_at DESC, d.event_id DESC");

const OLDEST: &str = list!("d.failed_at, d.event_id");

const COUNT: &str = concat!("SELECT count(*) FROM windlass.dead_letters d WHERE ", matching!());

const GROUPS: &str = "
SELECT d.reason, d.event_type, count(*) AS count, max(d.failed_at) AS newest_at
FROM (
    SELECT d.reason, d.event_type, d.failed_at FROM windlass.dead_letters d
    WHERE d.namespace = $1 ORDER BY d.failed_at DESC, d.event_id DESC LIMIT $2) AS d
GROUP BY 1, 2 ORDER BY 3 DESC, 4 DESC, 1, 2 LIMIT $3";

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

// The namespace is compared `IS TRUE`: see `retain::DELETE_ATTEMPTS`.
pub(super) const TAKE: &str = "
WITH taken AS (
    DELETE FROM windlass.dead_letters d
    USING (
        SELECT i.n, d.tid FROM unnest($2::bigint[], $3::text[]) WITH ORDINALITY AS i(event_id, subscription, n)
        CROSS JOIN LATERAL (
            SELECT d.ctid AS tid FROM windlass.dead_letters d
            WHERE d.event_id BETWEEN i.event_id AND i.event_id AND d.namespace = $1 AND d.subscription = i.subscription
            ORDER BY d.event_id LIMIT 1) AS d
    ) AS i
    WHERE d.ctid = i.tid AND (d.namespace = $1) IS TRUE
    RETURNING i.n, d.event_id, d.subscription_id, d.event_type, d.subscription, d.attempts, d.max_retries
), logged AS (
    INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, finished_at, action,
        retry_count, max_retries)
    SELECT event_id, subscription_id, event_type, attempts, $1, subscription, coalesce($4, now()), 'REDRIVEN', 0, max_retries FROM taken
)
SELECT n, coalesce($4, now()) AS now FROM taken ORDER BY n";

// The events stay; retention must check them again.
const PURGE: &str = concat!(
    "
WITH gone AS (
    DELETE FROM windlass.dead_letters WHERE (event_id, subscription_id) IN (
        SELECT d.event_id, d.subscription_id FROM windlass.dead_letters d WHERE ",
    matching!(),
    " ORDER BY d.failed_at LIMIT $8 FOR UPDATE OF d SKIP LOCKED)
    RETURNING event_id, subscription_id, subscription, failed_at
), left_over AS (
    INSERT INTO windlass.retention_leftovers (event_id, subscription, namespace, since, look_at)
    SELECT event_id, subscription, $1, max(failed_at), max(failed_at) FROM gone GROUP BY event_id, subscription
    ON CONFLICT (event_id, subscription, namespace) DO UPDATE
    SET since = excluded.since, rules = 0, look_at = excluded.look_at
), cleared AS (
    DELETE FROM windlass.handler_results r USING gone
    WHERE r.event_id = gone.event_id AND r.subscription_id = gone.subscription_id AND r.namespace = $1
)
SELECT FROM gone"
);

#[async_trait]
impl DeadLetterStore for PgStore {
    async fn dead_letters(&self, namespace: &str, filter: &DeadLetterFilter) -> Result<Page<DeadLetter>> {
        let mut connection = self.reads.get().await?;
        let list = if filter.oldest_first { OLDEST } else { NEWEST };
        let list = filtered(sqlx::query(list), namespace, filter).bind(filter.limit as i64).bind(filter.offset as i64);
        let list = list.bind(filter.without_payloads);
        let rows = list.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        let total =
            filtered(sqlx::query(COUNT), namespace, filter).fetch_one(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let items = rows.iter().map(dead_letter).collect::<Result<Vec<_>>>()?;
        Ok(Page { items, total: get::<i64>(&total, "count")?.unsigned_abs() })
    }

    async fn dead_letter_groups(&self, namespace: &str, rows: usize, limit: usize) -> Result<Vec<DeadLetterGroup>> {
        let mut connection = self.reads.get().await?;
        let query = sqlx::query(GROUPS).bind(namespace).bind(rows as i64).bind(limit as i64);
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let group = |row: &PgRow| {
            Ok(DeadLetterGroup {
                reason: get(row, "reason")?,
                event_type: get(row, "event_type")?,
                count: get::<i64>(row, "count")?.unsigned_abs(),
                newest_at: get(row, "newest_at")?,
            })
        };
        rows.iter().map(group).collect()
    }

    async fn redrive(
        &self,
        namespace: &str,
        letters: Arc<[(DeadLetter, NewDelivery)]>,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            // Waits for a concurrent removal of a subscription, which deletes its dead letters.
            topology::lock_shared(&mut tx, namespace, None).await?;
            let take = sqlx::query(TAKE)
                .bind(namespace)
                .bind(column(&letters, |(letter, _)| letter.event.id))
                .bind(column(&letters, |(letter, _)| letter.subscription.as_str()))
                .bind(now);
            let taken = take.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
            let mut rows = Vec::with_capacity(taken.len());
            for row in &taken {
                let (letter, delivery) = &letters[get::<i64>(row, "n")? as usize - 1];
                rows.push(redriven(letter, delivery, get(row, "now")?));
            }
            enqueue(&mut tx, namespace, &rows, now).await?;
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            self.notify_anywhere(namespace);
            Ok(taken.len())
        })
    }

    async fn purge(&self, namespace: &str, filter: &DeadLetterFilter, limit: usize) -> Result<usize> {
        let mut connection = self.reads.get().await?;
        let purge = filtered(sqlx::query(PURGE), namespace, filter).bind(limit as i64);
        let purged = purge.execute(&mut *connection).await.map_err(from_sqlx)?.rows_affected();
        connection.done();
        Ok(purged as usize)
    }
}

/// Binds $1 to $7.
fn filtered<'q>(query: Query<'q>, namespace: &'q str, filter: &'q DeadLetterFilter) -> Query<'q> {
    query
        .bind(namespace)
        .bind(&filter.event_ids)
        .bind(&filter.subscription)
        .bind(filter.status.map(|status| status.as_str()))
        .bind(&filter.types)
        .bind(&filter.reason)
        .bind(filter.failed_before)
}

fn dead_letter(row: &PgRow) -> Result<DeadLetter> {
    Ok(DeadLetter {
        event: event(row)?,
        subscription: get(row, "subscription")?,
        status: get::<String>(row, "status")?.parse()?,
        reason: get(row, "reason")?,
        error: get(row, "error")?,
        attempts: count(row, "attempts")?,
        retry_count: count(row, "retry_count")?,
        max_retries: count_or_none(row, "max_retries")?,
        failed_at: get(row, "failed_at")?,
    })
}

/// Ready immediately. A deadline that has passed no longer applies.
fn redriven<'a>(letter: &'a DeadLetter, delivery: &'a NewDelivery, now: Timestamp) -> Row<'a> {
    Row {
        event_id: letter.event.id,
        created_at: letter.event.created_at,
        delivery,
        event_type: &letter.event.event_type,
        tags: &letter.event.tags,
        priority: letter.event.priority,
        group_id: letter.event.group_id.as_deref(),
        expires_at: letter.event.expires_at.filter(|expires_at| *expires_at > now),
        run_at: None,
        attempts: signed(letter.attempts),
        is_past: false,
    }
}
