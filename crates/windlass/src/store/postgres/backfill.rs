//! Deliveries of past events for a new subscription.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::Connection as _;

use super::PgStore;
use super::enqueue::{Row, column, enqueue};
use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use super::row::event;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::Event;
use crate::store::{BackfillStore, NewDelivery, PastEvents};
use crate::topology::Subscription;

const PAST_EVENTS: &str = "
SELECT id, namespace, event_type, title, description, tags, payload::text AS payload, group_id, key, priority,
       producer, scheduled_task_id::text AS scheduled_task_id, run_at, expires_at, metadata::text AS metadata, created_at
FROM windlass.events WHERE namespace = $1 AND id >= $2 AND created_at BETWEEN $3 AND $4 ORDER BY id LIMIT $5";

const HAS_DELIVERY: &str = "
SELECT i.id FROM unnest($3::bigint[]) AS i(id)
WHERE EXISTS (SELECT FROM windlass.subscriptions s JOIN windlass.event_queue q USING (subscription_id)
              WHERE s.namespace = $1 AND s.subscription = $2 AND q.event_id = i.id)
   OR EXISTS (SELECT FROM windlass.event_attempts a
              WHERE a.event_id = i.id AND a.namespace = $1 AND a.subscription = $2)";

// The row lock keeps retention from deleting these events before the commit, and skips deleted ones. The router
// delivers events that are still arrivals.
const STORED: &str = "
SELECT i.id FROM unnest($2::bigint[], $3::timestamptz[]) AS i(id, created_at)
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.events e WHERE e.id = i.id AND e.created_at = i.created_at AND e.namespace = $1
    LIMIT 1 FOR KEY SHARE) AS e
WHERE NOT EXISTS (SELECT FROM windlass.arrivals a WHERE a.namespace = $1 AND a.event_id = i.id)";

const BACKFILLED: &str = "
UPDATE windlass.subscriptions SET backfill_from = $4
WHERE namespace = $1 AND subscription = $2 AND backfill_from = $3";

#[async_trait]
impl BackfillStore for PgStore {
    async fn past_events(&self, namespace: &str, of: &Subscription, from: i64, limit: usize) -> Result<PastEvents> {
        let mut connection = self.reads.get().await?;
        let query = sqlx::query(PAST_EVENTS).bind(namespace).bind(from).bind(of.starts_at);
        let query = query.bind(of.created_at).bind(limit as i64);
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let events = rows.iter().map(event).collect::<Result<Vec<Event>>>()?;
        let next = if events.len() < limit { None } else { events.last().map(|event| event.id + 1) };
        Ok(PastEvents { events, next })
    }

    async fn backfill(
        &self,
        namespace: &str,
        subscription: &str,
        deliveries: Arc<[(Event, NewDelivery)]>,
        from: i64,
        next: Option<i64>,
        now: Option<Timestamp>,
    ) -> Result<bool> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            // The row lock on the subscription keeps two processes from adding the same page concurrently.
            let note = sqlx::query(BACKFILLED).bind(namespace).bind(subscription).bind(from).bind(next);
            if note.execute(&mut *tx).await.map_err(from_sqlx)?.rows_affected() == 0 {
                tx.rollback().await.map_err(from_sqlx)?;
                connection.done();
                return Ok(false);
            }
            let ids = column(&deliveries, |(event, _)| event.id);
            let stored = sqlx::query_scalar(STORED).bind(namespace).bind(&ids);
            let stored = stored.bind(column(&deliveries, |(event, _)| event.created_at));
            let stored: Vec<i64> = stored.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
            let there = sqlx::query_scalar(HAS_DELIVERY).bind(namespace).bind(subscription).bind(ids);
            let there: Vec<i64> = there.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
            let missing =
                deliveries.iter().filter(|(event, _)| stored.contains(&event.id) && !there.contains(&event.id));
            let rows: Vec<Row<'_>> = missing.map(|(event, delivery)| row(event, delivery)).collect();
            enqueue(&mut tx, namespace, &rows, now).await?;
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            self.notify_anywhere(namespace);
            Ok(true)
        })
    }
}

fn row<'a>(event: &'a Event, delivery: &'a NewDelivery) -> Row<'a> {
    Row {
        event_id: event.id,
        created_at: event.created_at,
        delivery,
        event_type: &event.event_type,
        tags: &event.tags,
        priority: event.priority,
        group_id: event.group_id.as_deref(),
        expires_at: event.expires_at,
        run_at: Some(event.run_at.map_or(event.created_at, |run_at| run_at.max(event.created_at))),
        attempts: 0,
        is_past: true,
    }
}
