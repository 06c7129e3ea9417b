//! Lanes: creating, listing and removing them.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, Executor, PgConnection};

use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use super::row::get;
use super::{PgStore, topology};
use crate::clock::{Timestamp, micros};
use crate::error::{Error, Result};
use crate::store::LaneStore;
use crate::topology::lanes::{EMPTY_LANES_MIN, Lane, LaneKey, join_tags, split_tags};

// Rows are inserted in one order, so that two transactions that need the same lanes wait for each other instead of
// deadlocking. A trigger numbers the lanes at commit and adds their priorities to the subscriptions.
const ADD_LANES: &str = "
INSERT INTO windlass.lanes (namespace, subscription_id, subscription, event_type, tags, priority, created_at)
SELECT $1, i.subscription_id, s.subscription, i.event_type, i.tags, i.priority, coalesce($6, now())
FROM unnest($2::bigint[], $3::text[], $4::text[], $5::smallint[]) WITH ORDINALITY
  AS i(subscription_id, event_type, tags, priority, n)
JOIN windlass.subscriptions s ON s.subscription_id = i.subscription_id
ORDER BY i.subscription_id, i.event_type, i.tags, i.priority
ON CONFLICT DO NOTHING";

const IDS: &str = "
SELECT l.lane_id
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::smallint[]) WITH ORDINALITY
  AS i(subscription_id, event_type, tags, priority, n)
LEFT JOIN windlass.lanes l ON l.subscription_id = i.subscription_id AND l.event_type = i.event_type
     AND l.tags = i.tags AND l.priority = i.priority
ORDER BY i.n";

const LANES_AFTER: &str = "
SELECT lane_id, number, subscription_id, event_type, tags, priority FROM windlass.lanes
WHERE namespace = $1 AND number > $2 ORDER BY number";

// In the order of the lanes' numbers, so that only lanes of this namespace are read.
pub(super) const EMPTY: &str = "
SELECT e.lane_id FROM windlass.lanes e
WHERE e.namespace = $1 AND e.created_at <= coalesce($2, now()) - $3 * interval '1 microsecond'
  AND NOT EXISTS (SELECT FROM windlass.event_queue q WHERE q.lane_id = e.lane_id ORDER BY q.ready_at OFFSET 0)
ORDER BY e.number LIMIT $4";

/// How long a removal waits for publishing transactions. Transactions that begin meanwhile wait for the removal.
const REMOVAL_TIMEOUT: &str = "SET LOCAL lock_timeout = '1s'";

pub(super) const REMOVE_EMPTY: &str = "
DELETE FROM windlass.lanes l
WHERE l.namespace = $1 AND l.lane_id = ANY($2)
  AND NOT EXISTS (SELECT FROM windlass.event_queue q WHERE q.lane_id = l.lane_id ORDER BY q.ready_at OFFSET 0)";

#[async_trait]
impl LaneStore for PgStore {
    async fn add_lanes(&self, namespace: &str, lanes: &[LaneKey]) -> Result<Vec<i64>> {
        retry_deadlocks!(async {
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            let ids = insert_lanes(&mut tx, namespace, lanes, self.clock.overridden()).await?;
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            Ok(ids)
        })
    }

    async fn lanes_after(&self, namespace: &str, number: i64) -> Result<Vec<Lane>> {
        let mut connection = self.reads.get().await?;
        let query = sqlx::query(LANES_AFTER).bind(namespace).bind(number);
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        rows.iter().map(lane).collect()
    }

    /// Priorities of removed lanes stay in the lists of the subscriptions. Each costs a claim one index lookup.
    async fn remove_empty_lanes(
        &self,
        namespace: &str,
        min_age: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let mut connection = self.maintenance.get().await?;
        let empty = sqlx::query_scalar(EMPTY).bind(namespace).bind(now).bind(micros(min_age)).bind(limit as i64);
        let empty: Vec<i64> = empty.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        if empty.len() < EMPTY_LANES_MIN {
            connection.done();
            return Ok(0);
        }
        let mut tx = connection.begin().await.map_err(from_sqlx)?;
        tx.execute(REMOVAL_TIMEOUT).await.map_err(from_sqlx)?;
        // This lock waits for all transactions that have published, so the statements after it see their deliveries.
        match topology::lock_exclusive(&mut tx, namespace).await {
            Ok(()) => {}
            Err(Error::DatabaseLocked { .. }) => {
                tracing::info!(
                    namespace,
                    lanes = empty.len(),
                    "empty lanes are not removed now: transactions are publishing"
                );
                tx.rollback().await.map_err(from_sqlx)?;
                connection.done();
                return Ok(0);
            }
            Err(error) => return Err(error),
        }
        let remove = sqlx::query(REMOVE_EMPTY).bind(namespace).bind(&empty);
        let removed = remove.execute(&mut *tx).await.map_err(from_sqlx)?.rows_affected();
        if removed > 0 {
            topology::increment_version(&mut tx, namespace).await?;
        }
        tx.commit().await.map_err(from_sqlx)?;
        connection.done();
        Ok(removed as usize)
    }
}

/// The ids of the lanes; creates missing ones. The id of a lane whose subscription was removed is 0: the namespace has
/// another version then.
pub(super) async fn insert_lanes(
    connection: &mut PgConnection,
    namespace: &str,
    lanes: &[LaneKey],
    now: Option<Timestamp>,
) -> Result<Vec<i64>> {
    let subscriptions: Vec<i64> = lanes.iter().map(|lane| lane.subscription_id).collect();
    let types: Vec<&str> = lanes.iter().map(|lane| lane.event_type.as_str()).collect();
    let tags: Vec<String> = lanes.iter().map(|lane| join_tags(&lane.tags)).collect();
    let priorities: Vec<i16> = lanes.iter().map(|lane| lane.priority).collect();
    let ids = async |connection: &mut PgConnection| -> Result<Vec<Option<i64>>> {
        let ids = sqlx::query_scalar(IDS).bind(&subscriptions).bind(&types).bind(&tags).bind(&priorities);
        ids.fetch_all(connection).await.map_err(from_sqlx)
    };
    let mut found = ids(&mut *connection).await?;
    if found.iter().any(Option::is_none) {
        let add = sqlx::query(ADD_LANES).bind(namespace).bind(&subscriptions).bind(&types).bind(&tags);
        add.bind(&priorities).bind(now).execute(&mut *connection).await.map_err(from_sqlx)?;
        found = ids(connection).await?;
    }
    Ok(found.into_iter().map(|id| id.unwrap_or(0)).collect())
}

fn lane(row: &PgRow) -> Result<Lane> {
    let key = LaneKey {
        subscription_id: get(row, "subscription_id")?,
        event_type: get(row, "event_type")?,
        tags: split_tags(&get::<String>(row, "tags")?),
        priority: get(row, "priority")?,
    };
    Ok(Lane { lane_id: get(row, "lane_id")?, number: get(row, "number")?, key: key.into() })
}
