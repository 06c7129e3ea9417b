//! Explaining one delivery, and recording the consumers that request deliveries.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection};

use super::error::from_sqlx;
use super::inspect::{SNAPSHOT, deliveries};
use super::row::get;
use super::{PgStore, to_json};
use crate::clock::{Timestamp, micros};
use crate::error::{Error, Result};
use crate::observe::consumers::{Consumer, ConsumerView};
use crate::store::{DeliveryState, ExplainStore, GroupHead};
use crate::topology::lanes::split_tags;

// `ahead`: the delivery of the group that is ready or in progress, or else the first waiting one (in a run, it may be
// in progress).
const STANDING: &str = "
SELECT coalesce($4, now()) AS now, e.event_type, e.tags, q.expires_at, q.due_at, d.reason, a.event_id, a.worker_id, a.ready_at
FROM (SELECT e.event_type, e.tags FROM windlass.events e WHERE e.namespace = $1 AND e.id = $3 LIMIT 1) AS e
LEFT JOIN LATERAL (SELECT q.expires_at, q.group_id, q.due_at FROM windlass.event_queue q
    WHERE q.subscription_id = (SELECT s.subscription_id FROM windlass.subscriptions s
                               WHERE s.namespace = $1 AND s.subscription = $2)
      AND q.event_id BETWEEN $3 AND $3
    ORDER BY q.event_id LIMIT 1) AS q ON true
LEFT JOIN LATERAL (SELECT d.reason FROM windlass.dead_letters d
    WHERE d.event_id BETWEEN $3 AND $3 AND d.namespace = $1 AND d.subscription = $2
    ORDER BY d.event_id LIMIT 1) AS d ON true
LEFT JOIN LATERAL (
    SELECT g.event_id, CASE WHEN g.lease IS NOT NULL THEN g.worker_id END AS worker_id,
           nullif(g.ready_at, 'infinity') AS ready_at
    FROM (
        SELECT * FROM (
            SELECT g.event_id, g.lease, g.worker_id, g.ready_at FROM windlass.event_queue g
            WHERE g.group_id = q.group_id AND g.subscription = $2 AND g.namespace = $1 AND isfinite(g.ready_at)
            LIMIT 1) AS ready
        UNION ALL
        SELECT * FROM (
            SELECT g.event_id, g.lease, g.worker_id, g.ready_at FROM windlass.event_queue g
            WHERE g.group_id = q.group_id AND g.subscription = $2 AND g.namespace = $1 AND NOT isfinite(g.ready_at)
            ORDER BY g.due_at, g.event_id LIMIT 1) AS waiting
        LIMIT 1) AS g) AS a ON a.event_id <> $3";

async fn delivery_state(
    connection: &mut PgConnection,
    namespace: &str,
    subscription: &str,
    event_id: i64,
    now: Option<Timestamp>,
) -> Result<Option<DeliveryState>> {
    let query = sqlx::query(STANDING).bind(namespace).bind(subscription).bind(event_id).bind(now);
    let Some(row) = query.fetch_optional(&mut *connection).await.map_err(from_sqlx)? else { return Ok(None) };
    let of_event = deliveries(connection, namespace, &[event_id]).await?.remove(&event_id).unwrap_or_default();
    let Some(delivery) = of_event.into_iter().find(|delivery| delivery.subscription == subscription) else {
        return Ok(None);
    };
    let ahead = match get::<Option<i64>>(&row, "event_id")? {
        Some(event_id) => {
            Some(GroupHead { event_id, worker_id: get(&row, "worker_id")?, ready_at: get(&row, "ready_at")? })
        }
        None => None,
    };
    let tags = split_tags(&get::<String>(&row, "tags")?);
    Ok(Some(DeliveryState {
        now: get(&row, "now")?,
        event_type: get(&row, "event_type")?,
        tags: tags.iter().map(|tag| tag.trim().to_owned()).collect(),
        delivery,
        expires_at: get(&row, "expires_at")?,
        due_at: get(&row, "due_at")?,
        ahead,
        dead_because: get(&row, "reason")?,
    }))
}

