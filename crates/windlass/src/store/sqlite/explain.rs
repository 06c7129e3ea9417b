//! Explaining one delivery, and recording the consumers that request deliveries.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::row::{self, INFINITY};
use super::topology::to_json;
use super::writer::Durability;
use super::{SqliteStore, inspect};
use crate::clock::{Timestamp, from_micros, micros};
use crate::error::Result;
use crate::observe::consumers::{Consumer, ConsumerView};
use crate::store::{DeliveryState, ExplainStore, GroupHead};
use crate::topology::lanes::split_tags;

const HEAD: &str = "SELECT event_type, tags FROM events WHERE id = ?1 AND namespace = ?2";

const LIVE: &str = "
SELECT expires_at, group_id, due_at FROM event_queue
WHERE subscription_id = (SELECT subscription_id FROM subscriptions WHERE namespace = ?2 AND subscription = ?3)
  AND event_id = ?1";

const DEAD: &str = "SELECT reason FROM dead_letters WHERE event_id = ?1 AND namespace = ?2 AND subscription = ?3";

/// The index has the delivery that is ready or in progress before the waiting ones.
const AHEAD: &str = "
SELECT event_id, CASE WHEN lease IS NOT NULL THEN worker_id END, nullif(ready_at, ?4)
FROM event_queue INDEXED BY event_queue_group
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3
ORDER BY ready_at = 9223372036854775807, due_at, event_id LIMIT 1";

fn delivery_state(
    conn: &Connection,
    namespace: &str,
    subscription: &str,
    event_id: i64,
    now: i64,
) -> Result<Option<DeliveryState>> {
    let kind = |row: &Row| Ok((row.get(0)?, row.get::<_, String>(1)?));
    let found = conn.prepare_cached(HEAD)?.query_row((event_id, namespace), kind).optional()?;
    let delivery = inspect::deliveries(conn, namespace, event_id)?.remove(subscription);
    let (Some((event_type, tags)), Some(delivery)) = (found, delivery) else { return Ok(None) };
    let of_it = (event_id, namespace, subscription);
    let live = |row: &Row| {
        Ok((row::timestamp_or_null(row, 0)?, row.get::<_, Option<String>>(1)?, row::timestamp_or_null(row, 2)?))
    };
    let live = conn.prepare_cached(LIVE)?.query_row(of_it, live).optional()?;
    let (expires_at, group_id, due_at) = live.unwrap_or_default();
    let ahead = match group_id {
        Some(group_id) => ahead(conn, namespace, subscription, &group_id)?,
        None => None,
    };
    Ok(Some(DeliveryState {
        now: from_micros(now),
        event_type,
        tags: split_tags(&tags).iter().map(|tag| tag.trim().to_owned()).collect(),
        delivery,
        expires_at,
        due_at,
        ahead: ahead.filter(|ahead| ahead.event_id != event_id),
        dead_because: conn.prepare_cached(DEAD)?.query_row(of_it, |row| row.get(0)).optional()?,
    }))
}

fn ahead(conn: &Connection, namespace: &str, subscription: &str, group_id: &str) -> Result<Option<GroupHead>> {
    let mut select = conn.prepare_cached(AHEAD)?;
    let first = select.query_row((group_id, subscription, namespace, INFINITY), |row| {
        Ok(GroupHead { event_id: row.get(0)?, worker_id: row.get(1)?, ready_at: row::timestamp_or_null(row, 2)? })
    });
    Ok(first.optional()?)
}

const NOTE: &str = "
INSERT INTO consumers (namespace, process, filter_id, subscription, types, except_types, tags, worker_id, seen_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT DO UPDATE SET worker_id = excluded.worker_id, seen_at = excluded.seen_at";

fn note(conn: &Connection, namespace: &str, process: &str, consumers: &[Consumer], now: i64) -> Result<()> {
    let mut insert = conn.prepare_cached(NOTE)?;
    for consumer in consumers {
        let (types, except_types) = (to_json(&consumer.types)?, to_json(&consumer.except_types)?);
        let (id, subscription, tags) = (consumer.filter_id(), &consumer.subscription, to_json(&consumer.tags)?);
        insert.execute((namespace, process, id, subscription, types, except_types, tags, &consumer.worker_id, now))?;
    }
    Ok(())
}

const ASKERS: &str = "
SELECT process, worker_id, nullif(subscription, ''), types, except_types, tags, seen_at
FROM consumers WHERE namespace = ?1 ORDER BY process, subscription, filter_id";

fn consumers(conn: &Connection, namespace: &str) -> Result<Vec<ConsumerView>> {
    let mut select = conn.prepare_cached(ASKERS)?;
    let found = select.query_map([namespace], |row| {
        Ok(ConsumerView {
            process: row.get(0)?,
            worker_id: row.get(1)?,
            subscription: row.get(2)?,
            types: row::parse_json(row, 3)?,
            except_types: row::parse_json(row, 4)?,
            tags: row::parse_json(row, 5)?,
            seen_at: row::timestamp(row, 6)?,
        })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

const PRUNE: &str = "
DELETE FROM consumers WHERE namespace = ?1 AND (process, filter_id) IN (
    SELECT process, filter_id FROM consumers WHERE namespace = ?1 AND seen_at < ?3 LIMIT ?2)";

#[async_trait]
impl ExplainStore for SqliteStore {
    async fn delivery_state(
        &self,
        namespace: &str,
        subscription: &str,
        event_id: i64,
        now: Option<Timestamp>,
    ) -> Result<Option<DeliveryState>> {
        let (namespace, subscription, now) = (namespace.to_owned(), subscription.to_owned(), self.now(now));
        self.read(move |conn| delivery_state(conn, &namespace, &subscription, event_id, now)).await
    }

    async fn record_consumers(
        &self,
        namespace: &str,
        process: &str,
        consumers: &[Consumer],
        now: Option<Timestamp>,
    ) -> Result<()> {
        let (namespace, process, consumers) = (namespace.to_owned(), process.to_owned(), consumers.to_vec());
        let work = move |conn: &Connection, now| note(conn, &namespace, &process, &consumers, now);
        // A record that is lost in a power failure is written again by the next request.
        self.writer.write(Durability::Relaxed, row::micros(now), work).await
    }

    async fn consumers(&self, namespace: &str) -> Result<Vec<ConsumerView>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| consumers(conn, &namespace)).await
    }

    async fn prune_consumers(
        &self,
        namespace: &str,
        kept: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let namespace = namespace.to_owned();
        let work = move |conn: &Connection, now: i64| {
            let before = now.saturating_sub(micros(kept));
            Ok(conn.prepare_cached(PRUNE)?.execute((namespace, limit as i64, before))?)
        };
        self.write(now, work).await
    }
}
