//! Completions without an error or details. Deliveries that were claimed together usually finish together, so this
//! statement finds the rows by ranges of ids instead of one by one.

use super::enqueue::column;
use super::transition::{IndexedChange, Query, lease_of};
use crate::clock::Timestamp;
use crate::queue::decide::Transition;
use crate::queue::outcome::Action;
use crate::store::{ChangeGuard, DeliveryChange};

pub(super) fn is_plain(change: &DeliveryChange) -> bool {
    change.transition == (Transition::End { forget: false })
        && change.action == Action::Completed
        && matches!(change.guard, ChangeGuard::Lease(_))
        && change.record.error.is_none()
        && change.record.detail.is_none()
}

/// The changes grouped by subscription, in the order of their events.
pub(super) fn by_subscription<'a>(asked: &[IndexedChange<'a>]) -> Vec<Vec<IndexedChange<'a>>> {
    let key = |(_, change): &IndexedChange<'a>| (change.live.subscription_id, change.live.event_id);
    let mut in_order = asked.to_vec();
    in_order.sort_unstable_by_key(key);
    in_order.chunk_by(|a, b| key(a).0 == key(b).0).map(<[IndexedChange<'a>]>::to_vec).collect()
}

// $3 is sorted, so `width_bucket`, a binary search, finds the index of a row's event among the inputs. The inputs are
// arrays of numbers without nulls: indexing an array of texts, or with nulls, reads it from the start.
pub(super) const COMPLETE: &str = "
WITH gone AS (
    DELETE FROM windlass.event_queue q
    WHERE q.ctid = ANY(ARRAY(
        SELECT f.ctid FROM unnest($6::bigint[], $7::bigint[]) AS r(first, last)
        CROSS JOIN LATERAL (
            SELECT f.ctid FROM windlass.event_queue f
            WHERE f.subscription_id = $4 AND f.event_id BETWEEN r.first AND r.last
            ORDER BY f.event_id OFFSET 0) AS f))
      AND (q.namespace = $1) IS TRUE AND q.event_id = ($3::bigint[])[width_bucket(q.event_id, $3::bigint[])]
      AND q.lease = ($5::bigint[])[width_bucket(q.event_id, $3::bigint[])]
    RETURNING width_bucket(q.event_id, $3::bigint[])::bigint AS n, q.event_id, q.subscription_id, q.event_type,
        q.subscription, q.attempts AS attempt, q.lease, q.worker_id, q.picked_at, q.started_at, q.retry_count,
        q.max_retries
), logged AS (
    INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, lease,
        worker_id, picked_at, started_at, finished_at, action, status_code, execution_time_ms, retry_count, max_retries)
    SELECT event_id, subscription_id, event_type, attempt, $1, subscription, lease, worker_id, picked_at, started_at,
           coalesce($2, now()), 'COMPLETED', nullif(($8::bigint[])[n], $10)::integer, nullif(($9::bigint[])[n], $10),
           retry_count, max_retries
    FROM gone
)
SELECT coalesce($2, now()), array_agg(n), array_agg(attempt), array_agg(worker_id), array_agg(retry_count),
       array_agg(max_retries), NULL::timestamptz[], NULL::timestamptz[]
FROM gone";

/// Represents NULL.
const NULL_VALUE: i64 = i64::MIN;

/// For one subscription.
pub(super) fn complete<'q>(namespace: &'q str, now: Option<Timestamp>, asked: &[IndexedChange<'q>]) -> Query<'q> {
    let said = |number: Option<i64>| number.unwrap_or(NULL_VALUE);
    let (first, last): (Vec<i64>, Vec<i64>) = runs(asked).into_iter().unzip();
    sqlx::query(COMPLETE)
        .bind(namespace)
        .bind(now)
        .bind(column(asked, |(_, change)| change.live.event_id))
        .bind(asked.first().map_or(0, |(_, change)| change.live.subscription_id))
        .bind(column(asked, |(_, change)| said(lease_of(change))))
        .bind(first)
        .bind(last)
        .bind(column(asked, |(_, change)| said(change.record.status_code.map(i64::from))))
        .bind(column(asked, |(_, change)| said(change.record.execution_time_ms.map(|ms| ms as i64))))
        .bind(NULL_VALUE)
}

/// Events whose ids are at most this far apart are read as one range. The ids between them mostly belong to other
/// namespaces.
const GAP_MAX: i64 = 16;

/// Combines the events into ranges of ids.
fn runs(asked: &[IndexedChange<'_>]) -> Vec<(i64, i64)> {
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for (_, change) in asked {
        let event_id = change.live.event_id;
        match runs.last_mut() {
            Some((_, last)) if event_id - *last <= GAP_MAX => *last = event_id,
            _ => runs.push((event_id, event_id)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::delivery::{Lease, LiveDelivery};
    use crate::store::AttemptRecord;

    fn change(event_id: i64, subscription_id: i64) -> DeliveryChange {
        let live = LiveDelivery {
            event_id,
            subscription_id,
            lane_id: 1,
            event_type: "t".into(),
            lease: Some(Lease(7)),
            attempts: 1,
            attempts_limit: 20,
            retry_count: 0,
            max_retries: None,
            subscription: "main".into(),
            group_id: None,
            picked_at: None,
        };
        DeliveryChange {
            live,
            guard: ChangeGuard::Lease(Lease(7)),
            action: Action::Completed,
            transition: Transition::End { forget: false },
            record: AttemptRecord::default(),
            results: Vec::new(),
            succeeded: true,
        }
    }

    #[test]
    fn completions_are_sorted_by_subscription_and_event() {
        let changes = [(5, 1), (400, 2), (4, 1), (90, 1), (5, 2)].map(|(event, of)| change(event, of));
        let asked: Vec<IndexedChange<'_>> = changes.iter().enumerate().collect();
        let sorted = by_subscription(&asked);
        let ids = |asked: &Vec<IndexedChange<'_>>| asked.iter().map(|(_, change)| change.live.event_id).collect();
        assert_eq!(sorted.iter().map(ids).collect::<Vec<Vec<i64>>>(), [vec![4, 5, 90], vec![5, 400]]);
        assert_eq!(runs(&sorted[0]), [(4, 5), (90, 90)]);
    }

    #[test]
    fn only_completions_without_details_are_plain() {
        let plain = change(1, 1);
        assert!(is_plain(&plain));
        let others = [
            DeliveryChange { transition: Transition::End { forget: true }, ..plain.clone() },
            DeliveryChange { action: Action::CompletedWithErrors, ..plain.clone() },
            DeliveryChange { guard: ChangeGuard::Pending, ..plain.clone() },
            DeliveryChange {
                record: AttemptRecord { error: Some("e".into()), ..AttemptRecord::default() },
                ..plain.clone()
            },
        ];
        assert!(others.iter().all(|change| !is_plain(change)));
    }
}
