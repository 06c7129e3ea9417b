//! Publishing in a transaction of the application. The event is stored when the transaction commits.
//!
//! The store writes the event as an arrival. A [router](super::route) creates its deliveries after the commit.

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

/// A transaction of the application that [`Queue::publish_in`] can publish in.
///
/// - On PostgreSQL: `&mut` an sqlx transaction, or `&mut` its `PgConnection`. The methods return a future.
/// - On SQLite: `&` a rusqlite transaction, or `&` its connection. The methods return the result directly, because a
///   reference to a rusqlite connection must not be held across an `await` in a `Send` future.
///
/// This trait is sealed.
pub trait PublishIn: sealed::Sealed {
    /// `Result<T>`, or a future with that output.
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
    /// Publishes one event in a transaction of the application. The event is delivered if the transaction commits, and
    /// discarded if it rolls back.
    ///
    /// The transaction only inserts the event and a row in the table of arrivals. On PostgreSQL it takes no lock that
    /// another transaction needs, so it blocks no other transaction, however long it stays open. After the commit a
    /// router, in this or another process, turns the event into deliveries within milliseconds.
    ///
    /// On SQLite, pass a transaction of rusqlite on a connection to the same file:
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
    /// On PostgreSQL, pass a transaction of sqlx and await the result:
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
    /// Groups, delays, limits and subscriptions work as with [`Queue::publish`]. A key is a duplicate if this
    /// transaction can see its first event. If two concurrent transactions publish the same new key, one event is kept:
    /// see [`Error::KeyConflict`] for the other event.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with the field `tx`: the transaction is of the other database, or the connection has no open
    /// transaction. An invalid event leaves the transaction unchanged.
    ///
    /// On SQLite, other errors leave the transaction unchanged too, except those after which SQLite rolls back, such as
    /// a full disk. [`Error::DatabaseLocked`] means that another connection kept the write lock for longer than this
    /// connection's busy timeout. A transaction that has only read so far gets this error immediately, and also if
    /// another connection has written since it began. Begin such a transaction with `TransactionBehavior::Immediate`.
    ///
    /// On PostgreSQL, a database error aborts the transaction, as any failed statement does. Roll it back then, and
    /// also after dropping the future before it is ready.
    ///
    /// Keep transactions on SQLite short: while one has written and is open, all other writers wait.
    pub fn publish_in<T: PublishIn>(&self, tx: T, event: NewEvent) -> T::Answer<Published> {
        tx.one(self, event)
    }

    /// Publishes several events in a transaction of the application: all of them or, on an error, none. See
    /// [`Queue::publish_in`].
    pub fn publish_all_in<T: PublishIn>(&self, tx: T, events: Vec<NewEvent>) -> T::Answer<Vec<Published>> {
        tx.all(self, events)
    }
}

fn wrong_database(given: &str, queue: &str) -> Error {
    Error::invalid("tx", format!("is a transaction of {given}, but the queue is on {queue}"))
}

/// The results of publishing, with the expiry and retries that this topology gives the events.
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
        Published { max_retries, ..publish::to_published(prepared, stored, namespace) }
    };
    stored.map(finish).collect()
}

fn only(mut published: Vec<Published>) -> Result<Published> {
    published.pop().ok_or(Error::Closed)
}
