//! What a claim took, with its events.

use std::cmp::Reverse;
use std::collections::HashMap;

use sqlx::PgConnection;
use sqlx::postgres::PgRow;

use crate::clock::{Timestamp, after};
use crate::delivery::{Delivery, Lease};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::store::postgres::error::from_sqlx;
use crate::store::postgres::row::{Columns, json};
use crate::store::{Claim, LaneClaim};

/// What a statement took, best first.
pub(super) struct Taken {
    pub deliveries: Vec<Delivery>,
    /// How far each lane was taken.
    pub last: HashMap<i64, (Timestamp, i64)>,
    /// How many it had chosen from many lanes, before it locked them.
    chosen: usize,
}

impl Taken {
    /// Reads the events that the rows do not have.
    pub async fn read(claim: &Claim, rows: &[PgRow], connection: &mut PgConnection) -> Result<Taken> {
        let lanes: HashMap<i64, &LaneClaim> = claim.lanes.iter().map(|lane| (lane.lane_id, lane)).collect();
        let mut held = rows.iter().map(|row| Held::read(row, &lanes)).collect::<Result<Vec<Held<'_>>>>()?;
        held.sort_by_key(Held::order);
        let (last, chosen) = (last(&held), held.first().map_or(0, |held| held.chosen));
        let apart = match held.iter().all(|held| held.has_event()) {
            true => Vec::new(),
            false => events(connection, &claim.namespace, &held).await?,
        };
        let mut by_id: HashMap<i64, &PgRow> = HashMap::with_capacity(apart.len());
        for row in &apart {
            by_id.insert(Columns::of(row).next()?, row);
        }
        let workers = claim.requests.iter().map(|request| (request.lease, request.worker_id.as_str())).collect();
        let mut deliveries = Vec::with_capacity(held.len());
        for mut held in held {
            if let Some(row) = by_id.get(&held.event_id) {
                held.event = Columns::of(row);
            }
            if held.has_event() {
                deliveries.push(held.into_delivery(claim, &workers)?);
            }
        }
        Ok(Taken { deliveries, last, chosen })
    }

    /// Whether others took some of what was chosen, or a lane gave all it was asked for.
    pub fn leaves_some(&self, share: usize) -> bool {
        let mut of_lane: HashMap<i64, usize> = HashMap::new();
        self.deliveries.iter().for_each(|delivery| *of_lane.entry(delivery.lane_id).or_default() += 1);
        let taken = self.deliveries.len();
        taken > 0 && (self.chosen > taken || of_lane.into_values().any(|count| count >= share))
    }
}

/// A row that is held now. Its event may have to be read yet.
struct Held<'a> {
    event_id: i64,
    lane: &'a LaneClaim,
    ready_at: Timestamp,
    /// Taken for its deadline, which says nothing about how far the lane was taken.
    urgent: Option<Timestamp>,
    created_at: Timestamp,
    lease: Lease,
    attempts: u32,
    retry_count: u32,
    max_retries: Option<u32>,
    attempts_limit: u32,
    picked_at: Timestamp,
    chosen: usize,
    event: Columns<'a>,
}

impl<'a> Held<'a> {
    /// In the order of `taken!`.
    fn read(row: &'a PgRow, lanes: &HashMap<i64, &'a LaneClaim>) -> Result<Held<'a>> {
        let mut columns = Columns::of(row);
        let (event_id, lane_id, ready_at) = (columns.next()?, columns.next::<i64>()?, columns.next()?);
        let (expires_at, created_at) = (columns.next::<Option<Timestamp>>()?, columns.next()?);
        let (lease, attempts, retry_count) = (Lease(columns.next()?), columns.next_count()?, columns.next_count()?);
        let (max_retries, attempts_limit) = (columns.next_count_or_none()?, columns.next_count()?);
        let (picked_at, chosen) = (columns.next()?, columns.next_count_or_none()?);
        let unasked = || Error::Database { detail: format!("a delivery of lane {lane_id}, which was not asked") };
        let lane = lanes.get(&lane_id).copied().ok_or_else(unasked)?;
        Ok(Held {
            event_id,
            lane,
            ready_at,
            urgent: expires_at.filter(|expires_at| *expires_at <= after(picked_at, lane.deadline_horizon)),
            created_at,
            lease,
            attempts,
            retry_count,
            max_retries,
            attempts_limit,
            picked_at,
            chosen: chosen.unwrap_or(0) as usize,
            event: columns,
        })
    }

    /// Near deadlines first, then by priority, then the earliest.
    fn order(&self) -> impl Ord + use<> {
        (self.urgent.is_none(), self.urgent, Reverse(self.lane.priority), self.ready_at, self.event_id)
    }

    fn has_event(&self) -> bool {
        !self.event.is_null()
    }

    fn into_delivery(mut self, claim: &Claim, workers: &HashMap<Lease, &str>) -> Result<Delivery> {
        let worker_id = workers.get(&self.lease).copied().unwrap_or_default();
        Ok(Delivery {
            event: event(&mut self.event, &claim.namespace)?,
            subscription: claim.subscription.clone(),
            worker_id: worker_id.to_owned(),
            lease: self.lease,
            attempts: self.attempts,
            retry_count: self.retry_count,
            max_retries: self.max_retries,
            picked_at: self.picked_at,
            lease_expires_at: after(self.picked_at, self.lane.lease),
            lane_id: self.lane.lane_id,
            attempts_limit: self.attempts_limit,
        })
    }
}

/// The last of each lane, in the order in which they come.
fn last(held: &[Held<'_>]) -> HashMap<i64, (Timestamp, i64)> {
    let in_order = held.iter().filter(|held| held.urgent.is_none());
    in_order.map(|held| (held.lane.lane_id, (held.ready_at, held.event_id))).collect()
}

// In runs, as they were published. The instants leave out all months but theirs. OFFSET keeps the planner from turning the
// join around.
pub(in crate::store::postgres) const EVENTS: &str = concat!(
    "
SELECT e.* FROM unnest($2::bigint[], $3::bigint[]) AS r(first, last)
CROSS JOIN LATERAL (
    SELECT ",
    event!(),
    "
    FROM windlass.events e
    WHERE e.id BETWEEN r.first AND r.last AND e.created_at BETWEEN $4 AND $5 AND e.namespace = $1 OFFSET 0) AS e"
);

async fn events(connection: &mut PgConnection, namespace: &str, held: &[Held<'_>]) -> Result<Vec<PgRow>> {
    let created_at = || held.iter().map(|held| held.created_at);
    let (first, last): (Vec<i64>, Vec<i64>) = runs(held.iter().map(|held| held.event_id).collect()).into_iter().unzip();
    let query =
        sqlx::query(EVENTS).bind(namespace).bind(first).bind(last).bind(created_at().min()).bind(created_at().max());
    query.fetch_all(connection).await.map_err(from_sqlx)
}

/// Ids as ranges.
fn runs(mut ids: Vec<i64>) -> Vec<(i64, i64)> {
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

/// In the order of `event!`.
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
    fn events_are_read_in_runs() {
        assert_eq!(runs(vec![7, 3, 4, 1, 2, 9]), [(1, 4), (7, 7), (9, 9)]);
        assert_eq!(runs(vec![5, 5]), [(5, 5)]);
    }
}
