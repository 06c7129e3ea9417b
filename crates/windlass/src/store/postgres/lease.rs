//! The table of leases: which deliveries to look at for expired leases, and when.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::mpsc;

use super::PgStore;
use super::connections::Connections;
use super::enqueue::column;
use super::error::from_sqlx;
use super::row::live;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::store::DeliveryChange;

/// How many rows of the table of leases one statement checks.
const LEASES_CHECKED: i64 = 1_000;

// Of the leases that are due: a lease without deliveries is over, and one that was renewed is checked again when it expires.
// Deliveries whose lease has expired are returned; the caller changes them, and the next call finds the lease over. Of a run,
// only the first is returned: releasing it releases the others.
pub(super) const EXPIRED: &str = "
WITH due AS MATERIALIZED (
    SELECT l.* FROM unnest($2::bigint[]) AS s(subscription_id)
    CROSS JOIN LATERAL (
        SELECT l.ctid AS tid, l.subscription_id, l.lease, l.first_id, l.last_id FROM windlass.leases l
        WHERE l.subscription_id = s.subscription_id AND l.check_at <= coalesce($3, now())
        ORDER BY l.check_at LIMIT $5 FOR UPDATE SKIP LOCKED) AS l
), leased AS MATERIALIZED (
    SELECT d.tid, q.* FROM due d
    CROSS JOIN LATERAL (
        SELECT q.event_id, q.subscription_id, q.lane_id, q.event_type, q.lease, q.attempts, q.attempts_limit,
               q.retry_count, q.max_retries, q.subscription, q.group_id, q.due_at, q.lease_expires_at
        FROM windlass.event_queue q
        WHERE q.subscription_id = d.subscription_id AND q.event_id BETWEEN d.first_id AND d.last_id AND q.lease = d.lease
        ORDER BY q.event_id OFFSET 0) AS q
), next AS MATERIALIZED (
    SELECT d.tid, (SELECT min(l.lease_expires_at) FROM leased l WHERE l.tid = d.tid) AS check_at FROM due d
), over AS (
    DELETE FROM windlass.leases l
    WHERE (l.namespace = $1) IS TRUE AND l.ctid = ANY(ARRAY(SELECT n.tid FROM next n WHERE n.check_at IS NULL))
), renewed AS (
    UPDATE windlass.leases l SET check_at = n.check_at FROM next n
    WHERE l.ctid = n.tid AND n.check_at > coalesce($3, now()) AND (l.namespace = $1) IS TRUE
)
SELECT e.* FROM (
    SELECT l.*, row_number() OVER (PARTITION BY l.subscription_id, l.lease, l.group_id ORDER BY l.due_at, l.event_id) AS n
    FROM leased l WHERE l.lease_expires_at <= coalesce($3, now())) AS e
WHERE e.group_id IS NULL OR e.n = 1 LIMIT $4";

pub(super) async fn expired_leases(
    store: &PgStore,
    namespace: &str,
    subscriptions: &[i64],
    limit: usize,
    now: Option<Timestamp>,
) -> Result<Vec<LiveDelivery>> {
    let mut connection = store.maintenance.get().await?;
    let query = sqlx::query(EXPIRED).bind(namespace).bind(subscriptions).bind(now);
    let query = query.bind(limit as i64).bind(LEASES_CHECKED);
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    rows.iter().map(live).collect()
}

/// A lease of which at least one delivery is finished.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct FinishedLease {
    subscription_id: i64,
    claimed_at: Timestamp,
    lease: i64,
}

impl PgStore {
    /// Has the rows of these leases removed soon, if none of their deliveries is left. Otherwise the rows stay until their
    /// lease would have expired, and claims would find them due.
    pub(super) fn note_finished_leases<'a>(&self, changes: impl Iterator<Item = &'a DeliveryChange>) {
        let mut last = None;
        for live in changes.map(|change| &change.live) {
            let (Some(lease), Some(claimed_at)) = (live.lease, live.picked_at) else { continue };
            let lease = FinishedLease { subscription_id: live.subscription_id, claimed_at, lease: lease.0 };
            // Deliveries of one lease usually finish together.
            if last.as_ref() != Some(&lease) {
                let _ = self.finished_leases.send(lease.clone());
                last = Some(lease);
            }
        }
    }
}

/// How long finished leases are gathered before their rows are removed.
const GATHER: Duration = Duration::from_secs(1);
const REMOVE_MAX: usize = 1_000;

/// Removes the rows of finished leases; ends with the store.
pub(super) async fn remove_finished(mut inbox: mpsc::UnboundedReceiver<FinishedLease>, connections: Arc<Connections>) {
    while let Some(first) = inbox.recv().await {
        let mut finished = HashSet::from([first]);
        tokio::time::sleep(GATHER).await;
        while let Ok(more) = inbox.try_recv() {
            finished.insert(more);
        }
        let finished: Vec<FinishedLease> = finished.into_iter().collect();
        for batch in finished.chunks(REMOVE_MAX) {
            let Ok(mut connection) = connections.get().await else { continue };
            match remove(&mut connection, batch).await {
                Ok(()) => connection.done(),
                Err(error) => {
                    tracing::debug!(%error, "could not remove finished leases; they are removed when they expire")
                }
            }
        }
    }
}

// Not synced: a row that comes back after a crash is removed when its lease expires.
pub(super) const REMOVE_FINISHED: &str = "
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
DELETE FROM windlass.leases d WHERE d.ctid = ANY(ARRAY(
    SELECT l.tid FROM unsynced, unnest($1::bigint[], $2::timestamptz[], $3::bigint[])
      AS i(subscription_id, claimed_at, lease)
    CROSS JOIN LATERAL (
        SELECT l.ctid AS tid, l.first_id, l.last_id FROM windlass.leases l
        WHERE l.subscription_id = i.subscription_id AND l.claimed_at = i.claimed_at AND (l.lease = i.lease) IS TRUE
        ORDER BY l.claimed_at OFFSET 0) AS l
    WHERE NOT EXISTS (
        SELECT FROM windlass.event_queue q
        WHERE q.subscription_id = i.subscription_id AND q.event_id BETWEEN l.first_id AND l.last_id AND q.lease = i.lease
        ORDER BY q.event_id OFFSET 0)))";

async fn remove(connection: &mut PgConnection, finished: &[FinishedLease]) -> Result<()> {
    let query = sqlx::query(REMOVE_FINISHED)
        .bind(column(finished, |lease| lease.subscription_id))
        .bind(column(finished, |lease| lease.claimed_at))
        .bind(column(finished, |lease| lease.lease));
    query.execute(connection).await.map_err(from_sqlx).map(drop)
}
