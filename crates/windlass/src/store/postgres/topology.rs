//! Namespaces and subscriptions.

use async_trait::async_trait;
use serde_json::value::RawValue;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection as _, Executor, PgConnection};

use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use super::row::{get, json};
use super::{PgStore, route, to_json};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::policy::NamespacePolicy;
use crate::store::{AddedSubscription, NewSubscription, RouteRequest, TopologyStore};
use crate::topology::{MAIN, Namespace, Subscription, Topology};

const LOCK_SHARED: &str = "SELECT windlass._hold_topology($1, $2)";

/// Locks subscriptions, lanes and policy against changes until the transaction ends. `false`: there is no such
/// namespace, or it has another version.
pub(super) async fn lock_shared(connection: &mut PgConnection, namespace: &str, version: Option<i64>) -> Result<bool> {
    let hold = sqlx::query_scalar(LOCK_SHARED).bind(namespace).bind(version);
    hold.fetch_one(connection).await.map_err(from_sqlx)
}

/// Begins a transaction with the lock of [`lock_shared`]. All transactions take it before locks on keys and groups.
pub(super) fn begin_and_lock(namespace: &str) -> AssertSqlSafe<String> {
    let namespace = namespace.replace('\'', "''");
    AssertSqlSafe(format!("BEGIN; SELECT pg_advisory_xact_lock_shared(windlass._topology_lock('{namespace}'))"))
}

const LOCK_EXCLUSIVE: &str = "SELECT pg_advisory_xact_lock(windlass._topology_lock($1))";

/// Locks subscriptions, lanes and policy exclusively until the transaction ends.
pub(super) async fn lock_exclusive(connection: &mut PgConnection, namespace: &str) -> Result<()> {
    sqlx::query(LOCK_EXCLUSIVE).bind(namespace).execute(connection).await.map_err(from_sqlx).map(drop)
}

const INCREMENT_VERSION: &str = "UPDATE windlass.namespaces SET version = version + 1 WHERE namespace = $1";

pub(super) async fn increment_version(connection: &mut PgConnection, namespace: &str) -> Result<()> {
    sqlx::query(INCREMENT_VERSION).bind(namespace).execute(connection).await.map_err(from_sqlx).map(drop)
}

/// The first statements of every change of the topology.
async fn change(connection: &mut PgConnection, namespace: &str) -> Result<()> {
    lock_exclusive(connection, namespace).await?;
    increment_version(connection, namespace).await
}

const NAMESPACE: &str = "
SELECT namespace, metadata::text AS metadata, policy::text AS policy, paused, paused_types, version, created_at
FROM windlass.namespaces WHERE namespace = $1";

const SUBSCRIPTIONS: &str = "
SELECT subscription_id, subscription, types, tags, policy::text AS policy, paused, starts_at, backfill_from, created_at
FROM windlass.subscriptions WHERE namespace = $1 ORDER BY subscription";

const NAMESPACES: &str = "
SELECT namespace, metadata::text AS metadata, policy::text AS policy, paused, paused_types, created_at
FROM windlass.namespaces ORDER BY namespace";

const PUT_NAMESPACE: &str = "
INSERT INTO windlass.namespaces AS n (namespace, metadata, policy, created_at)
VALUES ($1, coalesce($2::json, '{}'), coalesce($3, $4)::json, coalesce($5, now()))
ON CONFLICT (namespace) DO UPDATE SET
    metadata = coalesce($2::json, n.metadata), policy = coalesce($3::json, n.policy), version = n.version + 1";

const ADD_MAIN: &str = "
INSERT INTO windlass.subscriptions (namespace, subscription, starts_at, created_at)
VALUES ($1, $2, coalesce($3, now()), coalesce($3, now())) ON CONFLICT DO NOTHING";

const PAUSE_NAMESPACE: &str = "UPDATE windlass.namespaces SET paused = $2, version = version + 1 WHERE namespace = $1";

const PAUSE_TYPE: &str = "
UPDATE windlass.namespaces
SET paused_types = array_remove(paused_types, $2) || CASE WHEN $3 THEN ARRAY[$2] ELSE '{}' END, version = version + 1
WHERE namespace = $1";

// Not `now()`, the start of the transaction: it may have waited for publishers that began later.
const ADD_SUBSCRIPTION: &str = "
INSERT INTO windlass.subscriptions (namespace, subscription, types, tags, policy, starts_at, backfill_from,
    created_at)
