//! Claims: one statement for a subscription's streams, one for a few lanes.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::PgConnection;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::enqueue::column;
use super::error::from_sqlx;
use super::retry::retry_deadlocks;
use super::row::{Columns, get, json};
use super::run::claim_runs;
use crate::clock::{Timestamp, after, micros};
use crate::error::Result;
use crate::event::Event;
use crate::event::delivery::{Delivery, Lease};
use crate::queue::wake::lock;
use crate::store::{BehindCheck, Claim, ClaimSource, ClaimStore, Claimed, LaneSource, StreamPosition};

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

// Claims from all streams of a subscription: near deadlines, then each priority from the highest to the lowest. At
// priority 0, deliveries in publish order are merged with those out of order. Streams are read one after the other
// until the LIMIT is reached. Rows are locked as they are picked, so concurrent claims never wait for each other.
//
// $15 is the time at which an earlier claim found no lease due. Index entries of leases that were due before it are not
// read again, except for a margin, and unless the clock was set back.
//
// A claim need not survive a server crash, because a lost claim only causes a redelivery. So the commit is not synced.
//
// Rows are updated by a list of ctids: a join would start an index scan for each row.
pub(super) const CLAIM_SUBSCRIPTION: &str = "
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), state AS MATERIALIZED (
    SELECT n.version = $2 AS current, s.priorities,
           EXISTS (SELECT FROM windlass.leases l
                   WHERE l.subscription_id = $4 AND l.check_at <= coalesce($3, now())
                     AND l.check_at > CASE WHEN $15 <= coalesce($3, now()) THEN $15 - interval '10 seconds' ELSE 'epoch' END
                   ORDER BY l.check_at OFFSET 0) AS leases_due,
           (SELECT q.event_id FROM windlass.event_queue q
            WHERE q.subscription_id = $4 ORDER BY q.event_id DESC LIMIT 1) AS newest,
           $19 < (SELECT l.number FROM windlass.lanes l WHERE l.namespace = $1 AND l.number IS NOT NULL
                  ORDER BY l.number DESC LIMIT 1) AS new_lanes
    FROM windlass.namespaces n JOIN windlass.subscriptions s ON s.subscription_id = $4 WHERE n.namespace = $1
), picked AS MATERIALIZED (
    SELECT array_agg(c.tid) AS tids FROM state CROSS JOIN LATERAL (
        SELECT d.tid FROM (
            SELECT q.ctid AS tid FROM windlass.event_queue q
            WHERE q.subscription_id = $4 AND q.lease IS NULL AND q.ready_at <= coalesce($3, now())
              AND q.expires_at > coalesce($3, now()) AND q.expires_at <= coalesce(coalesce($3, now()) + $7 * interval '1 microsecond', 'infinity')
              AND ($5::bigint[] IS NULL OR ($5::bigint[])[width_bucket(q.lane_id, $5::bigint[])] = q.lane_id)
            ORDER BY q.expires_at, q.event_id LIMIT $6 FOR UPDATE SKIP LOCKED) AS d
        UNION ALL
        SELECT m.tid FROM (SELECT p FROM unnest(state.priorities || 0::smallint) AS p ORDER BY p DESC) AS level
        CROSS JOIN LATERAL (
            SELECT i.tid, i.ready_at, i.event_id FROM (
                SELECT q.ctid AS tid, q.ready_at, q.event_id FROM windlass.event_queue q
                WHERE level.p = 0 AND q.subscription_id = $4 AND q.event_id > $8 AND NOT q.out_of_order
                  AND q.lease IS NULL AND (q.expires_at IS NULL OR q.expires_at > coalesce(coalesce($3, now()) + $7 * interval '1 microsecond', 'infinity'))
                  AND ($5::bigint[] IS NULL OR ($5::bigint[])[width_bucket(q.lane_id, $5::bigint[])] = q.lane_id)
                ORDER BY q.event_id LIMIT $6 FOR UPDATE SKIP LOCKED) AS i
            UNION ALL
            SELECT o.tid, o.ready_at, o.event_id FROM (
                SELECT q.ctid AS tid, q.ready_at, q.event_id FROM windlass.event_queue q
                WHERE q.subscription_id = $4 AND q.priority = level.p AND q.out_of_order AND q.lease IS NULL
                  AND (q.ready_at, q.event_id) > (
                      coalesce(($10::timestamptz[])[array_position($9::smallint[], level.p)], '-infinity'),
                      coalesce(($11::bigint[])[array_position($9::smallint[], level.p)], 0))
                  AND q.ready_at <= coalesce($3, now()) AND (q.expires_at IS NULL OR q.expires_at > coalesce(coalesce($3, now()) + $7 * interval '1 microsecond', 'infinity'))
                  AND ($5::bigint[] IS NULL OR ($5::bigint[])[width_bucket(q.lane_id, $5::bigint[])] = q.lane_id)
                ORDER BY q.ready_at, q.event_id LIMIT $6 FOR UPDATE SKIP LOCKED) AS o
            ORDER BY 2, 3) AS m
        LIMIT $6) AS c
    WHERE state.current AND NOT state.leases_due AND state.new_lanes IS NOT TRUE
), taken AS (
    UPDATE windlass.event_queue q
    SET lease = ($12::bigint[])[CASE WHEN cardinality($12::bigint[]) = 1 THEN 1 ELSE
                    width_bucket(array_position((SELECT tids FROM picked), q.ctid), $14::bigint[]) END],
        worker_id = ($13::text[])[CASE WHEN cardinality($12::bigint[]) = 1 THEN 1 ELSE
                    width_bucket(array_position((SELECT tids FROM picked), q.ctid), $14::bigint[]) END],
        attempts = q.attempts + 1, picked_at = coalesce($3, now()), started_at = NULL, updated_at = coalesce($3, now()),
        lease_expires_at = coalesce($3, now()) + interval '1 microsecond' * CASE
            WHEN cardinality($17::text[]) = 0 THEN $16 ELSE windlass._lease_us(q.event_type, $16, $17, $18) END
    WHERE q.ctid = ANY((SELECT tids FROM picked)::tid[])
    RETURNING q.event_id, q.lane_id, q.priority, q.out_of_order, q.ready_at, q.expires_at, q.created_at, q.lease,
              q.attempts, q.retry_count, q.max_retries, q.attempts_limit, q.lease_expires_at
), leased AS (
    INSERT INTO windlass.leases (subscription_id, check_at, claimed_at, lease, namespace, first_id, last_id)
    SELECT $4, min(t.lease_expires_at), coalesce($3, now()), t.lease, $1, min(t.event_id), max(t.event_id)
    FROM taken t GROUP BY t.lease, t.event_id / 1000
)
SELECT s.current, s.leases_due, s.newest, s.new_lanes, coalesce($3, now()), NULL::bigint,
       t.event_id, t.lane_id, t.priority, t.out_of_order, t.ready_at, t.expires_at, t.created_at, t.lease, t.attempts,
       t.retry_count, t.max_retries, t.attempts_limit, t.lease_expires_at
