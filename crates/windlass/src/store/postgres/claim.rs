//! Taking deliveries. Plans must not depend on statistics: the queue is empty at one moment and huge
//! at the next, so rows are found by the hot index, from this process's mark on, and changed by ctid.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::postgres::PgRow;

use super::PgStore;
use super::error::from_sqlx;
use super::marks::Reading;
use super::row::{count, count_or_none, event, get};
use crate::clock::{Timestamp, micros};
use crate::delivery::{Delivery, Lease};
use crate::error::Result;
use crate::store::{Claim, ClaimSlot, LaneClaim, LaneLook, Look};

/// A claim on many lanes goes round again at most so often for what others took from under it.
const ROUNDS_MAX: usize = 4;
/// What a lane is asked for beyond its share.
const SHARE_EXTRA: usize = 4;

pub(super) async fn claim(store: &PgStore, claim: &Claim, now: Option<Timestamp>) -> Result<Vec<Delivery>> {
    let mut slots = Slots::new(&claim.requests);
    if let [lane] = &claim.lanes[..] {
        let taken = from_one(store, claim, lane, &slots, now).await?;
        return taken.into_iter().map(|row| delivery(&row, &claim.subscription)).collect();
    }
    let mut deliveries: Vec<Delivery> = Vec::new();
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
            slots.fill(taken.len());
            let more = slots.left() > 0 && could_be_more(&taken, share)?;
            for row in &taken {
                deliveries.push(delivery(row, &claim.subscription)?);
            }
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

/// The priorities there are, the highest first: a lower one is served when the higher ones are empty.
fn priorities(lanes: &[LaneClaim]) -> Vec<i16> {
    let mut priorities: Vec<i16> = lanes.iter().map(|lane| lane.priority).collect();
    priorities.sort_unstable_by(|a, b| b.cmp(a));
    priorities.dedup();
    priorities
}

/// Whether a lane gave all it was asked for, or others took some of what was chosen.
fn could_be_more(taken: &[PgRow], share: usize) -> Result<bool> {
    let Some(first) = taken.first() else { return Ok(false) };
    if get::<i64>(first, "chosen")? > taken.len() as i64 {
        return Ok(true);
    }
    let mut of_lane: HashMap<i64, usize> = HashMap::new();
    for row in taken {
        *of_lane.entry(get(row, "lane_id")?).or_default() += 1;
    }
    Ok(of_lane.into_values().any(|count| count >= share))
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

// One event, by whichever of its indexes: asked for on its own, with all that these begin with. Joined, it could be
// sought in a whole month that the planner takes for empty.
macro_rules! body {
    () => {
        "
    SELECT e.id, e.namespace, e.event_type, e.title, e.description, e.tags, e.payload::text AS payload, e.group_id,
           e.key, e.priority, e.producer, e.scheduled_task_id::text AS scheduled_task_id, e.run_at, e.expires_at,
           e.metadata::text AS metadata, e.created_at
    FROM windlass.events e WHERE e.id = t.event_id AND e.created_at = t.created_at AND e.namespace = $1 LIMIT 1"
    };
}

// A claim need not survive a crash of the server: a lost one is only a redelivery. That is said for this
// transaction alone, since a pooler may hand the connection to others.
//
// Near deadlines first; the second part runs only as far as the first leaves room. Locking row by row
// as they are picked, claimers on one lane never wait for each other nor pick the same row.
pub(super) const FROM_ONE: &str = concat!(
    "
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), picked AS MATERIALIZED (
    SELECT c.tid, c.urgent, row_number() OVER () AS n FROM (
        SELECT u.ctid AS tid, true AS urgent FROM (
            SELECT q.ctid FROM windlass.event_queue q
            WHERE q.lane_id = $4 AND q.namespace = $1 AND q.lease IS NULL AND q.expires_at IS NOT NULL
              AND q.expires_at > coalesce($3, now())
              AND q.expires_at <= coalesce($3, now()) + $8 * interval '1 microsecond'
              AND q.ready_at <= coalesce($3, now())
              AND EXISTS (SELECT FROM windlass.namespaces n WHERE n.namespace = $1 AND n.version = $2)
            ORDER BY q.expires_at, q.event_id LIMIT $9 FOR UPDATE SKIP LOCKED) AS u
        UNION ALL
        SELECT o.ctid, false FROM (
            SELECT q.ctid FROM windlass.event_queue q
            WHERE q.lane_id = $4 AND q.namespace = $1 AND q.lease IS NULL
              AND (q.ready_at, q.event_id) > ($5, $6) AND q.ready_at <= coalesce($3, now())
              AND (q.expires_at IS NULL OR q.expires_at > coalesce($3, now()) + $8 * interval '1 microsecond')
              AND EXISTS (SELECT FROM windlass.namespaces n WHERE n.namespace = $1 AND n.version = $2)
            ORDER BY q.ready_at, q.event_id LIMIT $9 FOR UPDATE SKIP LOCKED) AS o
        LIMIT $9) AS c
), taken AS (
    UPDATE windlass.event_queue q
    SET lease = ($10::bigint[])[width_bucket(p.n, $12::bigint[])],
        worker_id = ($11::text[])[width_bucket(p.n, $12::bigint[])],
        attempts = q.attempts + 1, picked_at = coalesce($3, now()), started_at = NULL,
        lease_expires_at = coalesce($3, now()) + $7 * interval '1 microsecond', updated_at = coalesce($3, now())
    FROM picked p WHERE q.ctid = p.tid
    RETURNING q.event_id, q.lane_id, q.ready_at, q.attempts, q.attempts_limit, q.retry_count, q.max_retries,
              q.lease, q.worker_id, q.picked_at, q.lease_expires_at, q.created_at, p.urgent, p.n
)
SELECT t.event_id, t.lane_id, t.ready_at, t.attempts, t.attempts_limit, t.retry_count,
       t.max_retries, t.lease, t.worker_id, t.picked_at, t.lease_expires_at, t.urgent,
       e.*
FROM unsynced, taken t CROSS JOIN LATERAL (",
    body!(),
    ") AS e"
);

async fn from_one(
    store: &PgStore,
    claim: &Claim,
    lane: &LaneClaim,
    slots: &Slots,
    now: Option<Timestamp>,
) -> Result<Vec<PgRow>> {
    let marks = store.marks.read(&[lane.lane_id]);
    let mut connection = store.claims.get().await?;
    let query = sqlx::query(FROM_ONE)
        .bind(&claim.namespace)
        .bind(claim.version)
        .bind(now)
        .bind(lane.lane_id)
        .bind(marks.ready_at[0])
        .bind(marks.event_id[0])
        .bind(micros(lane.lease))
        .bind(micros(lane.deadline_horizon))
        .bind(slots.left() as i64)
        .bind(&slots.leases)
        .bind(&slots.workers)
        .bind(slots.starts());
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    mark(store, &marks, &rows)?;
    Ok(rows)
}

// Each lane of at least this priority – or any, for near deadlines – offers a share without locks, the best are chosen,
// and only those are locked – with the conditions once more, since another claimer may have been faster.
pub(super) const FROM_MANY: &str = concat!(
    "
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), chosen AS MATERIALIZED (
    SELECT c.tid, c.lease_us, c.urgent FROM (
        SELECT u.tid, l.lease_us, true AS urgent, u.expires_at AS deadline, l.priority, u.ready_at, u.event_id
        FROM unnest($4::bigint[], $7::bigint[], $8::bigint[], $9::smallint[]) AS l(lane_id, lease_us, horizon_us, priority)
        CROSS JOIN LATERAL (
            SELECT q.ctid AS tid, q.expires_at, q.ready_at, q.event_id FROM windlass.event_queue q
            WHERE q.lane_id = l.lane_id AND q.namespace = $1 AND q.lease IS NULL AND q.expires_at IS NOT NULL
              AND q.expires_at > coalesce($3, now())
              AND q.expires_at <= coalesce($3, now()) + l.horizon_us * interval '1 microsecond'
              AND q.ready_at <= coalesce($3, now())
            ORDER BY q.expires_at, q.event_id LIMIT $10) AS u
        UNION ALL
        SELECT o.tid, l.lease_us, false, NULL, l.priority, o.ready_at, o.event_id
        FROM unnest($4::bigint[], $5::timestamptz[], $6::bigint[], $7::bigint[], $8::bigint[], $9::smallint[])
          AS l(lane_id, mark_at, mark_id, lease_us, horizon_us, priority)
        CROSS JOIN LATERAL (
            SELECT q.ctid AS tid, q.ready_at, q.event_id FROM windlass.event_queue q
            WHERE l.priority >= $15 AND q.lane_id = l.lane_id AND q.namespace = $1 AND q.lease IS NULL
              AND (q.ready_at, q.event_id) > (l.mark_at, l.mark_id) AND q.ready_at <= coalesce($3, now())
              AND (q.expires_at IS NULL
                   OR q.expires_at > coalesce($3, now()) + l.horizon_us * interval '1 microsecond')
            ORDER BY q.ready_at, q.event_id LIMIT $10) AS o
    ) AS c
    WHERE EXISTS (SELECT FROM windlass.namespaces n WHERE n.namespace = $1 AND n.version = $2)
    ORDER BY c.urgent DESC, c.deadline, c.priority DESC, c.ready_at, c.event_id LIMIT $11
), picked AS MATERIALIZED (
    SELECT k.tid, k.lease_us, k.urgent, row_number() OVER () AS n FROM (
        SELECT q.ctid AS tid, c.lease_us, c.urgent FROM chosen c
        JOIN windlass.event_queue q ON q.ctid = c.tid
        WHERE q.namespace = $1 AND q.lease IS NULL AND q.ready_at <= coalesce($3, now())
        FOR UPDATE OF q SKIP LOCKED) AS k
), taken AS (
    UPDATE windlass.event_queue q
    SET lease = ($12::bigint[])[width_bucket(p.n, $14::bigint[])],
        worker_id = ($13::text[])[width_bucket(p.n, $14::bigint[])],
        attempts = q.attempts + 1, picked_at = coalesce($3, now()), started_at = NULL,
        lease_expires_at = coalesce($3, now()) + p.lease_us * interval '1 microsecond',
        updated_at = coalesce($3, now())
    FROM picked p WHERE q.ctid = p.tid
    RETURNING q.event_id, q.lane_id, q.ready_at, q.attempts, q.attempts_limit, q.retry_count, q.max_retries,
              q.lease, q.worker_id, q.picked_at, q.lease_expires_at, q.created_at, p.urgent, p.n
)
SELECT t.event_id, t.lane_id, t.ready_at, t.attempts, t.attempts_limit, t.retry_count,
       t.max_retries, t.lease, t.worker_id, t.picked_at, t.lease_expires_at, t.urgent,
       (SELECT count(*) FROM chosen) AS chosen,
       e.*
FROM unsynced, taken t CROSS JOIN LATERAL (",
    body!(),
    ") AS e"
);

async fn from_many(
    store: &PgStore,
    claim: &Claim,
    floor: i16,
    share: usize,
    slots: &Slots,
    now: Option<Timestamp>,
) -> Result<Vec<PgRow>> {
    let lanes: Vec<i64> = claim.lanes.iter().map(|lane| lane.lane_id).collect();
    let marks = store.marks.read(&lanes);
    let mut connection = store.claims.get().await?;
    let query = sqlx::query(FROM_MANY)
        .bind(&claim.namespace)
        .bind(claim.version)
        .bind(now)
        .bind(lanes)
        .bind(&marks.ready_at)
        .bind(&marks.event_id)
        .bind(claim.lanes.iter().map(|lane| micros(lane.lease)).collect::<Vec<_>>())
        .bind(claim.lanes.iter().map(|lane| micros(lane.deadline_horizon)).collect::<Vec<_>>())
        .bind(claim.lanes.iter().map(|lane| lane.priority).collect::<Vec<_>>())
        .bind(share as i64)
        .bind(slots.left() as i64)
        .bind(&slots.leases)
        .bind(&slots.workers)
        .bind(slots.starts())
        .bind(floor);
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    mark(store, &marks, &rows)?;
    Ok(rows)
}

/// Remembers how far each lane was taken. What was taken for its deadline says nothing about that.
fn mark(store: &PgStore, marks: &Reading, rows: &[PgRow]) -> Result<()> {
    for row in rows {
        if !get::<bool>(row, "urgent")? {
            store.marks.advance(marks, get(row, "lane_id")?, (get(row, "ready_at")?, get(row, "event_id")?));
        }
    }
    Ok(())
}

fn delivery(row: &PgRow, subscription: &str) -> Result<Delivery> {
    Ok(Delivery {
        event: event(row)?,
        subscription: subscription.to_owned(),
        worker_id: get(row, "worker_id")?,
        lease: Lease(get(row, "lease")?),
        attempts: count(row, "attempts")?,
        retry_count: count(row, "retry_count")?,
        max_retries: count_or_none(row, "max_retries")?,
        picked_at: get(row, "picked_at")?,
        lease_expires_at: get(row, "lease_expires_at")?,
        lane_id: get(row, "lane_id")?,
        attempts_limit: count(row, "attempts_limit")?,
    })
}

// From each lane wanted to the next one that has deliveries, and from there to the next one wanted: so of
// many empty lanes hardly any is visited, nor any of other namespaces, although the first step names none.
// The order, which OFFSET 0 keeps, leaves the planner the hot index alone; see `transition::END`.
pub(super) const LOOK: &str = "
WITH RECURSIVE present AS (
    SELECT (SELECT q.lane_id FROM windlass.event_queue q
            WHERE q.lane_id >= ($2::bigint[])[1] ORDER BY q.lane_id LIMIT 1) AS lane_id
    UNION ALL
    SELECT (SELECT q.lane_id FROM windlass.event_queue q
            WHERE q.lane_id >= ($2::bigint[])[width_bucket(p.lane_id, $2::bigint[]) + 1]
            ORDER BY q.lane_id LIMIT 1)
    FROM present p WHERE p.lane_id IS NOT NULL
), found AS (
    SELECT p.lane_id,
        EXISTS (
            SELECT FROM windlass.event_queue q
            WHERE q.lane_id = p.lane_id AND q.namespace = $1 AND q.ready_at <= coalesce($3, now())
              AND q.lease IS NULL AND (q.expires_at IS NULL OR q.expires_at > coalesce($3, now()))
            ORDER BY q.ready_at OFFSET 0) AS claimable,
        EXISTS (
            SELECT FROM windlass.event_queue q
            WHERE q.lane_id = p.lane_id AND q.namespace = $1 AND q.ready_at <= coalesce($3, now())
              AND q.lease IS NOT NULL AND q.lease_expires_at <= coalesce($3, now())
            ORDER BY q.ready_at OFFSET 0) AS run_out,
        (SELECT (extract(epoch FROM q.ready_at - coalesce($3, now())) * 1000000)::bigint
         FROM windlass.event_queue q
         WHERE q.lane_id = p.lane_id AND q.namespace = $1 AND q.ready_at > coalesce($3, now())
           AND q.ready_at < 'infinity' AND q.lease IS NULL
         ORDER BY q.ready_at LIMIT 1) AS next_ready_us
    FROM present p WHERE p.lane_id = ($2::bigint[])[width_bucket(p.lane_id, $2::bigint[])]
)
SELECT n.version, (SELECT count(*) FROM windlass.lanes l WHERE l.namespace = $1) AS lanes, f.*
FROM windlass.namespaces n LEFT JOIN found f ON true WHERE n.namespace = $1";

pub(super) async fn look(
    store: &PgStore,
    namespace: &str,
    lanes: &[i64],
    now: Option<Timestamp>,
) -> Result<Option<Look>> {
    let mut connection = store.claims.get().await?;
    let query = sqlx::query(LOOK).bind(namespace).bind(lanes).bind(now);
    let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    let Some(first) = rows.first() else { return Ok(None) };
    let lanes = get::<i64>(first, "lanes")?.unsigned_abs() as usize;
    let mut look = Look { version: get(first, "version")?, lanes, found: Vec::new() };
    for row in &rows {
        look.found.extend(lane_look(row)?);
    }
    Ok(Some(look))
}

fn lane_look(row: &PgRow) -> Result<Option<LaneLook>> {
    let Some(lane_id) = get(row, "lane_id")? else { return Ok(None) };
    let next_ready_in = get::<Option<i64>>(row, "next_ready_us")?.map(|us| Duration::from_micros(us.unsigned_abs()));
    Ok(Some(LaneLook { lane_id, claimable: get(row, "claimable")?, run_out: get(row, "run_out")?, next_ready_in }))
}
