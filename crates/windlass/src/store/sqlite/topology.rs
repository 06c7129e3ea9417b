//! Namespaces and subscriptions.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};
use serde::Serialize;
use serde_json::value::RawValue;

use super::error::from_json;
use super::route::route_batch;
use super::{SqliteStore, row};
use crate::clock::{Timestamp, from_micros};
use crate::error::Result;
use crate::policy::NamespacePolicy;
use crate::store::{AddedSubscription, NewSubscription, RouteRequest, TopologyStore};
use crate::topology::{MAIN, Namespace, Subscription, Topology};

#[async_trait]
impl TopologyStore for SqliteStore {
    async fn topology(&self, namespace: &str) -> Result<Option<Topology>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| topology(conn, &namespace)).await
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.read(namespaces).await
    }

    async fn put_namespace(
        &self,
        namespace: &str,
        metadata: Option<&RawValue>,
        policy: Option<&NamespacePolicy>,
        now: Option<Timestamp>,
    ) -> Result<()> {
        let (namespace, metadata, policy) = (namespace.to_owned(), metadata.map(ToOwned::to_owned), policy.cloned());
        self.write(now, move |conn, now| {
            let metadata = metadata.as_deref().map(RawValue::get);
            put_namespace(conn, &namespace, metadata, policy.as_ref(), now)
        })
        .await
    }

    async fn pause_namespace(&self, namespace: &str, paused: bool) -> Result<()> {
        let namespace = namespace.to_owned();
        self.write(None, move |conn, _| pause_namespace(conn, &namespace, paused)).await
    }

    async fn pause_type(&self, namespace: &str, pattern: &str, paused: bool) -> Result<()> {
        let (namespace, pattern) = (namespace.to_owned(), pattern.to_owned());
        self.write(None, move |conn, _| pause_type(conn, &namespace, &pattern, paused)).await
    }

    async fn add_subscription(
        &self,
        route: &RouteRequest,
        new: &NewSubscription,
        now: Option<Timestamp>,
    ) -> Result<AddedSubscription> {
        let (route, new) = (route.clone(), new.clone());
        self.write(now, move |conn, now| add_subscription(conn, &route, &new, now)).await
    }

    async fn pause_subscription(&self, namespace: &str, subscription: &str, paused: bool) -> Result<bool> {
        let (namespace, name) = (namespace.to_owned(), subscription.to_owned());
        self.write(None, move |conn, _| pause_subscription(conn, &namespace, &name, paused)).await
    }

    async fn remove_subscription(&self, namespace: &str, subscription: &str) -> Result<bool> {
        let (namespace, name) = (namespace.to_owned(), subscription.to_owned());
        self.write(None, move |conn, _| remove_subscription(conn, &namespace, &name)).await
    }
}

const NAMESPACE: &str = "
SELECT namespace, metadata, policy, paused, paused_types, created_at, version
FROM namespaces WHERE namespace = ?1";

pub(super) fn topology(conn: &Connection, name: &str) -> Result<Option<Topology>> {
    let found = conn.prepare_cached(NAMESPACE)?.query_row([name], |row| Ok((namespace(row)?, row.get(6)?)));
    let Some((namespace, version)) = found.optional()? else { return Ok(None) };
    Ok(Some(Topology { namespace, version, subscriptions: subscriptions(conn, name)? }))
}

/// From the first columns of `NAMESPACE`.
fn namespace(row: &Row) -> rusqlite::Result<Namespace> {
    Ok(Namespace {
        namespace: row.get(0)?,
        metadata: row::json(row, 1)?,
        policy: row::parse_json(row, 2)?,
        paused: row.get(3)?,
        paused_types: row::parse_json(row, 4)?,
        created_at: row::timestamp(row, 5)?,
    })
}

const NAMESPACES: &str = "
SELECT namespace, metadata, policy, paused, paused_types, created_at FROM namespaces ORDER BY namespace";

