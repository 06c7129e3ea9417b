//! The usual publish: one event for one subscription, ready immediately. The statement for batches takes the server
//! twice as long to start, which dominates the latency of a single event.

use sqlx::PgConnection;

use super::enqueue::signed;
use super::error::from_sqlx;
use super::publish::Batch;
use super::row::get;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::store::{NewDelivery, PreparedEvent, PublishOutcome};

/// The only event of a batch and its only delivery, if nothing else is to be stored.
pub(super) fn plain<'a>(batch: &Batch<'a>) -> Option<(&'a PreparedEvent, &'a NewDelivery)> {
    let ([prepared], [None]) = (batch.events, &batch.ids[..]) else { return None };
    let (event, [delivery]) = (&prepared.event, &prepared.deliveries[..]) else { return None };
    let at_once = event.run_at.is_none() && event.delay.is_none();
    let forever = event.expires_at.is_none() && prepared.expires_in.is_none();
    let alone = event.key.is_none() && event.group_id.is_none();
    (at_once && forever && alone).then_some((*prepared, delivery))
}

// Stores the same rows as `publish::INSERT`. The lock comes before `nextval`: see `publish::IDS`.
const INSERT_ONE: &str = "
WITH topology AS MATERIALIZED (
    SELECT windlass._hold_topology($1, $2) AS is_current
), new AS MATERIALIZED (
    SELECT nextval('windlass.events_id_seq') AS id FROM topology WHERE topology.is_current
), stored AS (
    INSERT INTO windlass.events (id, namespace, event_type, title, description, tags, payload, priority, producer,
        scheduled_task_id, metadata, created_at)
    SELECT id, $1, $4, $5, $6, $7, $8::json, $9, $10, $11::uuid, $12::json, coalesce($3, now()) FROM new
), queued AS (
    INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type, priority,
        out_of_order, ready_at, attempts_limit, max_retries, updated_at, created_at)
    SELECT id, $17, $13, $1, $14, $4, $9, $9 <> 0, coalesce($3, now()), $15, $16, coalesce($3, now()), coalesce($3, now())
    FROM new
)
SELECT id, coalesce($3, now()) AS created_at FROM new";

/// `None`: the namespace has another version.
pub(super) async fn insert_one(
    connection: &mut PgConnection,
    (namespace, version): (&str, i64),
    (prepared, delivery): (&PreparedEvent, &NewDelivery),
    now: Option<Timestamp>,
) -> Result<Option<PublishOutcome>> {
    let event = &prepared.event;
    let query = sqlx::query(INSERT_ONE)
        .bind(namespace)
        .bind(version)
        .bind(now)
        .bind(&event.event_type)
        .bind(&event.title)
        .bind(&event.description)
        .bind(&event.tags)
        .bind(event.payload.get())
        .bind(event.priority)
        .bind(&event.producer)
        .bind(&event.scheduled_task_id)
        .bind(event.metadata.as_deref().map(|metadata| metadata.get()))
        .bind(delivery.lane_id)
        .bind(&delivery.subscription)
        .bind(signed(delivery.attempts_limit))
        .bind(delivery.max_retries.map(signed))
        .bind(delivery.subscription_id);
    let Some(row) = query.fetch_optional(connection).await.map_err(from_sqlx)? else { return Ok(None) };
    Ok(Some(PublishOutcome::new(get(&row, "id")?, get(&row, "created_at")?)))
}
