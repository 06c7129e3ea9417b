//! Publishing in transactions of the application. Stores each event with an arrival and nothing else; the router
//! creates the deliveries after the commit.

use rusqlite::{Connection, OptionalExtension};

use super::publish::{first_of_key, insert_event};
use super::{SqliteStore, row};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::store::{PreparedEvent, PublishOutcome};

/// A transaction that the application has begun and will end.
pub(crate) struct Transaction<'a> {
    store: &'a SqliteStore,
    conn: &'a Connection,
}

impl SqliteStore {
    /// Returns an error for a connection to another file, and for one without a transaction.
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

// Changes nothing, but takes the write lock. SQLite waits for the lock only if the transaction has not read yet.
const LOCK: &str = "UPDATE namespaces SET version = version WHERE false";

impl Transaction<'_> {
    /// Stores all events. If that fails, the transaction is as it was before the call.
    pub fn publish(
        &self,
        namespace: &str,
        events: &[PreparedEvent],
        now: Option<Timestamp>,
    ) -> Result<Vec<PublishOutcome>> {
        self.attempt(|| {
            let now = self.store.now(now);
            if row::version(self.conn, namespace)?.is_none() {
                return Err(Error::NamespaceNotFound { namespace: namespace.to_owned() });
            }
            events.iter().map(|prepared| publish(self.conn, namespace, prepared, now)).collect()
        })
    }

    fn attempt<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.conn.execute_batch("SAVEPOINT windlass_publish")?;
        let done = self.conn.execute(LOCK, []).map_err(Error::from).and_then(|_| work());
        // After some errors, such as a full disk, SQLite has rolled back the whole transaction.
        if done.is_err() && !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK TO windlass_publish; RELEASE windlass_publish")?;
        } else if done.is_ok() {
            self.conn.execute_batch("RELEASE windlass_publish")?;
        }
        done
    }

    /// The event, as this transaction sees it.
    pub fn event(&self, namespace: &str, event_id: i64) -> Result<Option<Event>> {
        row::event(self.conn, namespace, event_id)
    }
}

fn publish(conn: &Connection, namespace: &str, prepared: &PreparedEvent, now: i64) -> Result<PublishOutcome> {
    match first_of_key(conn, namespace, &prepared.event, now)? {
        Some(first) => Ok(first),
        None => arrive(conn, namespace, prepared, now),
    }
}

const ARRIVE: &str = "
INSERT INTO arrivals (namespace, event_id, max_retries, group_id, key) VALUES (?1, ?2, ?3, ?4, ?5)";

/// Stores an event as an arrival. The router also sets the deadline that results from the policy.
pub(super) fn arrive(conn: &Connection, namespace: &str, prepared: &PreparedEvent, now: i64) -> Result<PublishOutcome> {
    let event = &prepared.event;
    let stored = insert_event(conn, namespace, event, event.expires_in, now)?;
    let values = (namespace, stored.event_id, event.max_retries, &event.group_id, &event.key);
    conn.prepare_cached(ARRIVE)?.execute(values)?;
    Ok(PublishOutcome { arrived: true, ..stored })
}

const HAS_ARRIVALS: &str = "SELECT 1 FROM arrivals WHERE namespace = ?1 AND group_id = ?2 LIMIT 1";

/// Whether the group has arrivals: a new event of the group must follow them.
pub(super) fn has_arrivals(conn: &Connection, namespace: &str, group_id: &str) -> Result<bool> {
    Ok(conn.prepare_cached(HAS_ARRIVALS)?.exists((namespace, group_id))?)
}

const FIRST_OF_KEY: &str = "
SELECT e.id, e.created_at FROM arrivals a JOIN events e ON e.id = a.event_id
WHERE a.namespace = ?1 AND a.key = ?2 ORDER BY a.event_id LIMIT 1";

/// The first arrival with this key.
pub(super) fn first_with_key(conn: &Connection, namespace: &str, key: &str) -> Result<Option<PublishOutcome>> {
    let mut select = conn.prepare_cached(FIRST_OF_KEY)?;
    let found = select
        .query_row((namespace, key), |row| Ok(PublishOutcome::duplicate_of(row.get(0)?, row::timestamp(row, 1)?)));
    Ok(found.optional()?)
}
