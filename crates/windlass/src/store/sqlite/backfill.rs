//! Deliveries of past events for a new subscription.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::Connection;

use super::SqliteStore;
use super::enqueue::{Entry, enqueue};
use super::lanes::existing_lane;
use super::row;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::Event;
use crate::store::{BackfillStore, NewDelivery, PastEvents};
use crate::topology::Subscription;

#[async_trait]
impl BackfillStore for SqliteStore {
    async fn past_events(&self, namespace: &str, of: &Subscription, from: i64, limit: usize) -> Result<PastEvents> {
        let (namespace, of) = (namespace.to_owned(), of.clone());
        self.read(move |conn| past_events(conn, &namespace, &of, from, limit)).await
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
        let (namespace, name) = (namespace.to_owned(), subscription.to_owned());
        self.write(now, move |conn, now| backfill(conn, &namespace, &name, &deliveries, from, next, now)).await
    }
}

const PAST: &str = "
SELECT id FROM events INDEXED BY events_by_namespace
WHERE namespace = ?1 AND id >= ?2 AND created_at BETWEEN ?3 AND ?4 ORDER BY id LIMIT ?5";

fn past_events(conn: &Connection, namespace: &str, of: &Subscription, from: i64, limit: usize) -> Result<PastEvents> {
    let mut select = conn.prepare_cached(PAST)?;
    let (since, until) = (of.starts_at.timestamp_micros(), of.created_at.timestamp_micros());
    let ids = select.query_map((namespace, from, since, until, limit as i64), |row| row.get(0))?;
    let ids = ids.collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut events = Vec::with_capacity(ids.len());
    for event_id in &ids {
        events.extend(row::event(conn, namespace, *event_id)?);
    }
    let next = ids.last().filter(|_| ids.len() >= limit).map(|last| last + 1);
    Ok(PastEvents { events, next })
}

const NOTE_PLACE: &str = "
UPDATE subscriptions SET backfill_from = ?4
WHERE namespace = ?1 AND subscription = ?2 AND backfill_from = ?3 AND (?5 IS NULL OR subscription_id = ?5)";

fn backfill(
    conn: &Connection,
    namespace: &str,
    subscription: &str,
    deliveries: &[(Event, NewDelivery)],
    from: i64,
    next: Option<i64>,
    now: i64,
) -> Result<bool> {
    let subscription_id = deliveries.first().map(|(_, delivery)| delivery.subscription_id);
    if conn.prepare_cached(NOTE_PLACE)?.execute((namespace, subscription, from, next, subscription_id))? == 0 {
        return Ok(false);
    }
    for (event, delivery) in deliveries {
        if has_no_delivery(conn, event, delivery)? {
            let created_at = event.created_at.timestamp_micros();
            let entry = Entry {
                event_id: event.id,
                event_type: &event.event_type,
                priority: event.priority,
                group_id: event.group_id.as_deref(),
                expires_at: row::micros(event.expires_at),
                due_at: row::micros(event.run_at).map_or(created_at, |run_at| run_at.max(created_at)),
                attempts: 0,
                created_at,
                is_new: false,
                is_past: true,
            };
            let delivery = NewDelivery { lane_id: existing_lane(conn, event, delivery, now)?, ..delivery.clone() };
            enqueue(conn, namespace, &entry, &delivery, now)?;
        }
    }
    Ok(true)
}

const HAS_NO_DELIVERY: &str = "
SELECT EXISTS (SELECT 1 FROM events WHERE id = ?1)
   AND NOT EXISTS (SELECT 1 FROM arrivals WHERE namespace = ?4 AND event_id = ?1)
   AND NOT EXISTS (SELECT 1 FROM event_queue WHERE subscription_id = ?3 AND event_id = ?1)
   AND NOT EXISTS (SELECT 1 FROM event_attempts WHERE event_id = ?1 AND subscription = ?2)
   AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE event_id = ?1 AND subscription = ?2)";

/// Whether the event exists and is not an arrival, and the subscription never had a delivery of it.
fn has_no_delivery(conn: &Connection, event: &Event, delivery: &NewDelivery) -> Result<bool> {
    let mut select = conn.prepare_cached(HAS_NO_DELIVERY)?;
    let values = (event.id, &delivery.subscription, delivery.subscription_id, &event.namespace);
    Ok(select.query_row(values, |row| row.get(0))?)
}
