//! Storing events in a transaction of the caller's own.

use sqlx::{Connection as _, PgConnection};

use super::error::from_sqlx;
use super::notify::{CHANNEL, NOBODY, Ready};
use super::row::get;
use super::{PgStore, inspect, lanes, publish};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::lanes::LaneKey;
use crate::samples::{SampleRow, published_rows};
use crate::store::{Prepared, Stored};
use crate::wake::ReadyLane;

/// A transaction that somebody else began, and will end.
pub(crate) struct Transaction<'a> {
    store: &'a PgStore,
    connection: &'a mut PgConnection,
}

impl PgStore {
    /// Refuses a connection without a transaction, as far as the driver knows.
    pub fn within<'a>(&'a self, connection: &'a mut PgConnection) -> Result<Transaction<'a>> {
        if !connection.is_in_transaction() {
            return Err(Error::invalid("tx", "no transaction has begun on this connection; begin one first"));
        }
        Ok(Transaction { store: self, connection })
    }
}

const HOLD_VERSION: &str = "SELECT FROM windlass.namespaces WHERE namespace = $1 AND version = $2 FOR SHARE";

// One statement for both: the caller waits for each.
const TELL: &str = "
SELECT windlass._note_published($1, $2, $3, $4), CASE WHEN $6::text IS NOT NULL THEN pg_notify($5, $6) END";

/// As connections of our own have it; see `fix_planner!`.
const FIX_PLANNER: &str = "
WITH before AS MATERIALIZED (
    SELECT name, current_setting(name) AS value, fixed
    FROM (VALUES ('plan_cache_mode', 'force_generic_plan'), ('jit', 'off'), ('enable_seqscan', 'off'),
                 ('enable_bitmapscan', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'),
                 ('enable_sort', 'off'), ('enable_material', 'off')) AS setting(name, fixed))
SELECT name, value, set_config(name, fixed, true) FROM before";

const RESTORE: &str = "
SELECT set_config(name, value, true) FROM unnest($1::text[], $2::text[]) AS before(name, value)";

/// Of the caller's transaction, by name.
#[derive(Default)]
pub(super) struct Settings {
    names: Vec<String>,
    values: Vec<String>,
}

/// Whether a new one may go before others of its group, who then have to be found in the queue.
fn passes_groups(events: &[&Prepared]) -> bool {
    let grouped = events.iter().filter(|prepared| prepared.event.group_id.is_some());
    grouped.flat_map(|prepared| &prepared.deliveries).any(|delivery| delivery.pass_group)
}

impl Transaction<'_> {
    /// Creates lanes on another connection; their ids. `None` if another transaction is creating lanes and does not end
    /// soon.
    pub async fn add_lanes_apart(&self, namespace: &str, lanes: &[LaneKey]) -> Result<Option<Vec<i64>>> {
        lanes::add_lanes_soon(self.store, namespace, lanes).await
    }

    /// Creates lanes in this transaction; their ids. Other transactions that need new lanes wait for its end.
    pub async fn add_lanes(&mut self, namespace: &str, lanes: &[LaneKey]) -> Result<Vec<i64>> {
        lanes::insert_lanes(self.connection, namespace, lanes, self.store.clock.overridden()).await
    }

    /// Stores all events, or none where `version` is not the namespace's. Who waits hears of it after the commit.
    pub async fn publish(
        &mut self,
        namespace: &str,
        version: i64,
        events: &[&Prepared],
        now: Option<Timestamp>,
    ) -> Result<Option<Vec<Stored>>> {
        // What is done for keys and groups could not be undone here.
        if !publish::is_simple(events) && !self.hold_version(namespace, version).await? {
            return Ok(None);
        }
        let before = if passes_groups(events) { self.fix_planner().await? } else { Settings::default() };
        let published = publish::in_order(self.connection, namespace, version, events, now).await?;
        self.restore(before).await?;
        let Some(published) = published else { return Ok(None) };
        let rows = published_rows(events.iter().copied(), &published.stored);
        self.tell(namespace, &rows, published.freed).await?;
        Ok(Some(published.stored))
    }

    /// What follows when the transaction is committed: it is counted, and who waits is told.
    async fn tell(&mut self, namespace: &str, rows: &[SampleRow], freed: Vec<ReadyLane>) -> Result<()> {
        // All have the instant of the transaction.
        let Some(SampleRow { at, .. }) = rows.first() else { return Ok(()) };
        let ready = (!freed.is_empty()).then(|| Ready { namespace: namespace.to_owned(), lanes: freed });
        let tell = sqlx::query(TELL)
            .bind(namespace)
            .bind(rows.iter().map(|row| row.event_type.as_str()).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.counter.published as i64).collect::<Vec<_>>())
            .bind(at)
            .bind(CHANNEL)
            .bind(ready.map(|ready| ready.into_message(NOBODY)));
        tell.execute(&mut *self.connection).await.map_err(from_sqlx).map(drop)
    }

    /// Keeps the version as it is until this transaction ends, if it is this one.
    async fn hold_version(&mut self, namespace: &str, version: i64) -> Result<bool> {
        let hold = sqlx::query(HOLD_VERSION).bind(namespace).bind(version);
        Ok(hold.fetch_optional(&mut *self.connection).await.map_err(from_sqlx)?.is_some())
    }

    /// Plans what follows as connections of our own do: the caller's would read the whole queue where the
    /// statistics are those of an empty one. The settings from before.
    pub(super) async fn fix_planner(&mut self) -> Result<Settings> {
        let fix = sqlx::query(FIX_PLANNER).fetch_all(&mut *self.connection).await;
        let mut before = Settings::default();
        for row in fix.map_err(from_sqlx)? {
            before.names.push(get(&row, "name")?);
            before.values.push(get(&row, "value")?);
        }
        Ok(before)
    }

    async fn restore(&mut self, before: Settings) -> Result<()> {
        if before.names.is_empty() {
            return Ok(());
        }
        let restore = sqlx::query(RESTORE).bind(before.names).bind(before.values);
        restore.execute(&mut *self.connection).await.map_err(from_sqlx).map(drop)
    }

    pub async fn events(&mut self, namespace: &str, ids: &[i64]) -> Result<Vec<Event>> {
        inspect::events(self.connection, namespace, ids).await
    }
}