VALUES ($1, $2, $3, $4, $5::json, coalesce($6, $7, clock_timestamp()), CASE WHEN $6 IS NOT NULL THEN 0 END,
    coalesce($7, clock_timestamp()))
ON CONFLICT DO NOTHING
RETURNING subscription_id, subscription, types, tags, policy::text AS policy, paused, starts_at, backfill_from, created_at";

const PAUSE_SUBSCRIPTION: &str =
    "UPDATE windlass.subscriptions SET paused = $3 WHERE namespace = $1 AND subscription = $2";

// Adds its deliveries to the leftovers: events that nothing refers to any more must be checked by retention.
const REMOVE_SUBSCRIPTION: [&str; 9] = [
    "DELETE FROM windlass.leases l USING windlass.subscriptions s
     WHERE s.namespace = $1 AND s.subscription = $2 AND l.subscription_id = s.subscription_id",
    "DELETE FROM windlass.subscriptions WHERE namespace = $1 AND subscription = $2",
    "INSERT INTO windlass.retention_leftovers (event_id, subscription, namespace, since, look_at)
     SELECT event_id, $2, $1, max(at), max(at) FROM (
         SELECT event_id, updated_at AS at FROM windlass.event_queue WHERE namespace = $1 AND subscription = $2
         UNION ALL
         SELECT event_id, failed_at FROM windlass.dead_letters WHERE namespace = $1 AND subscription = $2) AS told
     GROUP BY event_id
     ON CONFLICT (event_id, subscription, namespace) DO UPDATE
     SET since = excluded.since, rules = 0, look_at = excluded.look_at",
    "DELETE FROM windlass.lanes WHERE namespace = $1 AND subscription = $2",
    "DELETE FROM windlass.event_queue WHERE namespace = $1 AND subscription = $2",
    "DELETE FROM windlass.departures WHERE namespace = $1 AND subscription = $2",
    "DELETE FROM windlass.event_groups WHERE namespace = $1 AND subscription = $2",
    "DELETE FROM windlass.dead_letters WHERE namespace = $1 AND subscription = $2",
    "DELETE FROM windlass.handler_results WHERE namespace = $1 AND subscription = $2",
];

#[async_trait]
impl TopologyStore for PgStore {
    async fn topology(&self, namespace: &str) -> Result<Option<Topology>> {
        let mut connection = self.reads.get().await?;
        let topology = load(&mut connection, namespace).await?;
        connection.done();
        Ok(topology)
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        let mut connection = self.reads.get().await?;
        let rows = sqlx::query(NAMESPACES).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        rows.iter().map(to_namespace).collect()
    }

    async fn put_namespace(
        &self,
        namespace: &str,
        metadata: Option<&RawValue>,
        policy: Option<&NamespacePolicy>,
        now: Option<Timestamp>,
    ) -> Result<()> {
        retry_deadlocks!(async {
            let metadata = metadata.map(RawValue::get);
            let given = policy.map(to_json).transpose()?;
            let default = to_json(&NamespacePolicy::default())?;
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            lock_exclusive(&mut tx, namespace).await?;
            let put = sqlx::query(PUT_NAMESPACE).bind(namespace).bind(metadata).bind(given).bind(default).bind(now);
            put.execute(&mut *tx).await.map_err(from_sqlx)?;
            let main = sqlx::query(ADD_MAIN).bind(namespace).bind(MAIN).bind(now);
            main.execute(&mut *tx).await.map_err(from_sqlx)?;
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            Ok(())
        })
    }