FROM unsynced, state s LEFT JOIN taken t ON true";

// Claims from a few lanes. Each lane offers its first rows without locking them, the best of all are chosen, and only those
// are locked, with the conditions repeated because another claim may have been faster. The repeated conditions are written
// as (…) IS TRUE so that the planner cannot use an index for them.
pub(super) const CLAIM_LANES: &str = "
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), state AS MATERIALIZED (
    SELECT n.version = $2 AS current,
           EXISTS (SELECT FROM windlass.leases l
                   WHERE l.subscription_id = $4 AND l.check_at <= coalesce($3, now())
                     AND l.check_at > CASE WHEN $15 <= coalesce($3, now()) THEN $15 - interval '10 seconds' ELSE 'epoch' END
                   ORDER BY l.check_at OFFSET 0) AS leases_due,
           $19 < (SELECT l.number FROM windlass.lanes l WHERE l.namespace = $1 AND l.number IS NOT NULL
                  ORDER BY l.number DESC LIMIT 1) AS new_lanes
    FROM windlass.namespaces n WHERE n.namespace = $1
), chosen AS MATERIALIZED (
    SELECT array_agg(b.tid) AS tids FROM state CROSS JOIN LATERAL (
        SELECT c.tid FROM (
            SELECT d.tid, d.expires_at AS deadline, l.priority, d.ready_at, d.event_id
            FROM unnest($5::bigint[], $9::smallint[]) AS l(lane_id, priority)
            CROSS JOIN LATERAL (
                SELECT q.ctid AS tid, q.expires_at, q.ready_at, q.event_id FROM windlass.event_queue q
                WHERE q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at <= coalesce($3, now())
                  AND q.expires_at > coalesce($3, now()) AND q.expires_at <= coalesce(coalesce($3, now()) + $7 * interval '1 microsecond', 'infinity')
                ORDER BY q.expires_at, q.event_id LIMIT $6) AS d
            UNION ALL
            SELECT r.tid, NULL, l.priority, r.ready_at, r.event_id
            FROM unnest($5::bigint[], $9::smallint[], $10::timestamptz[], $11::bigint[])
              AS l(lane_id, priority, after_at, after_id)
            CROSS JOIN LATERAL (
                SELECT q.ctid AS tid, q.ready_at, q.event_id FROM windlass.event_queue q
                WHERE q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at <= coalesce($3, now())
                  AND (q.ready_at, q.event_id) > (l.after_at, l.after_id)
                  AND (q.expires_at IS NULL OR q.expires_at > coalesce(coalesce($3, now()) + $7 * interval '1 microsecond', 'infinity'))
                ORDER BY q.ready_at, q.event_id LIMIT $6) AS r) AS c
        ORDER BY c.deadline, c.priority DESC, c.ready_at, c.event_id LIMIT $6) AS b
    WHERE state.current AND NOT state.leases_due AND state.new_lanes IS NOT TRUE AND $8::bigint IS NULL
), picked AS MATERIALIZED (
    SELECT array_agg(k.ctid ORDER BY array_position((SELECT tids FROM chosen), k.ctid)) AS tids FROM (
        SELECT q.ctid FROM windlass.event_queue q
        WHERE q.ctid = ANY((SELECT tids FROM chosen)::tid[]) AND (q.namespace = $1) IS TRUE AND (q.lease IS NULL) IS TRUE
          AND (q.ready_at <= coalesce($3, now())) IS TRUE
        FOR UPDATE SKIP LOCKED) AS k
), taken AS (
    UPDATE windlass.event_queue q
    SET lease = ($12::bigint[])[CASE WHEN cardinality($12::bigint[]) = 1 THEN 1 ELSE
                    width_bucket(array_position((SELECT tids FROM picked), q.ctid), $14::bigint[]) END],
        worker_id = ($13::text[])[CASE WHEN cardinality($12::bigint[]) = 1 THEN 1 ELSE
                    width_bucket(array_position((SELECT tids FROM picked), q.ctid), $14::bigint[]) END],
        attempts = q.attempts + 1, picked_at = coalesce($3, now()), started_at = NULL, updated_at = coalesce($3, now()),
        lease_expires_at = coalesce($3, now()) + interval '1 microsecond' * CASE
            WHEN cardinality($17::text[]) = 0 THEN $16 ELSE windlass._lease_us(q.event_type, $16, $17, $18) END
    WHERE q.ctid = ANY((SELECT tids FROM picked)::tid[])
    RETURNING q.event_id, q.lane_id, q.priority, q.out_of_order, q.ready_at, q.expires_at, q.created_at, q.lease,
              q.attempts, q.retry_count, q.max_retries, q.attempts_limit, q.lease_expires_at
), leased AS (
    INSERT INTO windlass.leases (subscription_id, check_at, claimed_at, lease, namespace, first_id, last_id)
    SELECT $4, min(t.lease_expires_at), coalesce($3, now()), t.lease, $1, min(t.event_id), max(t.event_id)
    FROM taken t GROUP BY t.lease, t.event_id / 1000
)
SELECT s.current, s.leases_due, NULL::bigint, s.new_lanes, coalesce($3, now()),
       (SELECT cardinality(tids) FROM chosen)::bigint,
       t.event_id, t.lane_id, t.priority, t.out_of_order, t.ready_at, t.expires_at, t.created_at, t.lease, t.attempts,
       t.retry_count, t.max_retries, t.attempts_limit, t.lease_expires_at
