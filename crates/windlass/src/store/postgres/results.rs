//! Results of single handlers of a delivery.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};

use super::PgStore;
use super::enqueue::{column, signed};
use super::error::from_sqlx;
use super::heartbeat::by_number;
use super::retry::retry_deadlocks;
use super::row::get;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::queue::handler_results::{Clear, InterimResult};
use crate::queue::outcome::HandlerResult;
use crate::store::{DeliveryChange, ResultStore};

/// Stores or deletes the results of changes whose guard held, in their transaction.
pub(super) async fn write(
    connection: &mut PgConnection,
    namespace: &str,
    changes: &[&DeliveryChange],
    now: Option<Timestamp>,
) -> Result<()> {
    let concerned: Vec<&DeliveryChange> = changes.iter().copied().filter(|change| change.concerns_results()).collect();
    let mut kept: Vec<(&LiveDelivery, &HandlerResult)> = Vec::new();
    for change in &concerned {
        kept.extend(change.kept_results().map(|result| (&change.live, result)));
    }
    if !kept.is_empty() {
        put(connection, namespace, &kept, now).await?;
    }
    let cleared: Vec<&DeliveryChange> =
        concerned.into_iter().filter(|change| change.clears_results() != Clear::Nothing).collect();
    if cleared.is_empty() { Ok(()) } else { clear(connection, namespace, &cleared).await }
}

const PUT: &str = "
INSERT INTO windlass.handler_results (event_id, subscription_id, namespace, subscription, handler, succeeded, error, attempt,
    created_at)
SELECT i.event_id, i.subscription_id, $1, i.subscription, i.handler, i.succeeded, i.error, i.attempt, coalesce($2, now())
FROM unnest($3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::boolean[], $8::text[], $9::integer[])
  AS i(event_id, subscription_id, subscription, handler, succeeded, error, attempt)
ON CONFLICT (event_id, subscription_id, handler) DO UPDATE SET succeeded = excluded.succeeded, error = excluded.error,
    attempt = excluded.attempt, created_at = excluded.created_at";

async fn put(
    connection: &mut PgConnection,
    namespace: &str,
    results: &[(&LiveDelivery, &HandlerResult)],
    now: Option<Timestamp>,
) -> Result<()> {
    let put = sqlx::query(PUT)
        .bind(namespace)
        .bind(now)
        .bind(column(results, |(live, _)| live.event_id))
        .bind(column(results, |(live, _)| live.subscription_id))
        .bind(column(results, |(live, _)| live.subscription.as_str()))
        .bind(column(results, |(_, result)| result.handler.as_str()))
        .bind(column(results, |(_, result)| result.succeeded))
        .bind(column(results, |(_, result)| result.error.as_deref()))
        .bind(column(results, |(live, _)| signed(live.attempts)));
    put.execute(connection).await.map_err(from_sqlx).map(drop)
}

// OFFSET 0, like a LIMIT, keeps the planner from turning the join around.
const CLEAR: &str = "
DELETE FROM windlass.handler_results r
USING unnest($2::bigint[], $3::bigint[], $4::boolean[]) AS i(event_id, subscription_id, all_of_them)
CROSS JOIN LATERAL (
    SELECT f.ctid AS tid FROM windlass.handler_results f
    WHERE f.event_id = i.event_id AND f.subscription_id = i.subscription_id AND f.namespace = $1 AND (i.all_of_them OR NOT f.succeeded)
    OFFSET 0) AS f
WHERE r.ctid = f.tid AND r.namespace = $1";

async fn clear(connection: &mut PgConnection, namespace: &str, changes: &[&DeliveryChange]) -> Result<()> {
    let clear = sqlx::query(CLEAR)
        .bind(namespace)
        .bind(column(changes, |change| change.live.event_id))
        .bind(column(changes, |change| change.live.subscription_id))
        .bind(column(changes, |change| change.clears_results() == Clear::All));
    clear.execute(connection).await.map_err(from_sqlx).map(drop)
}