    async fn pause_namespace(&self, namespace: &str, paused: bool) -> Result<()> {
        let mut connection = self.writes.get().await?;
        let pause = sqlx::query(PAUSE_NAMESPACE).bind(namespace).bind(paused);
        pause.execute(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(())
    }

    async fn pause_type(&self, namespace: &str, pattern: &str, paused: bool) -> Result<()> {
        let mut connection = self.writes.get().await?;
        let pause = sqlx::query(PAUSE_TYPE).bind(namespace).bind(pattern).bind(paused);
        pause.execute(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(())
    }

    async fn add_subscription(
        &self,
        request: &RouteRequest,
        new: &NewSubscription,
        now: Option<Timestamp>,
    ) -> Result<AddedSubscription> {
        retry_deadlocks!(async {
            let namespace = request.namespace.as_str();
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            lock_exclusive(&mut tx, namespace).await?;
            // No router is at work: routers hold this lock, too.
            if !lock_shared(&mut tx, namespace, Some(request.version)).await? {
                tx.rollback().await.map_err(from_sqlx)?;
                connection.done();
                return Ok(AddedSubscription::Outdated);
            }
            let mut routed = Vec::new();
            while let Some(batch) = route::route_batch(&mut tx, request, now).await? {
                let is_last = batch.snapshot.is_some();
                routed.push(batch);
                if is_last {
                    break;
                }
            }
            increment_version(&mut tx, namespace).await?;
            let add = sqlx::query(ADD_SUBSCRIPTION)
                .bind(namespace)
                .bind(&new.subscription)
                .bind(&new.types)
                .bind(&new.tags)
                .bind(to_json(&new.policy)?)
                .bind(new.starts_at)
                .bind(now);
            let Some(row) = add.fetch_optional(&mut *tx).await.map_err(from_sqlx)? else {
                tx.rollback().await.map_err(from_sqlx)?;
                connection.done();
                return Ok(AddedSubscription::Exists);
            };
            let added = subscription(&row)?;
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            self.notify(namespace, routed.iter().flat_map(|batch| &batch.ready_lanes).copied().collect());
            Ok(AddedSubscription::Added(added.into(), routed))
        })
    }

    async fn pause_subscription(&self, namespace: &str, name: &str, paused: bool) -> Result<bool> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            change(&mut tx, namespace).await?;
            let pause = sqlx::query(PAUSE_SUBSCRIPTION).bind(namespace).bind(name).bind(paused);
            let paused = pause.execute(&mut *tx).await.map_err(from_sqlx)?.rows_affected() == 1;
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            Ok(paused)
        })
    }

    async fn remove_subscription(&self, namespace: &str, name: &str) -> Result<bool> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            change(&mut tx, namespace).await?;
            // These statements scan whole tables; the connection's settings forbid that.
            tx.execute("SET LOCAL enable_seqscan = on").await.map_err(from_sqlx)?;
            let mut removed = Vec::new();
            for statement in REMOVE_SUBSCRIPTION {
                let delete = sqlx::query(statement).bind(namespace).bind(name);
                removed.push(delete.execute(&mut *tx).await.map_err(from_sqlx)?.rows_affected());
            }
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            Ok(removed[1] == 1)
        })
    }
}

/// Reads the version first: with a concurrent change, the version is too old, never the contents.
async fn load(connection: &mut PgConnection, namespace: &str) -> Result<Option<Topology>> {
    let row = sqlx::query(NAMESPACE).bind(namespace).fetch_optional(&mut *connection).await.map_err(from_sqlx)?;
    let Some(row) = row else { return Ok(None) };
    let subscriptions = sqlx::query(SUBSCRIPTIONS).bind(namespace).fetch_all(connection);
    let subscriptions = subscriptions.await.map_err(from_sqlx)?;
    let subscriptions = subscriptions.iter().map(subscription).collect::<Result<Vec<_>>>()?;
    Ok(Some(Topology { namespace: to_namespace(&row)?, version: get(&row, "version")?, subscriptions }))
}

fn to_namespace(row: &PgRow) -> Result<Namespace> {
    Ok(Namespace {
        namespace: get(row, "namespace")?,
        metadata: json(get(row, "metadata")?)?,
        policy: from_json(row, "policy")?,
        paused: get(row, "paused")?,
        paused_types: get(row, "paused_types")?,
        created_at: get(row, "created_at")?,
    })
}

fn subscription(row: &PgRow) -> Result<Subscription> {
    Ok(Subscription {
        subscription: get(row, "subscription")?,
        subscription_id: get(row, "subscription_id")?,
        types: get(row, "types")?,
        tags: get(row, "tags")?,
        policy: from_json(row, "policy")?,
        paused: get(row, "paused")?,
        starts_at: get(row, "starts_at")?,
        backfill_from: get(row, "backfill_from")?,
        created_at: get(row, "created_at")?,
    })
}

fn from_json<T: serde::de::DeserializeOwned>(row: &PgRow, column: &'static str) -> Result<T> {
    serde_json::from_str(&get::<String>(row, column)?)
        .map_err(|error| Error::Database { detail: format!("column {column} is damaged: {error}") })
}