FROM unsynced, state s LEFT JOIN taken t ON true";

/// A claimed row.
pub(super) struct ClaimedRow {
    pub event_id: i64,
    lane_id: i64,
    priority: i16,
    out_of_order: bool,
    ready_at: Timestamp,
    /// Set if the row was claimed for its near deadline.
    deadline: Option<Timestamp>,
    created_at: Timestamp,
    lease: Lease,
    attempts: u32,
    retry_count: u32,
    max_retries: Option<u32>,
    attempts_limit: u32,
    lease_expires_at: Timestamp,
}

// Reads ranges of ids. The times exclude the partitions of all other months. OFFSET keeps the planner from turning the
// join around.
pub(super) const EVENTS: &str = "
SELECT e.* FROM unnest($2::bigint[], $3::bigint[]) AS r(first, last)
CROSS JOIN LATERAL (
    SELECT e.id, e.event_type, e.title, e.description, e.tags, e.payload::text AS payload, e.group_id, e.key,
           e.priority, e.producer, e.scheduled_task_id::text AS scheduled_task_id, e.run_at, e.expires_at,
           e.metadata::text AS metadata, e.created_at
    FROM windlass.events e
    WHERE e.id BETWEEN r.first AND r.last AND e.created_at BETWEEN $4 AND $5 AND e.namespace = $1 OFFSET 0) AS e";

