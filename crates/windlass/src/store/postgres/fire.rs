//! Firing schedules: records ticks, publishes their events and sets the next tick, in one transaction.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::PgStore;
use super::enqueue::{column, signed};
use super::error::from_sqlx;
use super::publish::{self, Batch, IDS};
use super::retry::retry_deadlocks;
use super::row::get;
use super::schedules::changed_at;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::queue::wake::ReadyLane;
use crate::store::{FireOutcome, FireOutcomes, FireStore, Firing, PreparedEvent, PublishOutcome, Tick};

/// The transaction of an application may hold a group's lock for any time.
const WAIT_BRIEFLY: &str = "SET LOCAL lock_timeout = '200ms'";

#[async_trait]
impl FireStore for PgStore {
    async fn fire(
        &self,
        namespace: &str,
        version: i64,
        firings: &[Firing],
        events: Arc<Vec<PreparedEvent>>,
        manual: bool,
        now: Option<Timestamp>,
    ) -> Result<FireOutcomes> {
        let batch = Fire { namespace, version, events: &events, manual, now };
        if manual {
            return retry_deadlocks!(self.fire_once(&batch, firings));
        }
        // One firing must not delay the others: neither by waiting for a lock nor by a retry after a deadlock.
        match self.fire_once(&batch, firings).await {
            Err(error @ Error::DatabaseLocked { .. }) => Ok(FireOutcomes::Blocked(error)),
            fired => fired,
        }
    }
}

impl PgStore {
    async fn fire_once(&self, batch: &Fire<'_>, firings: &[Firing]) -> Result<FireOutcomes> {
        let mut connection = self.writes.get().await?;
        let mut tx = connection.begin().await.map_err(from_sqlx)?;
        if !batch.manual {
            tx.execute(WAIT_BRIEFLY).await.map_err(from_sqlx)?;
        }
        let fired = batch.run(&mut tx, firings).await?;
        match fired {
            Some(_) => tx.commit().await.map_err(from_sqlx)?,
            None => tx.rollback().await.map_err(from_sqlx)?,
        }
        connection.done();
        let Some((moved, ready_lanes)) = fired else { return Ok(FireOutcomes::OtherVersion) };
        self.notify(batch.namespace, ready_lanes);
        Ok(FireOutcomes::Done(moved))
    }
}

macro_rules! unchanged {
    ($lock:literal) => {
        concat!(
            "
SELECT i.n - 1 AS place
FROM unnest($2::text[], $3::timestamptz[], $4::timestamptz[]) WITH ORDINALITY AS i(schedule_id, next_at, updated_at, n)
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.schedules s
    WHERE s.schedule_id = i.schedule_id::uuid AND s.namespace = $1
      AND s.next_at IS NOT DISTINCT FROM i.next_at AND s.updated_at = i.updated_at
    ",
            $lock,
            ") AS locked"
        )
    };
}

pub(super) const LOCK: &str = unchanged!("FOR UPDATE SKIP LOCKED");

const LOCK_WAITING: &str = unchanged!("FOR UPDATE");

// The event ids are drawn before, so that each record is written once.
const RECORD: &str = "
INSERT INTO windlass.schedule_fires AS f (schedule_id, tick_at, manual, namespace, fired_at, event_id, skipped, error)
SELECT i.schedule_id::uuid, i.tick_at, $3, $1, coalesce($2, now()), i.event_id, i.skipped, i.error
FROM unnest($4::text[], $5::timestamptz[], $6::bigint[], $7::integer[], $8::text[])
  AS i(schedule_id, tick_at, event_id, skipped, error)
ON CONFLICT (schedule_id, tick_at, manual) DO NOTHING
RETURNING f.schedule_id::text AS schedule_id, f.tick_at";

pub(super) const MOVE: &str = concat!(
    "
UPDATE windlass.schedules s SET next_at = i.next_at, last_at = greatest(i.last_at, s.last_at),
    last_event_id = CASE WHEN s.last_at > i.last_at THEN s.last_event_id
                         ELSE coalesce(i.last_event_id, s.last_event_id) END,
    updated_at = ",
    changed_at!("$2"),
    "
FROM unnest($3::text[], $4::timestamptz[], $5::timestamptz[], $6::bigint[])
  AS i(schedule_id, next_at, last_at, last_event_id)
WHERE s.schedule_id = i.schedule_id::uuid AND s.namespace = $1
RETURNING s.schedule_id::text AS schedule_id, s.updated_at"
);

struct Fire<'a> {
    namespace: &'a str,
    version: i64,
    events: &'a [PreparedEvent],
    manual: bool,
    now: Option<Timestamp>,
}

/// A tick with the id that its event will have.
struct Due<'a> {
    schedule_id: &'a str,
    tick: &'a Tick,
    event_id: Option<i64>,
}

