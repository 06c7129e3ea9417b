//! Taking deliveries: one statement for as much from each lane, one for the earliest of many.

use std::cmp::Reverse;

use sqlx::Connection as _;

use self::taken::Taken;
use super::PgStore;
use super::enqueue::column;
use super::error::from_sqlx;
use crate::clock::{Timestamp, micros};
use crate::delivery::Delivery;
use crate::error::Result;
use crate::store::{Claim, ClaimSlot, LaneClaim, Pick};

// In the order in which they are read.
macro_rules! event {
    () => {
        "e.id, e.event_type, e.title, e.description, e.tags, e.payload::text AS payload, e.group_id, e.key,
           e.priority, e.producer, e.scheduled_task_id::text AS scheduled_task_id, e.run_at, e.expires_at,
           e.metadata::text AS metadata, e.created_at"
    };
}

pub(super) mod taken;

/// A claim on many lanes asks those of a priority at most so often, for what others took from under it.
const ROUNDS_MAX: usize = 5;
/// Every lane is asked for a little more than its share, since some have less.
const SHARE_EXTRA: usize = 4;
/// A claim that goes on from an event goes through so many times as many as it wants: some are for others.
const REACH: usize = 4;
/// The events of so many deliveries are read by a statement of their own: that costs less for each, and a round trip.
const APART: usize = 100;

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

pub(super) async fn claim(store: &PgStore, claim: &Claim, now: Option<Timestamp>) -> Result<Vec<Delivery>> {
    let mut slots = Slots::new(&claim.requests);
    if let Pick::Onward { after } = claim.pick {
        return Ok(onward(store, claim, after, &slots, now).await?.deliveries);
    }
    let mut deliveries: Vec<Delivery> = Vec::new();
    if let Some(shares) = claim.shares() {
        let taken = from_each(store, claim, &shares, &slots, now).await?;
        slots.fill(taken.deliveries.len());
        // Else one that gave all it was asked for may have what others had not.
        let least = shares.iter().min().copied().unwrap_or(0);
        let enough = claim.lanes.len() == 1 || claim.is_filled(taken.deliveries.len());
        if enough || !taken.leaves_some(least) {
            return Ok(taken.deliveries);
        }
        deliveries = taken.deliveries;
    }
    for floor in priorities(&claim.lanes) {
        let of_class = claim.lanes.iter().filter(|lane| lane.priority >= floor).count();
        let mut share = slots.left().div_ceil(of_class) + SHARE_EXTRA;
        for _ in 0..ROUNDS_MAX {
            let taken = match from_many(store, claim, floor, share, &slots, now).await {
                Ok(taken) => taken,
                // What was taken before is held already.
                Err(_) if !deliveries.is_empty() => return Ok(deliveries),
                Err(error) => return Err(error),
            };
            slots.fill(taken.deliveries.len());
            let more = slots.left() > 0 && taken.leaves_some(share);
            deliveries.extend(taken.deliveries);
            if !more {
                break;
            }
            share = slots.left() + SHARE_EXTRA;
        }
        if slots.left() == 0 {
            break;
        }
    }
    Ok(deliveries)
}

/// Each class of lanes, best first, by the lowest priority in it and above.
fn priorities(lanes: &[LaneClaim]) -> Vec<i16> {
    let mut priorities: Vec<i16> = lanes.iter().map(|lane| lane.priority).collect();
    priorities.sort_unstable_by_key(|priority| Reverse(*priority));
    priorities.dedup();
    priorities
}

/// Who gets the n-th row: requests in order, each with its lease and worker.
struct Slots {
    leases: Vec<i64>,
    workers: Vec<String>,
    rooms: Vec<usize>,
}

impl Slots {
    fn new(requests: &[ClaimSlot]) -> Slots {
        Slots {
            leases: requests.iter().map(|request| request.lease.0).collect(),
            workers: requests.iter().map(|request| request.worker_id.clone()).collect(),
            rooms: requests.iter().map(|request| request.max).collect(),
        }
    }

    fn left(&self) -> usize {
        self.rooms.iter().sum()
    }

    fn fill(&mut self, mut taken: usize) {
        for room in &mut self.rooms {
            let filled = taken.min(*room);
            *room -= filled;
            taken -= filled;
        }
    }

