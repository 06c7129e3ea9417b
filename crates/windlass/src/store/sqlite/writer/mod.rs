//! The writer thread. It runs all queued writes in one transaction and replies after the commit, so that a thousand
//! callers share a sync.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::commit_watch::{CommitWatch, Settings};
use super::error::breaks_connection;
use super::monotonic_clock::MonotonicClock;
use super::wal_watch::Unchecked;
use crate::error::{Error, Result, panic_text};
use crate::queue::wake::WakeRegistry;

/// The most writes in one transaction.
const BATCH_MAX: usize = 256;

/// The durability of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// It survives a power failure.
    Full,
    /// It survives a crash of the process, and may be lost in a power failure: enough for claims.
    Relaxed,
}

/// A handle to the writer thread, which ends when the handle is dropped.
pub(super) struct Writer {
    inbox: Arc<Sender<Message>>,
}

enum Message {
    Write(Box<dyn Write>),
    Watch(Arc<WakeRegistry>),
    /// The write-ahead log was written to, by this process or another.
    WalWritten(Unchecked),
    Close(oneshot::Sender<()>),
}

impl Writer {
    /// Starts the thread on this connection; `reopen` makes a new one when it breaks.
    pub fn start<F>(conn: Connection, clock: Arc<MonotonicClock>, settings: Settings, reopen: F) -> Result<Writer>
    where
        F: FnMut() -> Result<Connection> + Send + 'static,
    {
        let (inbox, messages) = mpsc::channel();
        let inbox = Arc::new(inbox);
        let thread = Thread {
            conn: Some(conn),
            reopen: Box::new(reopen),
            durability: Durability::Full,
            clock,
            commits: CommitWatch::new(settings),
            inbox: Arc::downgrade(&inbox),
        };
        let spawned = std::thread::Builder::new().name("windlass-sqlite".into()).spawn(move || thread.run(messages));
        match spawned {
            Ok(_) => Ok(Writer { inbox }),
            Err(error) => Err(Error::DatabaseUnavailable { detail: format!("no thread to write with: {error}") }),
        }
    }

    /// Runs `work` in a transaction and returns once it is committed. `work` gets `now`, or the time at which the
    /// transaction began. If `work` fails, its changes are undone.
    pub async fn write<T, F>(&self, durability: Durability, now: Option<i64>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, i64) -> Result<T> + Send + 'static,
    {
        let mut work = Some(work);
        let once = move |conn: &Connection, now| match work.take() {
            Some(work) => work(conn, now),
            None => Err(Error::Closed),
        };
        self.call(durability, now, false, once).await
    }

    /// Like [`Writer::write`] with full durability, for `work` that may break its transaction: it shares a transaction
    /// only with other such calls, and if that fails, each runs again alone.
    pub async fn write_repeatable<T, F>(&self, now: Option<i64>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&Connection, i64) -> Result<T> + Send + 'static,
    {
        self.call(Durability::Full, now, true, work).await
    }

    async fn call<T, F>(&self, durability: Durability, now: Option<i64>, repeatable: bool, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&Connection, i64) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let call = Call { durability, now, repeatable, work, result: Err(Error::Closed), reply };
        self.inbox.send(Message::Write(Box::new(call))).map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Notifies `wakes` when another process has committed.
    pub fn watch(&self, wakes: Arc<WakeRegistry>) {
        // Fails only if the store is closed.
        let _ = self.inbox.send(Message::Watch(wakes));
    }

    /// Finishes what is queued and ends the thread.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.inbox.send(Message::Close(done)).is_ok() {
            let _ = closed.await;
        }
    }
}

/// A queued call: it runs inside the transaction, and is answered after it.
trait Write: Send {
    fn durability(&self) -> Durability;
    fn is_repeatable(&self) -> bool;
    fn run(&mut self, conn: &Connection, began: i64) -> Result<()>;
    fn reply(self: Box<Self>, committed: Result<()>);
}

struct Call<T, F> {
    durability: Durability,
    now: Option<i64>,
    repeatable: bool,
    work: F,
    result: Result<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Write for Call<T, F>
where
    T: Send,
    F: FnMut(&Connection, i64) -> Result<T> + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn is_repeatable(&self) -> bool {
        self.repeatable
    }

    fn run(&mut self, conn: &Connection, began: i64) -> Result<()> {
        let now = self.now.unwrap_or(began);
        self.result = catch_unwind(AssertUnwindSafe(|| (self.work)(conn, now))).unwrap_or_else(|panic| {
            Err(Error::Database { detail: format!("a write panicked: {}", panic_text(&*panic)) })
        });
        self.result.as_ref().map(drop).map_err(Error::clone)
    }

    fn reply(self: Box<Self>, committed: Result<()>) {
        // A caller that no longer listens needs no answer.
        let _ = self.reply.send(committed.and(self.result));
    }
}

struct Thread {
    /// `None` after an error that breaks the connection, until the next write.
    conn: Option<Connection>,
    reopen: Box<dyn FnMut() -> Result<Connection> + Send>,
    /// What `conn` is set to.
    durability: Durability,
    clock: Arc<MonotonicClock>,
    commits: CommitWatch,
    /// For the thread that watches the log. Weak, so that the writer thread ends when [`Writer`] is dropped.
    inbox: Weak<Sender<Message>>,
}

