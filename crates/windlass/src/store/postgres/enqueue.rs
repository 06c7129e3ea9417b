//! Deliveries on their way into the queue, and those of events that are stored already.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::error::from_sqlx;
use super::group::{self, Freed, Group, Groups};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::store::NewDelivery;

/// For each delivery of a group, in order, whether it has to wait for others.
pub(super) struct Waits {
    waits: std::vec::IntoIter<bool>,
    /// Groups that go on past waiting retries and got a new member behind others.
    passing: Groups<bool>,
}

impl Waits {
    /// Enters the groups of these deliveries, given in the order in which they will be stored.
    pub async fn enter<'a>(
        connection: &mut PgConnection,
        namespace: &str,
        deliveries: impl Iterator<Item = (Option<&'a str>, &'a NewDelivery)>,
    ) -> Result<Waits> {
        let deliveries: Vec<_> = deliveries.collect();
        let mut members: Groups<i64> = Groups::new();
        for (group_id, delivery) in &deliveries {
            if let Some(group_id) = group_id {
                *members.entry((delivery.subscription.clone(), group_id.to_string())).or_default() += 1;
            }
        }
        let mut busy: HashMap<Group, bool> = HashMap::new();
        if !members.is_empty() {
            busy = group::enter(connection, namespace, &members).await?;
        }
        let (mut waits, mut passing) = (Vec::with_capacity(deliveries.len()), Groups::new());
        for (group_id, delivery) in deliveries {
            let Some(group_id) = group_id else {
                waits.push(false);
                continue;
            };
            let group = (delivery.subscription.clone(), group_id.to_owned());
            // The first member of an empty group makes it busy for the others.
            let wait = busy.insert(group.clone(), true).unwrap_or(false);
            if wait && delivery.pass_group {
                passing.insert(group, true);
            }
            waits.push(wait);
        }
        Ok(Waits { waits: waits.into_iter(), passing })
    }

    pub fn next(&mut self) -> bool {
        self.waits.next().unwrap_or(false)
    }

    /// After the deliveries are stored: a new one goes before those that wait for a retry.
    pub async fn pass(
        &self,
        connection: &mut PgConnection,
        namespace: &str,
        now: Option<Timestamp>,
    ) -> Result<Vec<Freed>> {
        if self.passing.is_empty() {
            return Ok(Vec::new());
        }
        group::advance(connection, namespace, &self.passing, now).await
    }
}

/// A delivery of a stored event.
pub(super) struct Row<'a> {
    pub event_id: i64,
    pub created_at: Timestamp,
    pub delivery: &'a NewDelivery,
    pub group_id: Option<&'a str>,
    pub expires_at: Option<Timestamp>,
    /// `None`: at once.
    pub due_at: Option<Timestamp>,
    pub attempts: i32,
}

const ENQUEUE: &str = "
INSERT INTO windlass.event_queue (event_id, lane_id, namespace, subscription, ready_at, due_at, attempts,
    attempts_limit, max_retries, group_id, expires_at, updated_at, created_at)
SELECT d.event_id, d.lane_id, $1, d.subscription,
       CASE WHEN d.waits THEN 'infinity' ELSE coalesce(d.due_at, coalesce($2, now())) END,
       CASE WHEN d.group_id IS NOT NULL THEN coalesce(d.due_at, coalesce($2, now())) END,
       d.attempts, d.attempts_limit, d.max_retries, d.group_id, d.expires_at, coalesce($2, now()), d.created_at
FROM unnest($3::bigint[], $4::bigint[], $5::text[], $6::boolean[], $7::timestamptz[], $8::integer[],
            $9::integer[], $10::integer[], $11::text[], $12::timestamptz[], $13::timestamptz[])
  AS d(event_id, lane_id, subscription, waits, due_at, attempts, attempts_limit, max_retries, group_id,
       expires_at, created_at)";

/// Adds them, in their groups' order.
pub(super) async fn enqueue(
    connection: &mut PgConnection,
    namespace: &str,
    rows: &[Row<'_>],
    now: Option<Timestamp>,
) -> Result<()> {
    let deliveries = rows.iter().map(|row| (row.group_id, row.delivery));
    let mut waits = Waits::enter(connection, namespace, deliveries).await?;
    let insert = sqlx::query(ENQUEUE)
        .bind(namespace)
        .bind(now)
        .bind(column(rows, |row| row.event_id))
        .bind(column(rows, |row| row.delivery.lane_id))
        .bind(column(rows, |row| row.delivery.subscription.as_str()))
        .bind(rows.iter().map(|_| waits.next()).collect::<Vec<bool>>())
        .bind(column(rows, |row| row.due_at))
        .bind(column(rows, |row| row.attempts))
        .bind(column(rows, |row| row.attempts + signed(row.delivery.attempts_limit)))
        .bind(column(rows, |row| row.delivery.max_retries.map(signed)))
        .bind(column(rows, |row| row.group_id))
        .bind(column(rows, |row| row.expires_at))
        .bind(column(rows, |row| row.created_at));
    insert.execute(&mut *connection).await.map_err(from_sqlx)?;
    waits.pass(connection, namespace, now).await.map(drop)
}

/// One field of every row, as an array to bind.
pub(super) fn column<'a, R, T>(rows: &'a [R], field: impl FnMut(&'a R) -> T) -> Vec<T> {
    rows.iter().map(field).collect()
}

/// As [`column`]; nothing at all where no row has it. `unnest` takes what is missing for null, and reading a column of
/// nulls costs as much as one of values.
pub(super) fn optional<'a, R, T>(rows: &'a [R], field: impl FnMut(&'a R) -> Option<T>) -> Vec<Option<T>> {
    let values = column(rows, field);
    if values.iter().all(Option::is_none) { Vec::new() } else { values }
}

/// As [`optional`]: true, or null.
pub(super) fn flags<'a, R>(rows: &'a [R], mut flag: impl FnMut(&'a R) -> bool) -> Vec<Option<bool>> {
    optional(rows, |row| flag(row).then_some(true))
}

/// Counts are bounded far below this type's end.
pub(super) fn signed(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