// FOR SHARE, so that handlers of one delivery, each in its own transaction, do not wait for each other. A transaction
// that would claim, finish or extend the delivery waits.
pub(super) const HOLD: &str = "
SELECT i.n FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS i(event_id, subscription_id, lease, n)
CROSS JOIN LATERAL (
    SELECT FROM windlass.event_queue q
    WHERE q.event_id BETWEEN i.event_id AND i.event_id AND q.subscription_id = i.subscription_id AND q.namespace = $1
      AND q.lease = i.lease
    ORDER BY q.event_id FOR SHARE) AS held";

/// Stores results while their attempts are in progress, in the caller's transaction. `false`: the lease is lost, and
/// nothing was stored. A first attempt must name the stored results in its report, or they are not deleted with it.
///
/// Call it right before the commit: until then, heartbeats cannot extend the leases.
pub(super) async fn store_interim(
    connection: &mut PgConnection,
    namespace: &str,
    results: &[InterimResult],
    now: Option<Timestamp>,
) -> Result<Vec<bool>> {
    let hold = sqlx::query(HOLD)
        .bind(namespace)
        .bind(column(results, |interim| interim.live.event_id))
        .bind(column(results, |interim| interim.live.subscription_id))
        .bind(column(results, |interim| interim.live.lease.map(|lease| lease.0)));
    let rows = hold.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    let held = by_number(results.len(), &rows, |_| Ok(()))?;
    let kept: Vec<(&LiveDelivery, &HandlerResult)> =
        results.iter().zip(&held).filter(|(_, held)| held.is_some()).map(|(i, _)| (&i.live, &i.result)).collect();
    if !kept.is_empty() {
        put(connection, namespace, &kept, now).await?;
    }
    Ok(held.iter().map(Option::is_some).collect())
}

pub(super) const OF: &str = "
SELECT i.n, r.handler, r.succeeded, r.error
FROM unnest($2::bigint[], $3::bigint[]) WITH ORDINALITY AS i(event_id, subscription_id, n)
CROSS JOIN LATERAL (
    SELECT r.handler, r.succeeded, r.error FROM windlass.handler_results r
    WHERE r.event_id = i.event_id AND r.subscription_id = i.subscription_id AND r.namespace = $1
    ORDER BY r.handler) AS r";

#[async_trait]
impl ResultStore for PgStore {
    /// Runs [`store_interim`] in its own transaction.
    async fn store_handler_results(
        &self,
        namespace: &str,
        results: &[InterimResult],
        now: Option<Timestamp>,
    ) -> Result<Vec<bool>> {
        retry_deadlocks!(async {
            // All transactions lock deliveries in the order of their ids, so that they do not deadlock.
            let mut order: Vec<usize> = (0..results.len()).collect();
            order.sort_by_key(|n| (results[*n].live.event_id, results[*n].live.subscription_id));
            let ordered: Vec<InterimResult> = order.iter().map(|n| results[*n].clone()).collect();
            let mut connection = self.writes.get().await?;
            let mut tx = connection.begin().await.map_err(from_sqlx)?;
            let noted = store_interim(&mut tx, namespace, &ordered, now).await?;
            tx.commit().await.map_err(from_sqlx)?;
            connection.done();
            let mut stored = vec![false; results.len()];
            order.into_iter().zip(noted).for_each(|(n, noted)| stored[n] = noted);
            Ok(stored)
        })
    }

    async fn handler_results(&self, namespace: &str, live: &[LiveDelivery]) -> Result<Vec<Vec<HandlerResult>>> {
        let mut connection = self.writes.get().await?;
        let query = sqlx::query(OF)
            .bind(namespace)
            .bind(column(live, |live| live.event_id))
            .bind(column(live, |live| live.subscription_id));
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let mut results = vec![Vec::new(); live.len()];
        for row in &rows {
            let (handler, succeeded, error) = (get(row, "handler")?, get(row, "succeeded")?, get(row, "error")?);
            results[get::<i64>(row, "n")? as usize - 1].push(HandlerResult { handler, succeeded, error });
        }
        Ok(results)
    }
}
