//! Firing schedules: records ticks, publishes their events and sets the next tick, in one transaction.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};

use super::{SqliteStore, publish, row};
use crate::clock::{Timestamp, from_micros};
use crate::error::Result;
use crate::store::{FireOutcome, FireOutcomes, FireStore, Firing, PreparedEvent, PublishOutcome, Tick};

#[async_trait]
impl FireStore for SqliteStore {
    async fn fire(
        &self,
        namespace: &str,
        version: i64,
        firings: &[Firing],
        events: Arc<Vec<PreparedEvent>>,
        manual: bool,
        now: Option<Timestamp>,
    ) -> Result<FireOutcomes> {
        let (namespace, firings) = (namespace.to_owned(), firings.to_vec());
        self.write(now, move |conn, now| fire(conn, &namespace, version, &firings, &events, manual, now)).await
    }
}

fn fire(
    conn: &Connection,
    namespace: &str,
    version: i64,
    firings: &[Firing],
    events: &[PreparedEvent],
    manual: bool,
    now: i64,
) -> Result<FireOutcomes> {
    if row::version(conn, namespace)? != Some(version) {
        return Ok(FireOutcomes::OtherVersion);
    }
    let fire = Fire { conn, namespace, events, manual, now };
    firings.iter().map(|firing| fire.one(firing)).collect::<Result<Vec<_>>>().map(FireOutcomes::Done)
}

struct Fire<'a> {
    conn: &'a Connection,
    namespace: &'a str,
    events: &'a [PreparedEvent],
    manual: bool,
    now: i64,
}

const AS_READ: &str = "
SELECT 1 FROM schedules WHERE schedule_id = ?2 AND namespace = ?1 AND next_at IS ?3 AND updated_at = ?4";

const ON_RECORD: &str = "SELECT 1 FROM schedule_fires WHERE schedule_id = ?1 AND tick_at = ?2 AND manual = ?3";

const RECORD: &str = "
INSERT INTO schedule_fires (schedule_id, tick_at, manual, namespace, fired_at, event_id, skipped, error)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

const MOVE: &str = "
UPDATE schedules SET next_at = ?3,
    last_at = CASE WHEN last_at > ?4 THEN last_at ELSE coalesce(?4, last_at) END,
    last_event_id = CASE WHEN last_at > ?4 THEN last_event_id ELSE coalesce(?5, last_event_id) END,
    updated_at = max(?6, updated_at + 1)
WHERE schedule_id = ?2 AND namespace = ?1
RETURNING updated_at";

impl Fire<'_> {
    fn one(&self, firing: &Firing) -> Result<Option<FireOutcome>> {
        let mut as_read = self.conn.prepare_cached(AS_READ)?;
        let (id, updated_at) = (&firing.schedule_id, firing.updated_at.timestamp_micros());
        if !as_read.exists((self.namespace, id, row::micros(firing.next_at), updated_at))? {
            return Ok(None);
        }
        let (mut stored, mut last) = (Vec::new(), None);
        for tick in &firing.ticks {
            if let Some((place, event)) = self.tick(id, tick)? {
                last = Some((tick.at.timestamp_micros(), event.event_id));
                stored.push((place, event));
            }
        }
        let mut advance = self.conn.prepare_cached(MOVE)?;
        let (last_at, last_event_id) = last.unzip();
        let values = (self.namespace, id, row::micros(firing.then_at), last_at, last_event_id, self.now);
        let updated_at = advance.query_row(values, |row| row.get(0)).optional()?;
        Ok(updated_at.map(|updated_at| FireOutcome { stored, updated_at: from_micros(updated_at) }))
    }

    /// Records a tick and stores its event. Returns the index and the outcome of the event; `None` if the tick was
    /// recorded before.
    fn tick(&self, id: &str, tick: &Tick) -> Result<Option<(usize, PublishOutcome)>> {
        let at = tick.at.timestamp_micros();
        if self.conn.prepare_cached(ON_RECORD)?.exists((id, at, self.manual))? {
            return Ok(None);
        }
        let mut stored = None;
        if let Some(place) = tick.event {
            let event = std::slice::from_ref(&self.events[place]);
            let event = publish::store_all(self.conn, self.namespace, event, self.now)?.pop();
            stored = event.map(|event| (place, event));
        }
        let event_id = stored.map(|(_, event)| event.event_id);
        let values = (id, at, self.manual, self.namespace, self.now, event_id, tick.skipped, &tick.error);
        self.conn.prepare_cached(RECORD)?.execute(values)?;
        Ok(stored)
    }
}
