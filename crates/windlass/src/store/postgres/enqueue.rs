//! Adding deliveries of stored events to the queue: for redrives, backfills and arrivals. See `publish.rs` for new
//! events.

use std::collections::{BTreeSet, HashSet};

use sqlx::PgConnection;

use super::error::from_sqlx;
use super::group::{self, Entries, NewMember};
use super::lanes::insert_lanes;
use super::topology;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::queue::wake::ReadyLane;
use crate::store::NewDelivery;
use crate::topology::lanes::{LaneKey, split_tags};

/// A delivery of a stored event.
pub(super) struct Row<'a> {
    pub event_id: i64,
    pub created_at: Timestamp,
    pub delivery: &'a NewDelivery,
    pub event_type: &'a str,
    pub tags: &'a str,
    pub priority: i16,
    pub group_id: Option<&'a str>,
    pub expires_at: Option<Timestamp>,
    /// The earliest start; `None`: now.
    pub run_at: Option<Timestamp>,
    pub attempts: i32,
    /// See [`NewMember::is_past`].
    pub is_past: bool,
}

impl Row<'_> {
    fn member(&self) -> NewMember<'_> {
        let Row { delivery, group_id, run_at, event_id, is_past, .. } = *self;
        NewMember { delivery, group_id, order: event_id, run_at, delay: None, is_past }
    }
}

// The events were published before, so the deliveries are out of order.
const ENQUEUE: &str = "
INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type, priority,
    out_of_order, ready_at, due_at, attempts, attempts_limit, max_retries, group_id, expires_at, updated_at, created_at)
SELECT d.event_id, d.subscription_id, d.lane_id, $1, d.subscription, d.event_type, d.priority, true,
       CASE WHEN d.waits THEN 'infinity' ELSE greatest(d.run_at, d.due_at, coalesce($2, now())) END, d.due_at,
       d.attempts, d.attempts_limit, d.max_retries, d.group_id, d.expires_at, coalesce($2, now()), d.created_at
FROM unnest($3::bigint[], $4::bigint[], $5::text[], $6::boolean[], $7::timestamptz[], $8::integer[],
            $9::integer[], $10::integer[], $11::text[], $12::timestamptz[], $13::timestamptz[], $14::bigint[], $15::text[],
            $16::smallint[], $17::timestamptz[])
  AS d(event_id, lane_id, subscription, waits, run_at, attempts, attempts_limit, max_retries, group_id,
       expires_at, created_at, subscription_id, event_type, priority, due_at)";

/// Adds the deliveries, in the order of their groups. Their lanes may have been removed since they were routed.
pub(super) async fn enqueue(
    connection: &mut PgConnection,
    namespace: &str,
    rows: &[Row<'_>],
    now: Option<Timestamp>,
) -> Result<()> {
    let lanes = existing_lanes(connection, namespace, rows, now).await?;
    insert(connection, namespace, rows, lanes, now).await.map(drop)
}

/// Adds the deliveries to these lanes, in the order of their groups. The transaction must hold the topology lock.
/// Returns the lanes in which groups made a delivery ready.
pub(super) async fn insert(
    connection: &mut PgConnection,
    namespace: &str,
    rows: &[Row<'_>],
    lanes: Vec<i64>,
    now: Option<Timestamp>,
) -> Result<Vec<ReadyLane>> {
    let members = || rows.iter().map(Row::member);
    let entered = group::enter(connection, namespace, members(), false, now).await?;
    let planned = Entries::new(&entered, members());
    let insert = sqlx::query(ENQUEUE)
        .bind(namespace)
        .bind(now)
        .bind(column(rows, |row| row.event_id))
        .bind(lanes)
        .bind(column(rows, |row| row.delivery.subscription.as_str()))
        .bind(column(&planned.entries, |entry| entry.waits))
        .bind(column(rows, |row| row.run_at))
        .bind(column(rows, |row| row.attempts))
        .bind(column(rows, |row| row.attempts + signed(row.delivery.attempts_limit)))
        .bind(column(rows, |row| row.delivery.max_retries.map(signed)))
        .bind(column(rows, |row| row.group_id))
        .bind(column(rows, |row| row.expires_at))
        .bind(column(rows, |row| row.created_at))
        .bind(column(rows, |row| row.delivery.subscription_id))
        .bind(column(rows, |row| row.event_type))
        .bind(column(rows, |row| row.priority))
        .bind(optional(&planned.entries, |entry| entry.due_at));
    insert.execute(&mut *connection).await.map_err(from_sqlx)?;
    planned.settle(connection, namespace, now).await
}

const REMOVED_LANES: &str = "
SELECT i.lane_id FROM unnest($1::bigint[]) AS i(lane_id)
WHERE NOT EXISTS (SELECT FROM windlass.lanes l WHERE l.lane_id = i.lane_id)";

/// The lanes of the deliveries. Creates lanes again that were removed after routing; takes the topology lock, so that
/// no lane is removed before this transaction ends.
async fn existing_lanes(
    connection: &mut PgConnection,
    namespace: &str,
    rows: &[Row<'_>],
    now: Option<Timestamp>,
) -> Result<Vec<i64>> {
    topology::lock_shared(&mut *connection, namespace, None).await?;
    let mut lanes = column(rows, |row| row.delivery.lane_id);
    let removed = sqlx::query_scalar(REMOVED_LANES).bind(&lanes).fetch_all(&mut *connection).await;
    let removed: HashSet<i64> = removed.map_err(from_sqlx)?.into_iter().collect();
    let missing: Vec<usize> = (0..rows.len()).filter(|at| removed.contains(&lanes[*at])).collect();
    if !missing.is_empty() {
        let key = |at: &usize| {
            let row = &rows[*at];
            let tags: BTreeSet<String> = split_tags(row.tags).iter().map(|tag| tag.trim_ascii().to_owned()).collect();
            LaneKey {
                subscription_id: row.delivery.subscription_id,
                event_type: row.event_type.to_owned(),
                tags: tags.into_iter().filter(|tag| !tag.is_empty()).collect(),
                priority: row.priority,
            }
        };
        let keys: Vec<LaneKey> = missing.iter().map(key).collect();
        let ids = insert_lanes(connection, namespace, &keys, now).await?;
        missing.into_iter().zip(ids).for_each(|(at, id)| lanes[at] = id);
    }
    Ok(lanes)
}

/// One field of every row, as an array to bind.
pub(super) fn column<'a, R, T>(rows: &'a [R], field: impl FnMut(&'a R) -> T) -> Vec<T> {
    rows.iter().map(field).collect()
}

/// As [`column`], but empty if no row has the field: `unnest` pads it with nulls, and reading an array of nulls costs
/// as much as one of values.
pub(super) fn optional<'a, R, T>(rows: &'a [R], field: impl FnMut(&'a R) -> Option<T>) -> Vec<Option<T>> {
    let values = column(rows, field);
    if values.iter().all(Option::is_none) { Vec::new() } else { values }
}

/// As [`optional`]: `true`, or null.
pub(super) fn flags<'a, R>(rows: &'a [R], mut flag: impl FnMut(&'a R) -> bool) -> Vec<Option<bool>> {
    optional(rows, |row| flag(row).then_some(true))
}

/// Converts a count. Counts are far below the limit of this type.
pub(super) fn signed(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