    /// The number of the first row for each request.
    fn starts(&self) -> Vec<i64> {
        let before = self.rooms.iter().scan(1, |next, room| {
            let start = *next;
            *next += *room as i64;
            Some(start)
        });
        before.collect()
    }
}

// Takes what was picked, for the requests whose leases, workers and first rows are these arguments. $4 are lanes, in order, and $7
// how long each lends. Changed by a list of places, not by a join with them: that would begin a scan for each row. Where there is
// more than one request, each row is sought in the list.
//
// Then what is taken, in the order in which it is read, and its event unless there are many. Events are asked for one by one, with
// all that their indexes begin with: joined, one could be sought in a whole month that the planner takes for empty.
macro_rules! taken {
    ($leases:literal, $workers:literal, $starts:literal, $chosen:literal, $apart:literal) => {
        concat!(
            ", taken AS (
    UPDATE windlass.event_queue q
    SET lease = CASE WHEN cardinality(",
            $leases,
            "::bigint[]) = 1 THEN (",
            $leases,
            "::bigint[])[1] ELSE (",
            $leases,
            "::bigint[])[width_bucket(array_position((SELECT tids FROM picked), q.ctid), ",
            $starts,
            "::bigint[])] END,
        worker_id = CASE WHEN cardinality(",
            $leases,
            "::bigint[]) = 1 THEN (",
            $workers,
            "::text[])[1] ELSE (",
            $workers,
            "::text[])[width_bucket(array_position((SELECT tids FROM picked), q.ctid), ",
            $starts,
            "::bigint[])] END,
        attempts = q.attempts + 1, picked_at = coalesce($3, now()), started_at = NULL,
        lease_expires_at = coalesce($3, now())
            + ($7::bigint[])[width_bucket(q.lane_id, $4::bigint[])] * interval '1 microsecond',
        updated_at = coalesce($3, now())
    WHERE q.ctid = ANY((SELECT tids FROM picked)::tid[])
    RETURNING q.event_id, q.lane_id, q.ready_at, q.expires_at, q.created_at, q.lease, q.attempts, q.retry_count,
              q.max_retries, q.attempts_limit
)
SELECT t.event_id, t.lane_id, t.ready_at, t.expires_at, t.created_at, t.lease, t.attempts, t.retry_count,
       t.max_retries, t.attempts_limit, coalesce($3, now()), ",
            $chosen,
            ", e.*
FROM unsynced, taken t LEFT JOIN LATERAL (
    SELECT ",
            event!(),
            "
    FROM windlass.events e
    WHERE (SELECT cardinality(tids) FROM picked) < ",
            $apart,
            " AND e.id = t.event_id AND e.created_at = t.created_at AND e.namespace = $1 LIMIT 1) AS e ON true"
        )
    };
}

// A claim need not survive a crash of the server: a lost one is only a redelivery. That is said for this
// transaction alone, since a pooler may hand the connection to others.
//
// Of each lane near deadlines first; the second part runs only as far as the first leaves room. Locking row by row
// as they are picked, claimers on one lane never wait for each other nor pick the same row.
pub(super) const FROM_EACH: &str = concat!(
    "
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), picked AS MATERIALIZED (
    SELECT array_agg(c.tid) AS tids
    FROM unnest($4::bigint[], $5::timestamptz[], $6::bigint[], $8::bigint[], $9::bigint[])
      AS l(lane_id, mark_at, mark_id, horizon_us, share)
    CROSS JOIN LATERAL (
        SELECT u.ctid AS tid FROM (
            SELECT q.ctid FROM windlass.event_queue q
            WHERE q.lane_id = l.lane_id AND q.namespace = $1 AND q.lease IS NULL AND q.expires_at IS NOT NULL
              AND q.expires_at > coalesce($3, now())
              AND q.expires_at <= coalesce($3, now()) + l.horizon_us * interval '1 microsecond'
              AND q.ready_at <= coalesce($3, now())
            ORDER BY q.expires_at, q.event_id LIMIT l.share FOR UPDATE SKIP LOCKED) AS u
        UNION ALL
        SELECT o.ctid FROM (
            SELECT q.ctid FROM windlass.event_queue q
            WHERE q.lane_id = l.lane_id AND q.namespace = $1 AND q.lease IS NULL
              AND (q.ready_at, q.event_id) > (l.mark_at, l.mark_id) AND q.ready_at <= coalesce($3, now())
              AND (q.expires_at IS NULL
                   OR q.expires_at > coalesce($3, now()) + l.horizon_us * interval '1 microsecond')
            ORDER BY q.ready_at, q.event_id LIMIT l.share FOR UPDATE SKIP LOCKED) AS o
        LIMIT l.share) AS c
    WHERE EXISTS (SELECT FROM windlass.namespaces n WHERE n.namespace = $1 AND n.version = $2)
)",
    taken!("$10", "$11", "$12", "NULL::integer", "$13")
);

async fn from_each(
    store: &PgStore,
    claim: &Claim,
    shares: &[usize],
    slots: &Slots,
    now: Option<Timestamp>,
) -> Result<Taken> {
    let (lanes, ids) = in_order(claim);
    let marks = store.marks.read(&ids);
    let query = sqlx::query(FROM_EACH)
        .bind(&claim.namespace)
        .bind(claim.version)
        .bind(now)
        .bind(ids)
        .bind(&marks.ready_at)
        .bind(&marks.event_id)
        .bind(column(&lanes, |lane| micros(lane.lease)))
        .bind(column(&lanes, |lane| micros(lane.deadline_horizon)))
        .bind(column(shares, |share| *share as i64))
        .bind(&slots.leases)
        .bind(&slots.workers)
        .bind(slots.starts())
        .bind(APART as i64);
    let taken = take(store, claim, query).await?;
    store.marks.advance_all(&marks, &taken.last);
    Ok(taken)
}

/// The lanes by their numbers.
fn in_order(claim: &Claim) -> (Vec<&LaneClaim>, Vec<i64>) {
    let mut lanes: Vec<&LaneClaim> = claim.lanes.iter().collect();
    lanes.sort_unstable_by_key(|lane| lane.lane_id);
    let ids = column(&lanes, |lane| lane.lane_id);
    (lanes, ids)
}

/// A large claim may have to read its events after it: in one transaction, so that nothing is held that cannot be handed
/// out.
async fn take(store: &PgStore, claim: &Claim, query: Query<'_>) -> Result<Taken> {
    let mut connection = store.claims.get().await?;
    let taken = if claim.wanted() < APART {
        let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        Taken::read(claim, &rows, &mut connection).await?
    } else {
        let mut tx = connection.begin().await.map_err(from_sqlx)?;
        let rows = query.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
        let taken = Taken::read(claim, &rows, &mut tx).await?;
        tx.commit().await.map_err(from_sqlx)?;
        taken
    };
    connection.done();
    Ok(taken)
}

// Lanes are sought in their list by halves: as a list to compare with, it would be gone through for each row, or each of them be
// sought in the index.
pub(super) const ONWARD: &str = concat!(
    "
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), picked AS MATERIALIZED (
    SELECT array_agg(c.ctid) AS tids FROM (
        SELECT q.ctid FROM windlass.event_queue q
        WHERE q.event_id > $5 AND q.event_id <= $6 AND q.namespace = $1 AND q.lease IS NULL
          AND ($4::bigint[])[width_bucket(q.lane_id, $4::bigint[])] = q.lane_id
          AND (q.ready_at <= coalesce($3, now())) IS TRUE
          AND (q.expires_at IS NULL OR q.expires_at > coalesce($3, now()))
        ORDER BY q.event_id, q.lane_id LIMIT $8 FOR UPDATE SKIP LOCKED) AS c
    WHERE EXISTS (SELECT FROM windlass.namespaces n WHERE n.namespace = $1 AND n.version = $2)
)",
    taken!("$9", "$10", "$11", "NULL::integer", "$12")
);

