//! Removes rows of `leases` soon after all deliveries of the lease have finished. `expire.rs` removes the rest.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::mpsc;

use super::PgStore;
use super::connections::Connections;
use super::enqueue::column;
use super::error::from_sqlx;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::store::DeliveryChange;

/// A lease of which at least one delivery is finished.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct FinishedLease {
    subscription_id: i64,
    claimed_at: Timestamp,
    lease: i64,
}

impl PgStore {
    /// Schedules the removal of these leases, which happens if none of their deliveries is left. Otherwise the rows
    /// would stay until the lease expires, and claims would find them due.
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

/// How long finished leases are collected before their rows are removed.
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
