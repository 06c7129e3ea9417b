//! Publishing inside a transaction of the caller's own: it commits and rolls back with it.

use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::publish::Published;
use crate::queue::Queue;

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
    /// Publishes one event inside the caller's own transaction: it is stored when that commits, and never was
    /// when it rolls back. Until then nobody else sees it, and after it those who wait are told.
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
    /// All that holds for [`Queue::publish`] holds here: keys, groups, delays, limits, and a delivery for each
    /// subscription that wants it. The event's instant is the beginning of the transaction on PostgreSQL.
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
    /// On PostgreSQL, an error of the database aborts the transaction, as any failed statement does: roll it back.
    /// That includes deadlocks; whoever was chosen to end one has to begin anew. If the answer is dropped before
    /// it is there, roll back too.
    ///
    /// # While the transaction is open
    ///
    /// Keep it short. On PostgreSQL, others who publish the same key, or who publish or finish something of the
    /// same group, wait for its end, and so do changes of the namespace and its subscriptions; on SQLite everyone
    /// who writes does. So awaiting such a call on this queue, before the transaction has ended, never ends.
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

fn only(mut published: Vec<Published>) -> Result<Published> {
    published.pop().ok_or(Error::Closed)
}