/// Says nothing about how far lanes were taken: their marks stay where they are.
async fn onward(store: &PgStore, claim: &Claim, after: i64, slots: &Slots, now: Option<Timestamp>) -> Result<Taken> {
    let (lanes, ids) = in_order(claim);
    let query = sqlx::query(ONWARD)
        .bind(&claim.namespace)
        .bind(claim.version)
        .bind(now)
        .bind(ids)
        .bind(after)
        .bind(after.saturating_add((REACH * slots.left()) as i64))
        .bind(column(&lanes, |lane| micros(lane.lease)))
        .bind(slots.left() as i64)
        .bind(&slots.leases)
        .bind(&slots.workers)
        .bind(slots.starts())
        .bind(APART as i64);
    take(store, claim, query).await
}

// Each lane of at least this priority – or any, for near deadlines – offers a share without locks, the best are chosen,
// and only those are locked – with the conditions once more, since another claimer may have been faster; in words that no
// index serves, which would otherwise be gone through from its beginning.
pub(super) const FROM_MANY: &str = concat!(
    "
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), chosen AS MATERIALIZED (
    SELECT array_agg(b.tid) AS tids FROM (
        SELECT c.tid FROM (
            SELECT u.tid, u.expires_at AS deadline, l.priority, u.ready_at, u.event_id
            FROM unnest($4::bigint[], $8::bigint[], $9::smallint[]) AS l(lane_id, horizon_us, priority)
            CROSS JOIN LATERAL (
                SELECT q.ctid AS tid, q.expires_at, q.ready_at, q.event_id FROM windlass.event_queue q
                WHERE q.lane_id = l.lane_id AND q.namespace = $1 AND q.lease IS NULL AND q.expires_at IS NOT NULL
                  AND q.expires_at > coalesce($3, now())
                  AND q.expires_at <= coalesce($3, now()) + l.horizon_us * interval '1 microsecond'
                  AND q.ready_at <= coalesce($3, now())
                ORDER BY q.expires_at, q.event_id LIMIT $10) AS u
            UNION ALL
            SELECT o.tid, NULL, l.priority, o.ready_at, o.event_id
            FROM unnest($4::bigint[], $5::timestamptz[], $6::bigint[], $8::bigint[], $9::smallint[])
              AS l(lane_id, mark_at, mark_id, horizon_us, priority)
            CROSS JOIN LATERAL (
                SELECT q.ctid AS tid, q.ready_at, q.event_id FROM windlass.event_queue q
                WHERE l.priority >= $15 AND q.lane_id = l.lane_id AND q.namespace = $1 AND q.lease IS NULL
                  AND (q.ready_at, q.event_id) > (l.mark_at, l.mark_id) AND q.ready_at <= coalesce($3, now())
                  AND (q.expires_at IS NULL
                       OR q.expires_at > coalesce($3, now()) + l.horizon_us * interval '1 microsecond')
                ORDER BY q.ready_at, q.event_id LIMIT $10) AS o
        ) AS c
        WHERE EXISTS (SELECT FROM windlass.namespaces n WHERE n.namespace = $1 AND n.version = $2)
        ORDER BY c.deadline, c.priority DESC, c.ready_at, c.event_id LIMIT $11) AS b
), picked AS MATERIALIZED (
    SELECT array_agg(k.ctid ORDER BY CASE WHEN cardinality($12::bigint[]) > 1 THEN
               array_position((SELECT tids FROM chosen), k.ctid) END) AS tids
    FROM (
        SELECT q.ctid FROM windlass.event_queue q
        WHERE q.ctid = ANY((SELECT tids FROM chosen)::tid[]) AND q.namespace = $1 AND q.lease IS NULL
          AND (q.ready_at <= coalesce($3, now())) IS TRUE
        FOR UPDATE SKIP LOCKED) AS k
)",
    taken!("$12", "$13", "$14", "(SELECT cardinality(tids) FROM chosen)", "$16")
);

async fn from_many(
    store: &PgStore,
    claim: &Claim,
    floor: i16,
    share: usize,
    slots: &Slots,
    now: Option<Timestamp>,
) -> Result<Taken> {
    let (lanes, ids) = in_order(claim);
    let marks = store.marks.read(&ids);
    let query = sqlx::query(FROM_MANY)
        .bind(&claim.namespace)
        .bind(claim.version)
        .bind(now)
        .bind(ids)
        .bind(&marks.ready_at)
        .bind(&marks.event_id)
        .bind(column(&lanes, |lane| micros(lane.lease)))
        .bind(column(&lanes, |lane| micros(lane.deadline_horizon)))
        .bind(column(&lanes, |lane| lane.priority))
        .bind(share as i64)
        .bind(slots.left() as i64)
        .bind(&slots.leases)
        .bind(&slots.workers)
        .bind(slots.starts())
        .bind(floor)
        .bind(APART as i64);
    let taken = take(store, claim, query).await?;
    store.marks.advance_all(&marks, &taken.last);
    Ok(taken)
}