impl Thread {
    fn run(mut self, inbox: Receiver<Message>) {
        let closed = self.serve(&inbox);
        // Writes queued after the close are answered with `Closed`.
        drop(inbox);
        drop(self.commits);
        if let Some(conn) = self.conn.take() {
            // If another process uses the database, it runs the checkpoint.
            let _ = conn.busy_timeout(Duration::ZERO);
            let _ = conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
        }
        if let Some(closed) = closed {
            let _ = closed.send(());
        }
    }

    /// Serves messages until a close or until all senders are dropped.
    fn serve(&mut self, inbox: &Receiver<Message>) -> Option<oneshot::Sender<()>> {
        loop {
            let first = match self.wait(inbox) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return None,
            };
            let (mut batch, mut closed) = (Vec::new(), None);
            for message in first.into_iter().chain(inbox.try_iter().take(BATCH_MAX - 1)) {
                match message {
                    Message::Write(write) => batch.push(write),
                    Message::Watch(wakes) => self.commits.start(wakes, self.report_wal_writes()),
                    Message::WalWritten(unchecked) => self.commits.wal_written(unchecked),
                    Message::Close(done) => {
                        closed = Some(done);
                        break;
                    }
                }
            }
            let (repeatable, once): (Vec<_>, Vec<_>) = batch.into_iter().partition(|write| write.is_repeatable());
            self.commit(once);
            self.commit(repeatable);
            if closed.is_some() {
                return closed;
            }
            self.commits.check_if_due(self.conn.as_ref());
        }
    }

    fn wait(&self, inbox: &Receiver<Message>) -> Result<Message, RecvTimeoutError> {
        match self.commits.next_check_in() {
            Some(wait) => inbox.recv_timeout(wait),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn report_wal_writes(&self) -> impl Fn(Unchecked) + Send + use<> {
        let inbox = self.inbox.clone();
        move |unchecked| {
            if let Some(inbox) = inbox.upgrade() {
                let _ = inbox.send(Message::WalWritten(unchecked));
            }
        }
    }

    /// Runs the batch in one transaction, then answers everyone.
    fn commit(&mut self, mut batch: Vec<Box<dyn Write>>) {
        if batch.is_empty() {
            return;
        }
        let committed = self.run_in_one(&mut batch);
        self.commits.committed();
        let alone = committed.is_err() && batch.len() > 1;
        for mut write in batch {
            let again = alone && write.is_repeatable();
            let committed = if again { self.run_in_one(std::slice::from_mut(&mut write)) } else { committed.clone() };
            write.reply(committed);
        }
    }

    fn run_in_one(&mut self, batch: &mut [Box<dyn Write>]) -> Result<()> {
        self.connection().and_then(|conn| {
            let committed = self.transact(&conn, batch);
            // Dropping the connection also ends a transaction that could not be rolled back.
            if conn.is_autocommit() && !committed.as_ref().is_err_and(breaks_connection) {
                self.conn = Some(conn);
            }
            committed
        })
    }

    fn connection(&mut self) -> Result<Connection> {
        if let Some(conn) = self.conn.take() {
            return Ok(conn);
        }
        self.durability = Durability::Full;
        let conn = (self.reopen)()?;
        self.commits.restart(self.report_wal_writes());
        Ok(conn)
    }

    fn transact(&mut self, conn: &Connection, batch: &mut [Box<dyn Write>]) -> Result<()> {
        let relaxed = batch.iter().all(|write| write.durability() == Durability::Relaxed);
        let durability = if relaxed { Durability::Relaxed } else { Durability::Full };
        if self.durability != durability {
            set_durability(conn, durability)?;
            self.durability = durability;
        }
        execute(conn, "BEGIN IMMEDIATE")?;
        let done = run_all(conn, batch, self.clock.now()).and_then(|()| execute(conn, "COMMIT"));
        if done.is_err() && !conn.is_autocommit() {
            let _ = execute(conn, "ROLLBACK");
        }
        done
    }
}

/// The pragma takes effect while it is prepared, so it must not come from the statement cache.
fn set_durability(conn: &Connection, durability: Durability) -> Result<()> {
    let sql = match durability {
        Durability::Full => "PRAGMA synchronous = FULL",
        Durability::Relaxed => "PRAGMA synchronous = NORMAL",
    };
    Ok(conn.execute_batch(sql)?)
}

fn execute(conn: &Connection, sql: &str) -> Result<()> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// Runs each write in a savepoint, so that a failed one is undone alone. An error ends the transaction; also if a write
/// has ended it, because the savepoint is gone then.
fn run_all(conn: &Connection, batch: &mut [Box<dyn Write>], began: i64) -> Result<()> {
    if let [only] = batch
        && !only.is_repeatable()
    {
        return only.run(conn, began);
    }
    for write in batch {
        execute(conn, "SAVEPOINT one_write")?;
        if let Err(error) = write.run(conn, began) {
            // After some errors, such as a full disk, SQLite has rolled back the whole transaction.
            if conn.is_autocommit() {
                return Err(error);
            }
            execute(conn, "ROLLBACK TO one_write")?;
        }
        execute(conn, "RELEASE one_write")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