const NOTE: &str = "
INSERT INTO windlass.consumers (namespace, process, filter_id, subscription, types, except_types, tags, worker_id, seen_at)
SELECT $1, $2, i.filter_id, i.subscription, i.types::json, i.except_types::json, i.tags::json, i.worker_id,
       coalesce($3, now())
FROM unnest($4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[])
     AS i(filter_id, subscription, types, except_types, tags, worker_id)
ON CONFLICT (namespace, process, filter_id) DO UPDATE SET worker_id = excluded.worker_id, seen_at = excluded.seen_at";

const ASKERS: &str = "
SELECT process, worker_id, nullif(subscription, '') AS subscription, types::text, except_types::text, tags::text, seen_at
FROM windlass.consumers WHERE namespace = $1 ORDER BY process, subscription, filter_id";

const PRUNE: &str = "
DELETE FROM windlass.consumers WHERE ctid = ANY(ARRAY(
    SELECT a.ctid FROM windlass.consumers a
    WHERE a.namespace = $1 AND a.seen_at < coalesce($3, now()) - $4 * interval '1 microsecond'
    LIMIT $2 FOR UPDATE SKIP LOCKED)) AND namespace = $1";

fn consumer(row: &PgRow) -> Result<ConsumerView> {
    let list = |column: &str| {
        let text: &str = row.try_get(column).map_err(from_sqlx)?;
        serde_json::from_str(text)
            .map_err(|error| Error::Database { detail: format!("stored JSON is damaged: {error}") })
    };
    Ok(ConsumerView {
        process: get(row, "process")?,
        worker_id: get(row, "worker_id")?,
        subscription: get(row, "subscription")?,
        types: list("types")?,
        except_types: list("except_types")?,
        tags: list("tags")?,
        seen_at: get(row, "seen_at")?,
    })
}

fn lists(consumers: &[Consumer], list: impl Fn(&Consumer) -> &Vec<String>) -> Result<Vec<String>> {
    consumers.iter().map(|consumer| to_json(list(consumer))).collect()
}

#[async_trait]
impl ExplainStore for PgStore {
    async fn delivery_state(
        &self,
        namespace: &str,
        subscription: &str,
        event_id: i64,
        now: Option<Timestamp>,
    ) -> Result<Option<DeliveryState>> {
        let mut connection = self.reads.get().await?;
        let mut snapshot = connection.begin_with(SNAPSHOT).await.map_err(from_sqlx)?;
        let standing = delivery_state(&mut snapshot, namespace, subscription, event_id, now).await?;
        snapshot.commit().await.map_err(from_sqlx)?;
        connection.done();
        Ok(standing)
    }

    async fn record_consumers(
        &self,
        namespace: &str,
        process: &str,
        consumers: &[Consumer],
        now: Option<Timestamp>,
    ) -> Result<()> {
        let mut connection = self.reads.get().await?;
        let note = sqlx::query(NOTE)
            .bind(namespace)
            .bind(process)
            .bind(now)
            .bind(consumers.iter().map(Consumer::filter_id).collect::<Vec<_>>())
            .bind(consumers.iter().map(|consumer| consumer.subscription.as_str()).collect::<Vec<_>>())
            .bind(lists(consumers, |consumer| &consumer.types)?)
            .bind(lists(consumers, |consumer| &consumer.except_types)?)
            .bind(lists(consumers, |consumer| &consumer.tags)?)
            .bind(consumers.iter().map(|consumer| consumer.worker_id.as_str()).collect::<Vec<_>>());
        note.execute(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(())
    }

    async fn consumers(&self, namespace: &str) -> Result<Vec<ConsumerView>> {
        let mut connection = self.reads.get().await?;
        let rows = sqlx::query(ASKERS).bind(namespace).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        rows.iter().map(consumer).collect()
    }

    async fn prune_consumers(
        &self,
        namespace: &str,
        kept: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let mut connection = self.maintenance.get().await?;
        let prune = sqlx::query(PRUNE).bind(namespace).bind(limit as i64).bind(now).bind(micros(kept));
        let pruned = prune.execute(&mut *connection).await.map_err(from_sqlx)?.rows_affected();
        connection.done();
        Ok(pruned as usize)
    }
}
