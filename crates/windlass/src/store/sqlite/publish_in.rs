//! Storing events in a transaction of the caller's own.

use rusqlite::Connection;

use super::{SqliteStore, lanes, publish, row, samples, topology};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::lanes::LaneKey;
use crate::samples::published_rows;
use crate::store::{Prepared, Stored};
use crate::topology::Topology;

/// A transaction that somebody else began, and will end. It alone may write until then, so all goes through it.
pub(crate) struct Transaction<'a> {
    store: &'a SqliteStore,
    conn: &'a Connection,
}

impl SqliteStore {
    /// Refuses a connection to another file, and one without a transaction.
    pub fn within<'a>(&'a self, conn: &'a Connection) -> Result<Transaction<'a>> {
        let of = |path: &std::path::Path| std::fs::canonicalize(path).ok();
        if conn.path().and_then(|path| of(path.as_ref())) != of(&self.file) {
            return Err(Error::invalid("tx", format!("is not on the queue's file '{}'", self.file.display())));
        }
        if conn.is_autocommit() {
            return Err(Error::invalid("tx", "no transaction has begun on this connection; begin one first"));
        }
        Ok(Transaction { store: self, conn })
    }
}

// Changes nothing, and needs the write lock for it. SQLite waits for that only as long as nothing was read.
const LOCK: &str = "UPDATE namespaces SET version = version WHERE false";

impl Transaction<'_> {
    /// Runs `work`; where it fails, the transaction goes on as if it had not been begun.
    pub fn attempt<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.conn.execute_batch("SAVEPOINT windlass_publish")?;
        let done = self.conn.execute(LOCK, []).map_err(Error::from).and_then(|_| work());
        // After some errors, such as a full disk, SQLite has undone everything.
        if done.is_err() && !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK TO windlass_publish; RELEASE windlass_publish")?;
        } else if done.is_ok() {
            self.conn.execute_batch("RELEASE windlass_publish")?;
        }
        done
    }

    pub fn version(&self, namespace: &str) -> Result<Option<i64>> {
        row::version(self.conn, namespace)
    }

    /// As this transaction sees it: nobody else may rely on that.
    pub fn topology(&self, namespace: &str) -> Result<Option<Topology>> {
        topology::topology(self.conn, namespace)
    }

    pub fn add_lanes(&self, namespace: &str, lanes: &[LaneKey]) -> Result<Vec<i64>> {
        lanes::add_lanes(self.conn, namespace, lanes, self.store.now(None))
    }

    pub fn publish(&self, namespace: &str, version: i64, events: &[Prepared]) -> Result<Option<Vec<Stored>>> {
        let stored = publish::publish(self.conn, namespace, version, events, self.store.now(None))?;
        if let Some(stored) = &stored {
            samples::add(self.conn, namespace, &published_rows(events.iter(), stored))?;
        }
        Ok(stored)
    }

    pub fn event(&self, namespace: &str, event_id: i64) -> Result<Option<Event>> {
        row::event(self.conn, namespace, event_id)
    }
}