// Takes no locks: it also sees rows that another transaction has locked and may release.
//
// A publisher has a transaction id before it draws event ids. So every publisher of an event up to $3 has a smaller id
// than this transaction, and once all smaller ids have ended, a check sees all those events. The end of the snapshot
// would not do: transactions after it may be running already.
pub(super) const CHECK_BEHIND: &str = "
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), behind AS MATERIALIZED (
    SELECT (SELECT q.event_id FROM windlass.event_queue q
            WHERE q.subscription_id = $1 AND q.event_id > $2 AND q.event_id <= $3 AND NOT q.out_of_order AND q.lease IS NULL
              AND (q.expires_at IS NULL OR q.expires_at > coalesce($4, now()) AND q.ready_at <= coalesce($4, now()))
              AND ($5::bigint[] IS NULL OR ($5::bigint[])[width_bucket(q.lane_id, $5::bigint[])] = q.lane_id)
            ORDER BY q.event_id LIMIT 1) AS first,
           $6 < (SELECT l.number FROM windlass.lanes l WHERE l.namespace = $7 AND l.number IS NOT NULL
                 ORDER BY l.number DESC LIMIT 1) AS new_lanes
)
SELECT b.first, coalesce(b.new_lanes, false) AS new_lanes, pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS ended,
       CASE WHEN b.first IS NULL THEN pg_current_xact_id()::text::bigint ELSE 0 END AS next,
       (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint AS written,
       (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint AS synced
FROM unsynced, behind b";

#[async_trait]
impl ClaimStore for PgStore {
    async fn claim(&self, claim: &Claim, now: Option<Timestamp>) -> Result<Claimed> {
        retry_deadlocks!(async {
            let checked_from = lock(&self.leases_checked).get(&claim.subscription_id).copied();
            let query = statement(claim, checked_from.unwrap_or(Timestamp::UNIX_EPOCH), now);
            let mut connection = self.claims.get().await?;
            let connects = self.claims.connects();
            let rows = query.fetch_all(&mut *connection).await.map_err(from_sqlx)?;
            let (mut claimed, at) = read(claim, &rows, &mut connection).await?;
            claimed.connects = connects;
            match claim_runs(&mut connection, claim, &claimed.deliveries, now).await {
                Ok(followers) => {
                    claimed.followers = followers;
                    connection.done();
                }
                // The first deliveries are claimed. The others, if they are, are released when their leases expire.
                Err(error) => tracing::debug!(%error, "could not claim runs of groups"),
            }
            if let (Some(at), false) = (at, claimed.leases_due) {
                lock(&self.leases_checked).insert(claim.subscription_id, at);
            }
            Ok(claimed)
        })
    }

    async fn check_behind(&self, claim: &Claim, from: i64, to: i64, now: Option<Timestamp>) -> Result<BehindCheck> {
        let lanes = match &claim.source {
            ClaimSource::Subscription { lanes, .. } => lanes.as_deref(),
            ClaimSource::Lanes(_) => None,
        };
        let mut connection = self.claims.get().await?;
        let query = sqlx::query(CHECK_BEHIND).bind(claim.subscription_id).bind(from).bind(to).bind(now);
        let query = query.bind(lanes).bind(claim.known_lanes).bind(&claim.namespace);
        let row = query.fetch_one(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(BehindCheck {
            first: get(&row, "first")?,
            new_lanes: get(&row, "new_lanes")?,
            ended: get(&row, "ended")?,
            next: get(&row, "next")?,
            written: get(&row, "written")?,
            synced: get(&row, "synced")?,
        })
    }
}

/// Both statements have the same parameters.
fn statement<'q>(claim: &'q Claim, leases_from: Timestamp, now: Option<Timestamp>) -> Query<'q> {
    let horizon = claim.deadline_horizon.map(micros);
    let query = sqlx::query(match &claim.source {
        ClaimSource::Subscription { .. } => CLAIM_SUBSCRIPTION,
        ClaimSource::Lanes(_) => CLAIM_LANES,
    });
    let query = query.bind(&claim.namespace).bind(claim.version).bind(now).bind(claim.subscription_id);
    let query = match &claim.source {
        ClaimSource::Subscription { lanes, after_event, after_ready } => query
            .bind(lanes.as_deref())
            .bind(claim.wanted() as i64)
            .bind(horizon)
            .bind(Some(*after_event))
            .bind(column(after_ready, |(priority, _)| *priority))
            .bind(column(after_ready, |(_, (at, _))| *at))
            .bind(column(after_ready, |(_, (_, event_id))| *event_id)),
        ClaimSource::Lanes(lanes) => query
            .bind(Some(column(lanes, |lane| lane.lane_id)))
            .bind(claim.wanted() as i64)
            .bind(horizon)
            .bind(None::<i64>)
            .bind(column(lanes, |lane| lane.priority))
            .bind(column(lanes, |LaneSource { after: (at, _), .. }| *at))
            .bind(column(lanes, |LaneSource { after: (_, event_id), .. }| *event_id)),
    };
    let mut next = 1;
    let starts = column(&claim.requests, |request| {
        let start = next;
        next += request.max as i64;
        start
    });
    query
        .bind(column(&claim.requests, |request| request.lease.0))
        .bind(column(&claim.requests, |request| request.worker_id.as_str()))
        .bind(starts)
        .bind(leases_from)
        .bind(micros(claim.leases.default))
        .bind(column(&claim.leases.by_type, |(pattern, _)| pattern.as_str()))
        .bind(column(&claim.leases.by_type, |(_, duration)| micros(*duration)))
        .bind(claim.known_lanes)
}

/// The claimed deliveries, and the time of the claim by the database's clock.
async fn read(claim: &Claim, rows: &[PgRow], connection: &mut PgConnection) -> Result<(Claimed, Option<Timestamp>)> {
    let Some(first) = rows.first() else { return Ok((Claimed { outdated: true, ..Claimed::default() }, None)) };
    let mut columns = Columns::of(first);
    let (current, leases_due): (bool, bool) = (columns.next()?, columns.next()?);
    let (newest, new_lanes): (Option<i64>, Option<bool>) = (columns.next()?, columns.next()?);
    let (now, chosen): (Timestamp, Option<i64>) = (columns.next()?, columns.next()?);
    let mut claimed = Claimed { newest, outdated: !current, ..Claimed::default() };
    (claimed.new_lanes, claimed.leases_due) = (new_lanes == Some(true), leases_due);
    if columns.is_null() {
        claimed.contended = chosen.is_some_and(|chosen| chosen > 0);
        return Ok((claimed, Some(now)));
    }
    let mut taken = rows.iter().map(|row| claimed_row(claim, row, 6, now)).collect::<Result<Vec<_>>>()?;
    claimed.contended = chosen.is_some_and(|chosen| chosen > taken.len() as i64);
    taken.sort_by_key(|row| {
        (row.deadline.is_none(), row.deadline, std::cmp::Reverse(row.priority), row.ready_at, row.event_id)
    });
    claimed.positions = column(&taken, |row| row.place(&claim.source));
    claimed.deliveries = deliveries(connection, claim, taken, now).await?;
    Ok((claimed, Some(now)))
}

/// The deliveries with their events.
pub(super) async fn deliveries(
    connection: &mut PgConnection,
    claim: &Claim,
    taken: Vec<ClaimedRow>,
    now: Timestamp,
) -> Result<Vec<Delivery>> {
    let events = read_events(connection, &claim.namespace, &taken).await?;
    let mut by_id: HashMap<i64, Columns<'_>> = HashMap::with_capacity(events.len());
    for event in &events {
        by_id.insert(Columns::of(event).next()?, Columns::of(event));
    }
    let workers: HashMap<Lease, &str> =
        claim.requests.iter().map(|request| (request.lease, request.worker_id.as_str())).collect();
    let mut deliveries = Vec::with_capacity(taken.len());
    for row in taken {
        // A delivery without its event should not exist. If one does, it stays leased and does not block the others.
        if let Some(event) = by_id.get_mut(&row.event_id) {
            deliveries.push(row.into_delivery(event, claim, &workers, now)?);
        }
    }
    Ok(deliveries)
}

/// In the order of the statements' columns, after the first ones.
pub(super) fn claimed_row(claim: &Claim, row: &PgRow, skip: usize, now: Timestamp) -> Result<ClaimedRow> {
    let mut columns = Columns::of(row);
    columns.skip(skip);
    let horizon = claim.deadline_horizon.map(|horizon| after(now, horizon));
    let (event_id, lane_id, priority, out_of_order) =
        (columns.next()?, columns.next()?, columns.next()?, columns.next()?);
    let (ready_at, expires_at): (Timestamp, Option<Timestamp>) = (columns.next()?, columns.next()?);
    Ok(ClaimedRow {
        event_id,
        lane_id,
        priority,
        out_of_order,
        ready_at,
        deadline: expires_at.filter(|expires_at| horizon.is_none_or(|horizon| *expires_at <= horizon)),
        created_at: columns.next()?,
        lease: Lease(columns.next()?),
        attempts: columns.next_count()?,
        retry_count: columns.next_count()?,
        max_retries: columns.next_count_or_none()?,
        attempts_limit: columns.next_count()?,
        lease_expires_at: columns.next()?,
    })
}

impl ClaimedRow {
    fn place(&self, source: &ClaimSource) -> StreamPosition {
        let position = (self.ready_at, self.event_id);
        match source {
            _ if self.deadline.is_some() => StreamPosition::Deadline,
            ClaimSource::Lanes(_) => StreamPosition::Lane { lane_id: self.lane_id, position },
            _ if self.out_of_order => StreamPosition::OutOfOrder { priority: self.priority, position },
            _ => StreamPosition::InOrder { event_id: self.event_id },
        }
    }

    fn into_delivery(
        self,
        event_columns: &mut Columns<'_>,
        claim: &Claim,
        workers: &HashMap<Lease, &str>,
        now: Timestamp,
    ) -> Result<Delivery> {
        Ok(Delivery {
            event: event(event_columns, &claim.namespace)?,
            subscription: claim.subscription.clone(),
            worker_id: workers.get(&self.lease).copied().unwrap_or_default().to_owned(),
            lease: self.lease,
            attempts: self.attempts,
            retry_count: self.retry_count,
            max_retries: self.max_retries,
            picked_at: now,
            lease_expires_at: self.lease_expires_at,
            subscription_id: claim.subscription_id,
            lane_id: self.lane_id,
            attempts_limit: self.attempts_limit,
        })
    }
}

async fn read_events(connection: &mut PgConnection, namespace: &str, taken: &[ClaimedRow]) -> Result<Vec<PgRow>> {
    let created_at = || taken.iter().map(|row| row.created_at);
    let (first, last): (Vec<i64>, Vec<i64>) = runs(taken.iter().map(|row| row.event_id).collect()).into_iter().unzip();
    let query =
        sqlx::query(EVENTS).bind(namespace).bind(first).bind(last).bind(created_at().min()).bind(created_at().max());
    query.fetch_all(connection).await.map_err(from_sqlx)
}

/// Combines ids into ranges.
pub(super) fn runs(mut ids: Vec<i64>) -> Vec<(i64, i64)> {
    ids.sort_unstable();
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for id in ids {
        match runs.last_mut() {
            Some((_, last)) if id - *last <= 1 => *last = id,
            _ => runs.push((id, id)),
        }
    }
    runs
}

/// In the order of the columns of `EVENTS`.
fn event(columns: &mut Columns<'_>, namespace: &str) -> Result<Event> {
    Ok(Event {
        id: columns.next()?,
        namespace: namespace.to_owned(),
        event_type: columns.next()?,
        title: columns.next()?,
        description: columns.next()?,
        tags: columns.next()?,
        payload: json(columns.next()?)?,
        group_id: columns.next()?,
        key: columns.next()?,
        priority: columns.next()?,
        producer: columns.next()?,
        scheduled_task_id: columns.next()?,
        run_at: columns.next()?,
        expires_at: columns.next()?,
        metadata: columns.next::<Option<String>>()?.map(json).transpose()?,
        created_at: columns.next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_in_ranges() {
        assert_eq!(runs(vec![7, 3, 4, 1, 2, 9]), [(1, 4), (7, 7), (9, 9)]);
        assert_eq!(runs(vec![5, 5]), [(5, 5)]);
    }
}
