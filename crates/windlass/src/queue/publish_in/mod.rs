//! Publishing inside a transaction of the caller's own: it commits and rolls back with it.

use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::policy::NamespacePolicy;
use crate::queue::Queue;
use crate::queue::publish::{self, Published};
use crate::store::{PreparedEvent, PublishOutcome};
use crate::topology::{MAIN, Topology};

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

/// A transaction that the caller began: what [`Queue::publish_in`] takes.
///
/// - On PostgreSQL `&mut` an sqlx transaction, or the `PgConnection` that it is on; the answer is a future.
/// - On SQLite `&` a rusqlite transaction, or the connection that it is on; the answer is there at once. A
///   reference to a rusqlite connection must not be held across an `await` in a future that moves between
///   threads, so here nothing is awaited.
///
/// Nothing else can implement it.
pub trait PublishIn: sealed::Sealed {
    /// `Result<T>`, or a future of it.
    type Answer<T>;

    #[doc(hidden)]
    fn one(self, queue: &Queue, event: NewEvent) -> Self::Answer<Published>;

    #[doc(hidden)]
    fn all(self, queue: &Queue, events: Vec<NewEvent>) -> Self::Answer<Vec<Published>>;
}

mod sealed {
    pub trait Sealed {}
}

impl Queue {
    /// Publishes one event in a transaction of the caller: it is delivered if that commits, and never was if it rolls back.
    ///
    /// The transaction stores the event and a row in the table of arrivals, and nothing else. It takes no lock that another
    /// transaction needs on PostgreSQL, so nobody waits for it however long it stays open. After the commit a router, in this
    /// or another process, turns the event into deliveries within milliseconds.
    ///
    /// On SQLite the transaction is rusqlite's, on a connection to the same file:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("shop.db");
    /// use windlass::{NewEvent, Queue, rusqlite::Connection};
    ///
    /// let queue = Queue::open(&format!("sqlite://{}", file.display())).await?;
    /// let mut connection = Connection::open(&file)?;
    /// connection.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")?;
    ///
    /// let tx = connection.transaction()?;
    /// tx.execute("INSERT INTO orders (total) VALUES (?1)", [4200])?;
    /// let order = tx.last_insert_rowid();
    /// queue.publish_in(&tx, NewEvent::new("order.placed").payload(&order)?)?;
    /// tx.commit()?;
    /// assert!(queue.poll("mailer").await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// On PostgreSQL it is sqlx's, and the answer is awaited:
    ///
    /// ```no_run
    /// # async fn example(pool: windlass::sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use windlass::{NewEvent, Queue, sqlx};
    ///
    /// let queue = Queue::open("postgres://localhost/shop").await?;
    ///
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("INSERT INTO orders (total) VALUES ($1)").bind(4200).execute(&mut *tx).await?;
    /// queue.publish_in(&mut *tx, NewEvent::new("order.placed").payload(&4200)?).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// All that holds for [`Queue::publish`] holds here: groups, delays, limits, and a delivery for each subscription that
    /// wants it. A key is known if this transaction can see it. Of two transactions that are open at the same time and publish
    /// the same new key, one event is kept: see [`Error::KeyConflict`] for what becomes of the other.
    ///
    /// # Errors
    ///
    /// A transaction of the other database is an [`Error::Invalid`] that names the field `tx`, and so is a
    /// connection on which no transaction was begun. What is found wrong with the event itself leaves the
    /// transaction as it was.
    ///
    /// On SQLite, so does every other error but those after which SQLite itself rolls back, such as a full disk.
    /// [`Error::DatabaseLocked`] means that somebody else writes for longer than the connection's busy timeout. In a
    /// transaction that has only read so far, it comes at once, and also if somebody else has written since it began:
    /// begin such a one with `TransactionBehavior::Immediate`.
    ///
    /// On PostgreSQL, an error of the database aborts the transaction, as any failed statement does: roll it back. If the
    /// answer is dropped before it is there, roll back too.
    ///
    /// Keep transactions on SQLite short: there everything that writes waits for the end of one that does.
    pub fn publish_in<T: PublishIn>(&self, tx: T, event: NewEvent) -> T::Answer<Published> {
        tx.one(self, event)
    }

    /// Publishes several events inside the caller's own transaction: all of them or, where that fails, none. See
    /// [`Queue::publish_in`].
    pub fn publish_all_in<T: PublishIn>(&self, tx: T, events: Vec<NewEvent>) -> T::Answer<Vec<Published>> {
        tx.all(self, events)
    }
}

fn wrong_database(given: &str, queue: &str) -> Error {
    Error::invalid("tx", format!("is a transaction of {given}, but the queue is on {queue}"))
}

/// What was stored, as it will be once it is routed under this topology.
fn published(
    stored: impl Iterator<Item = (PreparedEvent, PublishOutcome)>,
    namespace: &str,
    topology: Option<&Topology>,
) -> Vec<Published> {
    let finish = |(mut prepared, stored): (PreparedEvent, PublishOutcome)| {
        let (event, default) = (&prepared.event, NamespacePolicy::default());
        let event_type = event.event_type.as_str();
        let expires_after = topology.and_then(|topology| topology.expires_after(event_type));
        let policy = topology.map_or(default.base, |topology| topology.policy(MAIN, event_type));
        let max_retries = event.max_retries.or(policy.max_retries);
        prepared.expires_in = event.expires_in.or(expires_after);
        Published { max_retries, ..publish::finish(prepared, stored, namespace) }
    };
    stored.map(finish).collect()
}

fn only(mut published: Vec<Published>) -> Result<Published> {
    published.pop().ok_or(Error::Closed)
}
