//! The usual end: completed, with nothing more to say than how long it took. What is claimed together ends together, so
//! rows are found in runs of ids and not one by one.

use super::enqueue::column;
use super::transition::{Asked, Query, lease_of};
use crate::clock::Timestamp;
use crate::decide::Transition;
use crate::outcome::Action;
use crate::store::{Change, Guard};

pub(super) fn is_plain(change: &Change) -> bool {
    change.transition == (Transition::End { forget: false })
        && change.action == Action::Completed
        && matches!(change.guard, Guard::Lease(_))
        && change.record.error.is_none()
        && change.record.detail.is_none()
}

/// The changes in the order of their events, each event once in each layer: its other deliveries are in the next ones.
pub(super) fn layers<'a>(asked: &[Asked<'a>]) -> Vec<Vec<Asked<'a>>> {
    let key = |(_, change): &Asked<'a>| (change.live.event_id, change.live.lane_id);
    let mut in_order = asked.to_vec();
    in_order.sort_unstable_by_key(key);
    let mut layers: Vec<Vec<Asked<'a>>> = Vec::new();
    for of_event in in_order.chunk_by(|a, b| key(a).0 == key(b).0) {
        for (depth, asked) in of_event.iter().enumerate() {
            if layers.len() == depth {
                layers.push(Vec::new());
            }
            layers[depth].push(*asked);
        }
    }
    layers
}

// $3 is in order, so that a row's place among what was asked is found by its event: `width_bucket` is a binary search.
// Numbers only, since a place in an array of texts, or of nulls, is found by going through it. The lanes of a run are
// from the least to the greatest of them; which one it is, and the lease, is held against the row that goes.
pub(super) const COMPLETE: &str = "
WITH gone AS (
    DELETE FROM windlass.event_queue q
    WHERE q.ctid = ANY(ARRAY(
        SELECT f.ctid FROM unnest($6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[])
          AS r(first, last, first_lane, last_lane)
        CROSS JOIN LATERAL (
            SELECT f.ctid FROM windlass.event_queue f
            WHERE f.event_id BETWEEN r.first AND r.last AND f.lane_id BETWEEN r.first_lane AND r.last_lane
              AND f.namespace = $1
            ORDER BY f.event_id OFFSET 0) AS f))
      AND (q.namespace = $1) IS TRUE AND q.lane_id = ($4::bigint[])[width_bucket(q.event_id, $3::bigint[])]
      AND q.lease = ($5::bigint[])[width_bucket(q.event_id, $3::bigint[])]
    RETURNING width_bucket(q.event_id, $3::bigint[])::bigint AS n, q.event_id, q.lane_id, q.subscription,
        q.attempts AS attempt, q.lease, q.worker_id, q.picked_at, q.started_at, q.retry_count, q.max_retries
), logged AS (
    INSERT INTO windlass.event_attempts (event_id, lane_id, attempt, namespace, subscription, lease, worker_id,
        picked_at, started_at, finished_at, action, status_code, execution_time_ms, retry_count, max_retries)
    SELECT event_id, lane_id, attempt, $1, subscription, lease, worker_id, picked_at, started_at, coalesce($2, now()),
           'COMPLETED', nullif(($10::bigint[])[n], $12)::integer, nullif(($11::bigint[])[n], $12), retry_count,
           max_retries
    FROM gone
)
SELECT coalesce($2, now()), array_agg(n), array_agg(attempt), array_agg(worker_id), array_agg(retry_count),
       array_agg(max_retries), NULL::timestamptz[], NULL::timestamptz[]
FROM gone";

/// Stands for what was not said.
const NOTHING: i64 = i64::MIN;

/// For one layer.
pub(super) fn complete<'q>(namespace: &'q str, now: Option<Timestamp>, asked: &[Asked<'q>]) -> Query<'q> {
    let said = |number: Option<i64>| number.unwrap_or(NOTHING);
    let runs = runs(asked);
    sqlx::query(COMPLETE)
        .bind(namespace)
        .bind(now)
        .bind(column(asked, |(_, change)| change.live.event_id))
        .bind(column(asked, |(_, change)| change.live.lane_id))
        .bind(column(asked, |(_, change)| said(lease_of(change))))
        .bind(column(&runs, |run| run.first))
        .bind(column(&runs, |run| run.last))
        .bind(column(&runs, |run| run.first_lane))
        .bind(column(&runs, |run| run.last_lane))
        .bind(column(asked, |(_, change)| said(change.record.status_code.map(i64::from))))
        .bind(column(asked, |(_, change)| said(change.record.execution_time_ms.map(|ms| ms as i64))))
        .bind(NOTHING)
}

/// Events that follow each other.
#[derive(Debug, PartialEq)]
struct Run {
    first: i64,
    last: i64,
    first_lane: i64,
    last_lane: i64,
}

fn runs(asked: &[Asked<'_>]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (_, change) in asked {
        let (event, lane) = (change.live.event_id, change.live.lane_id);
        match runs.last_mut() {
            Some(run) if event - run.last == 1 => {
                run.last = event;
                (run.first_lane, run.last_lane) = (run.first_lane.min(lane), run.last_lane.max(lane));
            }
            _ => runs.push(Run { first: event, last: event, first_lane: lane, last_lane: lane }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::{Lease, Live};
    use crate::store::Record;

    fn change(event_id: i64, lane_id: i64) -> Change {
        let live = Live {
            event_id,
            lane_id,
            lease: Some(Lease(7)),
            attempts: 1,
            attempts_limit: 20,
            retry_count: 0,
            max_retries: None,
            subscription: "main".into(),
            group_id: None,
            picked_at: None,
        };
        Change {
            live,
            guard: Guard::Lease(Lease(7)),
            pass_group: false,
            action: Action::Completed,
            transition: Transition::End { forget: false },
            record: Record::default(),
            results: Vec::new(),
        }
    }

    #[test]
    fn deliveries_of_one_event_are_in_different_layers() {
        let changes = [(5, 1), (4, 2), (4, 1), (9, 3), (5, 2), (4, 9)].map(|(event, lane)| change(event, lane));
        let asked: Vec<Asked<'_>> = changes.iter().enumerate().collect();
        let layers = layers(&asked);
        let keys = |layer: &Vec<Asked<'_>>| layer.iter().map(|(_, c)| (c.live.event_id, c.live.lane_id)).collect();
        let keys: Vec<Vec<(i64, i64)>> = layers.iter().map(keys).collect();
        assert_eq!(keys, [vec![(4, 1), (5, 1), (9, 3)], vec![(4, 2), (5, 2)], vec![(4, 9)]]);
        let run = |first, last, first_lane, last_lane| Run { first, last, first_lane, last_lane };
        assert_eq!(runs(&layers[0]), [run(4, 5, 1, 1), run(9, 9, 3, 3)]);
        assert_eq!(runs(&layers[1]), [run(4, 5, 2, 2)]);
    }

    #[test]
    fn only_ends_without_words_are_plain() {
        let plain = change(1, 1);
        assert!(is_plain(&plain));
        let others = [
            Change { transition: Transition::End { forget: true }, ..plain.clone() },
            Change { action: Action::CompletedWithErrors, ..plain.clone() },
            Change { guard: Guard::Free, ..plain.clone() },
            Change { record: Record { error: Some("e".into()), ..Record::default() }, ..plain.clone() },
        ];
        assert!(others.iter().all(|change| !is_plain(change)));
    }
}