fn namespaces(conn: &Connection) -> Result<Vec<Namespace>> {
    let mut select = conn.prepare_cached(NAMESPACES)?;
    Ok(select.query_map([], namespace)?.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn exists(conn: &Connection, namespace: &str) -> Result<bool> {
    Ok(row::version(conn, namespace)?.is_some())
}

const SUBSCRIPTIONS: &str = "
SELECT subscription_id, subscription, types, tags, policy, paused, starts_at, backfill_from, created_at
FROM subscriptions WHERE namespace = ?1 ORDER BY subscription";

fn subscriptions(conn: &Connection, namespace: &str) -> Result<Vec<Subscription>> {
    let mut select = conn.prepare_cached(SUBSCRIPTIONS)?;
    let found = select.query_map([namespace], |row| {
        Ok(Subscription {
            subscription_id: row.get(0)?,
            subscription: row.get(1)?,
            types: row::parse_json(row, 2)?,
            tags: row::parse_json(row, 3)?,
            policy: row::parse_json(row, 4)?,
            paused: row.get(5)?,
            starts_at: row::timestamp(row, 6)?,
            backfill_from: row.get(7)?,
            created_at: row::timestamp(row, 8)?,
        })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

const PUT_NAMESPACE: &str = "
INSERT INTO namespaces (namespace, metadata, policy, created_at)
VALUES (?1, coalesce(?2, '{}'), coalesce(?3, ?4), ?5)
ON CONFLICT (namespace) DO UPDATE
SET metadata = coalesce(?2, metadata), policy = coalesce(?3, policy), version = version + 1";

pub(super) fn put_namespace(
    conn: &Connection,
    namespace: &str,
    metadata: Option<&str>,
    policy: Option<&NamespacePolicy>,
    now: i64,
) -> Result<()> {
    let policy = policy.map(to_json).transpose()?;
    let usual = to_json(&NamespacePolicy::default())?;
    conn.prepare_cached(PUT_NAMESPACE)?.execute((namespace, metadata, policy, usual, now))?;
    add_main(conn, namespace, now)
}

const ADD_MAIN: &str = "
INSERT INTO subscriptions (namespace, subscription, starts_at, created_at) VALUES (?1, ?2, ?3, ?3)
ON CONFLICT DO NOTHING";

fn add_main(conn: &Connection, namespace: &str, now: i64) -> Result<()> {
    conn.prepare_cached(ADD_MAIN)?.execute((namespace, MAIN, now))?;
    Ok(())
}

const PAUSE_NAMESPACE: &str = "UPDATE namespaces SET paused = ?2, version = version + 1 WHERE namespace = ?1";

fn pause_namespace(conn: &Connection, namespace: &str, paused: bool) -> Result<()> {
    conn.prepare_cached(PAUSE_NAMESPACE)?.execute((namespace, paused))?;
    Ok(())
}

const PAUSED_TYPES: &str = "SELECT paused_types FROM namespaces WHERE namespace = ?1";

const SET_PAUSED_TYPES: &str = "UPDATE namespaces SET paused_types = ?2, version = version + 1 WHERE namespace = ?1";

fn pause_type(conn: &Connection, namespace: &str, pattern: &str, paused: bool) -> Result<()> {
    let types: String = conn.prepare_cached(PAUSED_TYPES)?.query_row([namespace], |row| row.get(0))?;
    let mut types: Vec<String> = serde_json::from_str(&types).map_err(from_json)?;
    types.retain(|known| known != pattern);
    if paused {
        types.push(pattern.to_owned());
    }
    conn.prepare_cached(SET_PAUSED_TYPES)?.execute((namespace, to_json(&types)?))?;
    Ok(())
}

const ADD_SUBSCRIPTION: &str = "
INSERT INTO subscriptions (namespace, subscription, types, tags, policy, starts_at, backfill_from, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT DO NOTHING";

fn add_subscription(
    conn: &Connection,
    request: &RouteRequest,
    new: &NewSubscription,
    now: i64,
) -> Result<AddedSubscription> {
    let namespace = request.namespace.as_str();
    if row::version(conn, namespace)? != Some(request.version) {
        return Ok(AddedSubscription::Outdated);
    }
    let mut routed = Vec::new();
    while let Some(batch) = route_batch(conn, request, now)? {
        let is_last = batch.snapshot.is_some();
        routed.push(batch);
        if is_last {
            break;
        }
    }
    let starts_at = row::micros(new.starts_at).unwrap_or(now);
    let backfill_from = (new.starts_at.is_some() && starts_at <= now).then_some(0);
    let (types, tags, policy) = (to_json(&new.types)?, to_json(&new.tags)?, to_json(&new.policy)?);
    let mut insert = conn.prepare_cached(ADD_SUBSCRIPTION)?;
    let row = (namespace, &new.subscription, types, tags, policy, starts_at, backfill_from, now);
    if insert.execute(row)? == 0 {
        return Ok(AddedSubscription::Exists);
    }
    let subscription_id = conn.last_insert_rowid();
    grow_version(conn, namespace)?;
    let added = Subscription {
        subscription_id,
        subscription: new.subscription.clone(),
        types: new.types.clone(),
        tags: new.tags.clone(),
        policy: new.policy.clone(),
        paused: false,
        starts_at: from_micros(starts_at),
        backfill_from,
        created_at: from_micros(now),
    };
    Ok(AddedSubscription::Added(added.into(), routed))
}

const GROW_VERSION: &str = "UPDATE namespaces SET version = version + 1 WHERE namespace = ?1";

pub(super) fn grow_version(conn: &Connection, namespace: &str) -> Result<()> {
    conn.prepare_cached(GROW_VERSION)?.execute([namespace])?;
    Ok(())
}

const PAUSE_SUBSCRIPTION: &str = "
UPDATE subscriptions SET paused = ?3 WHERE namespace = ?1 AND subscription = ?2";

fn pause_subscription(conn: &Connection, namespace: &str, name: &str, paused: bool) -> Result<bool> {
    let found = conn.prepare_cached(PAUSE_SUBSCRIPTION)?.execute((namespace, name, paused))? > 0;
    if found {
        grow_version(conn, namespace)?;
    }
    Ok(found)
}

/// Deletes everything that belongs to a subscription, and last the subscription. Its history stays: retention must
/// check the events whose deliveries and dead letters are deleted here.
const REMOVE: [&str; 8] = [
    "INSERT INTO retention_leftovers (event_id, subscription, namespace, since, look_at)
     SELECT event_id, ?2, ?1, updated_at, updated_at FROM event_queue
     WHERE subscription_id = (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?2)
     ON CONFLICT DO UPDATE SET since = excluded.since, rules = 0, look_at = excluded.look_at",
    "INSERT INTO retention_leftovers (event_id, subscription, namespace, since, look_at)
     SELECT event_id, ?2, ?1, failed_at, failed_at FROM dead_letters WHERE namespace = ?1 AND subscription = ?2
     ON CONFLICT DO UPDATE SET since = excluded.since, rules = 0, look_at = excluded.look_at",
    "DELETE FROM event_queue
     WHERE subscription_id = (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?2)",
    "DELETE FROM event_groups WHERE namespace = ?1 AND subscription = ?2",
    "DELETE FROM dead_letters WHERE namespace = ?1 AND subscription = ?2",
    "DELETE FROM handler_results WHERE namespace = ?1 AND subscription = ?2",
    "DELETE FROM lanes
     WHERE subscription_id = (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?2)",
    "DELETE FROM subscriptions WHERE namespace = ?1 AND subscription = ?2",
];

fn remove_subscription(conn: &Connection, namespace: &str, name: &str) -> Result<bool> {
    let mut found = false;
    for sql in REMOVE {
        found = conn.prepare_cached(sql)?.execute((namespace, name))? > 0;
    }
    if found {
        grow_version(conn, namespace)?;
    }
    Ok(found)
}

pub(super) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(from_json)
}
