//! Storing events in a transaction of the caller's own.

use sqlx::{Connection as _, Executor, PgConnection};

use super::error::from_sqlx;
use super::notify::{NOBODY, Ready};
use super::{PgStore, inspect, publish, topology};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::store::{Prepared, Stored};
use crate::topology::{LaneKey, Topology};

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

/// How long a lane may take to be made on a connection of our own. Whoever is making it at this moment
/// may be waiting for this very transaction, or be it.
const WAIT_FOR_LANES: &str = "SET LOCAL lock_timeout = '200ms'";

const HOLD_VERSION: &str = "SELECT FROM windlass.namespaces WHERE namespace = $1 AND version = $2 FOR SHARE";

impl Transaction<'_> {
    /// As this transaction sees it: nobody else may rely on that.
    pub async fn topology(&mut self, namespace: &str) -> Result<Option<Topology>> {
        topology::load(self.connection, namespace).await
    }

    /// Creates lanes for everybody, before this transaction is committed; says whether that was possible
    /// without waiting for somebody else.
    pub async fn add_lanes_apart(&self, namespace: &str, lanes: &[LaneKey]) -> Result<bool> {
        // Not one of those that write: all of them may be waiting for the end of this transaction.
        let mut connection = self.store.reads.get().await?;
        let mut tx = connection.begin().await.map_err(from_sqlx)?;
        tx.execute(WAIT_FOR_LANES).await.map_err(from_sqlx)?;
        match topology::insert_lanes(&mut tx, namespace, lanes).await {
            Ok(()) => tx.commit().await.map_err(from_sqlx)?,
            Err(Error::DatabaseLocked { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        connection.done();
        Ok(true)
    }

    /// Creates lanes in this transaction. Others who need one of them wait for its end.
    pub async fn add_lanes(&mut self, namespace: &str, lanes: &[LaneKey]) -> Result<()> {
        topology::insert_lanes(self.connection, namespace, lanes).await
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
        let Some(published) = publish::in_order(self.connection, namespace, version, events, now).await? else {
            return Ok(None);
        };
        if !published.freed.is_empty() {
            let ready = Ready { namespace: namespace.to_owned(), freed: published.freed };
            ready.notify(self.connection, NOBODY).await.map_err(from_sqlx)?;
        }
        Ok(Some(published.stored))
    }

    /// Keeps the version as it is until this transaction ends, if it is this one.
    async fn hold_version(&mut self, namespace: &str, version: i64) -> Result<bool> {
        let hold = sqlx::query(HOLD_VERSION).bind(namespace).bind(version);
        Ok(hold.fetch_optional(&mut *self.connection).await.map_err(from_sqlx)?.is_some())
    }

    pub async fn events(&mut self, namespace: &str, ids: &[i64]) -> Result<Vec<Event>> {
        inspect::events(self.connection, namespace, ids).await
    }
}