impl Fire<'_> {
    async fn run(
        &self,
        connection: &mut PgConnection,
        firings: &[Firing],
    ) -> Result<Option<(Vec<Option<FireOutcome>>, Vec<ReadyLane>)>> {
        let places = self.lock(connection, firings).await?;
        let mut moved: Vec<Option<FireOutcome>> = firings.iter().map(|_| None).collect();
        if places.is_empty() {
            return Ok(Some((moved, Vec::new())));
        }
        let locked: Vec<&Firing> = places.iter().map(|place| &firings[*place]).collect();
        let due = self.with_ids(connection, &locked).await?;
        let new = self.record(connection, &due).await?;
        let Some((stored, ready_lanes)) = self.publish(connection, &new).await? else { return Ok(None) };
        let mut updated = self.set_next_ticks(connection, &locked, &new).await?;
        let mut stored_of: HashMap<&str, Vec<(usize, PublishOutcome)>> = HashMap::new();
        for (id, place, stored) in stored {
            stored_of.entry(id).or_default().push((place, stored));
        }
        for (place, firing) in places.into_iter().zip(locked) {
            let id = firing.schedule_id.as_str();
            let stored = stored_of.remove(id).unwrap_or_default();
            moved[place] = updated.remove(id).map(|updated_at| FireOutcome { stored, updated_at });
        }
        Ok(Some((moved, ready_lanes)))
    }

    /// The indexes of the firings whose schedule has not changed since it was read and is not locked by another
    /// transaction.
    async fn lock(&self, connection: &mut PgConnection, firings: &[Firing]) -> Result<Vec<usize>> {
        let lock = sqlx::query_scalar::<_, i64>(if self.manual { LOCK_WAITING } else { LOCK })
            .bind(self.namespace)
            .bind(column(firings, |firing| firing.schedule_id.as_str()))
            .bind(column(firings, |firing| firing.next_at))
            .bind(column(firings, |firing| firing.updated_at));
        let mut places = lock.fetch_all(connection).await.map_err(from_sqlx)?;
        places.sort_unstable();
        Ok(places.into_iter().map(|place| place.unsigned_abs() as usize).collect())
    }

    async fn with_ids<'f>(&self, connection: &mut PgConnection, firings: &[&'f Firing]) -> Result<Vec<Due<'f>>> {
        let events = firings.iter().flat_map(|firing| &firing.ticks).filter(|tick| tick.event.is_some()).count();
        let mut ids = Vec::new();
        if events > 0 {
            let draw = sqlx::query_scalar::<_, i64>(IDS).bind(events as i64);
            ids = draw.fetch_all(connection).await.map_err(from_sqlx)?;
        }
        let mut ids = ids.into_iter();
        let mut due = Vec::new();
        for firing in firings {
            for tick in &firing.ticks {
                let event_id = tick.event.and_then(|_| ids.next());
                due.push(Due { schedule_id: &firing.schedule_id, tick, event_id });
            }
        }
        Ok(due)
    }

    /// Records the ticks. Returns those that were not recorded before.
    async fn record<'d>(&self, connection: &mut PgConnection, due: &'d [Due<'d>]) -> Result<Vec<&'d Due<'d>>> {
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let record = sqlx::query(RECORD)
            .bind(self.namespace)
            .bind(self.now)
            .bind(self.manual)
            .bind(column(due, |due| due.schedule_id))
            .bind(column(due, |due| due.tick.at))
            .bind(column(due, |due| due.event_id))
            .bind(column(due, |due| signed(due.tick.skipped)))
            .bind(column(due, |due| due.tick.error.as_deref()));
        let mut new: HashSet<(String, Timestamp)> = HashSet::new();
        for row in record.fetch_all(connection).await.map_err(from_sqlx)? {
            new.insert((get(&row, "schedule_id")?, get(&row, "tick_at")?));
        }
        let is_new = |due: &&Due| new.contains(&(due.schedule_id.to_owned(), due.tick.at));
        Ok(due.iter().filter(is_new).collect())
    }

    /// Stores the events of these ticks. Returns each with its firing and its index among the events. `None`: the
    /// namespace has another version.
    async fn publish<'d>(
        &self,
        connection: &mut PgConnection,
        new: &[&Due<'d>],
    ) -> Result<Option<(Vec<(&'d str, usize, PublishOutcome)>, Vec<ReadyLane>)>> {
        let with_events = || new.iter().filter_map(|due| due.tick.event.map(|place| (*due, place)));
        let events: Vec<&PreparedEvent> = with_events().map(|(_, place)| &self.events[place]).collect();
        if events.is_empty() {
            return Ok(Some((Vec::new(), Vec::new())));
        }
        let ids = with_events().map(|(due, _)| due.event_id).collect();
        let batch = Batch { namespace: self.namespace, version: self.version, events: &events, ids };
        let Some(published) = publish::store_new(connection, batch, self.now).await? else { return Ok(None) };
        let stored = with_events().zip(published.stored).map(|((due, place), stored)| (due.schedule_id, place, stored));
        Ok(Some((stored.collect(), published.ready_lanes)))
    }

    /// Sets the next ticks. Returns when each schedule was changed.
    async fn set_next_ticks(
        &self,
        connection: &mut PgConnection,
        firings: &[&Firing],
        new: &[&Due<'_>],
    ) -> Result<HashMap<String, Timestamp>> {
        let with_events = new.iter().filter_map(|due| Some((due.schedule_id, (due.tick.at, due.event_id?))));
        // Of several events of one schedule, the last one is kept.
        let last: HashMap<&str, (Timestamp, i64)> = with_events.collect();
        let last_of = |firing: &&Firing| last.get(firing.schedule_id.as_str()).copied();
        let advance = sqlx::query(MOVE)
            .bind(self.namespace)
            .bind(self.now)
            .bind(column(firings, |firing| firing.schedule_id.as_str()))
            .bind(column(firings, |firing| firing.then_at))
            .bind(column(firings, |firing| last_of(firing).map(|(tick, _)| tick)))
            .bind(column(firings, |firing| last_of(firing).map(|(_, event_id)| event_id)));
        let mut updated = HashMap::with_capacity(firings.len());
        for row in advance.fetch_all(connection).await.map_err(from_sqlx)? {
            updated.insert(get(&row, "schedule_id")?, get(&row, "updated_at")?);
        }
        Ok(updated)
    }
}
