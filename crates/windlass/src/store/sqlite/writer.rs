//! The one thread that writes. It puts whatever is queued into one transaction and answers after the
//! commit, so that a thousand callers share a sync.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::error::breaks_connection;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::wake::Wakes;

/// The most writes in one transaction.
const BATCH_MAX: usize = 256;
/// How often the commits of other processes are looked for.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// What a commit promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// It survives a power cut.
    Full,
    /// It survives the process, and may be lost in a power cut: enough for claims.
    Relaxed,
}

/// The instants of this process, in microseconds: never one before another, whatever the system does.
#[derive(Debug)]
pub(super) struct Instants {
    clock: Clock,
    latest: AtomicI64,
}

impl Instants {
    pub fn new(clock: Clock) -> Instants {
        Instants { clock, latest: AtomicI64::new(i64::MIN) }
    }

    pub fn now(&self) -> i64 {
        let now = self.clock.now().timestamp_micros();
        self.latest.fetch_max(now, Ordering::SeqCst).max(now)
    }
}

/// The way to the writing thread, which ends with this.
pub(super) struct Writer {
    inbox: Sender<Message>,
}

enum Message {
    Write(Box<dyn Write>),
    Watch(Arc<Wakes>),
    Close(oneshot::Sender<()>),
}

impl Writer {
    /// Starts the thread on this connection; `reopen` makes a new one when it breaks.
    pub fn start<F>(conn: Connection, instants: Arc<Instants>, reopen: F) -> Result<Writer>
    where
        F: FnMut() -> Result<Connection> + Send + 'static,
    {
        let (inbox, messages) = mpsc::channel();
        let thread = Thread {
            conn: Some(conn),
            reopen: Box::new(reopen),
            durability: Durability::Full,
            instants,
            others: Others::default(),
        };
        let spawned = std::thread::Builder::new().name("windlass-sqlite".into()).spawn(move || thread.run(messages));
        match spawned {
            Ok(_) => Ok(Writer { inbox }),
            Err(error) => Err(Error::DatabaseUnavailable { detail: format!("no thread to write with: {error}") }),
        }
    }

    /// Runs `work` in a transaction and returns once it is committed. `work` gets `now`, or the instant
    /// at which the transaction began. If it fails, what it did is undone.
    pub async fn write<T, F>(&self, durability: Durability, now: Option<i64>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, i64) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let call = Call { durability, now, work: Some(work), result: Err(Error::Closed), reply };
        self.inbox.send(Message::Write(Box::new(call))).map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Tells `wakes` when another process has committed something.
    pub fn watch(&self, wakes: Arc<Wakes>) {
        // Nobody to tell it to means that the store is closed.
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
    fn run(&mut self, conn: &Connection, began: i64) -> Result<()>;
    fn reply(self: Box<Self>, committed: Result<()>);
}

struct Call<T, F> {
    durability: Durability,
    now: Option<i64>,
    work: Option<F>,
    result: Result<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Write for Call<T, F>
where
    T: Send,
    F: FnOnce(&Connection, i64) -> Result<T> + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn run(&mut self, conn: &Connection, began: i64) -> Result<()> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let now = self.now.unwrap_or(began);
        self.result = catch_unwind(AssertUnwindSafe(|| work(conn, now))).unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<&str>().copied();
            let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(Error::Database { detail: format!("a write panicked: {}", said.unwrap_or("no message")) })
        });
        self.result.as_ref().map(drop).map_err(Error::clone)
    }

    fn reply(self: Box<Self>, committed: Result<()>) {
        // A caller that no longer listens needs no answer.
        let _ = self.reply.send(committed.and(self.result));
    }
}

struct Thread {
    /// `None` after it broke, until the next write.
    conn: Option<Connection>,
    reopen: Box<dyn FnMut() -> Result<Connection> + Send>,
    /// What `conn` is set to.
    durability: Durability,
    instants: Arc<Instants>,
    others: Others,
}

impl Thread {
    fn run(mut self, inbox: Receiver<Message>) {
        let closed = self.serve(&inbox);
        // What was queued after the close is answered with `Closed`.
        drop(inbox);
        if let Some(conn) = self.conn.take() {
            // Where another process reads or writes, it will see to this.
            let _ = conn.busy_timeout(Duration::ZERO);
            let _ = conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
        }
        if let Some(closed) = closed {
            let _ = closed.send(());
        }
    }

    /// Works until it is told to close, or nobody is left to tell it.
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
                    Message::Watch(wakes) => self.others.wakes = Some(wakes),
                    Message::Close(done) => {
                        closed = Some(done);
                        break;
                    }
                }
            }
            if !batch.is_empty() {
                self.commit(batch);
            }
            if closed.is_some() {
                return closed;
            }
            if let Some(conn) = &self.conn {
                self.others.look(conn);
            }
        }
    }

    fn wait(&self, inbox: &Receiver<Message>) -> Result<Message, RecvTimeoutError> {
        match self.others.wakes {
            Some(_) => inbox.recv_timeout(WATCH_EVERY),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Runs the batch in one transaction, then answers everyone.
    fn commit(&mut self, mut batch: Vec<Box<dyn Write>>) {
        let committed = self.connection().and_then(|conn| {
            let committed = self.transact(&conn, &mut batch);
            // Dropping it also ends a transaction that could not be rolled back.
            if conn.is_autocommit() && !committed.as_ref().is_err_and(breaks_connection) {
                self.conn = Some(conn);
            }
            committed
        });
        for write in batch {
            write.reply(committed.clone());
        }
    }

    fn connection(&mut self) -> Result<Connection> {
        if let Some(conn) = self.conn.take() {
            return Ok(conn);
        }
        self.durability = Durability::Full;
        self.others.seen = None;
        (self.reopen)()
    }

    fn transact(&mut self, conn: &Connection, batch: &mut [Box<dyn Write>]) -> Result<()> {
        let relaxed = batch.iter().all(|write| write.durability() == Durability::Relaxed);
        let durability = if relaxed { Durability::Relaxed } else { Durability::Full };
        if self.durability != durability {
            promise(conn, durability)?;
            self.durability = durability;
        }
        execute(conn, "BEGIN IMMEDIATE")?;
        let done = run_all(conn, batch, self.instants.now()).and_then(|()| execute(conn, "COMMIT"));
        if done.is_err() && !conn.is_autocommit() {
            let _ = execute(conn, "ROLLBACK");
        }
        done
    }
}

/// Takes effect while it is being prepared, so it must not come from the cache.
fn promise(conn: &Connection, durability: Durability) -> Result<()> {
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

/// Runs each write so that a failed one is undone alone. An error is the end of the transaction.
fn run_all(conn: &Connection, batch: &mut [Box<dyn Write>], began: i64) -> Result<()> {
    if let [only] = batch {
        return only.run(conn, began);
    }
    for write in batch {
        execute(conn, "SAVEPOINT one_write")?;
        if let Err(error) = write.run(conn, began) {
            // After some errors, such as a full disk, SQLite has undone everything.
            if conn.is_autocommit() {
                return Err(error);
            }
            execute(conn, "ROLLBACK TO one_write")?;
        }
        execute(conn, "RELEASE one_write")?;
    }
    Ok(())
}

/// Notices what other processes commit to the same file.
#[derive(Default)]
struct Others {
    wakes: Option<Arc<Wakes>>,
    looked_at: Option<Instant>,
    seen: Option<i64>,
}

/// Changes only by commits of other connections; of those, only other processes' write.
const DATA_VERSION: &str = "PRAGMA data_version";

impl Others {
    fn look(&mut self, conn: &Connection) {
        let Some(wakes) = &self.wakes else { return };
        if self.looked_at.is_some_and(|at| at.elapsed() < WATCH_EVERY) {
            return;
        }
        self.looked_at = Some(Instant::now());
        let version = conn.prepare_cached(DATA_VERSION).and_then(|mut look| look.query_row([], |row| row.get(0)));
        // An error shows in the next write; whoever waits looks by himself once a second.
        if let Ok(version) = version
            && self.seen.replace(version).is_none_or(|seen| seen != version)
        {
            wakes.ring_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::connection::open_writer;

    fn writer(folder: &tempfile::TempDir) -> Writer {
        let path = folder.path().join("test.db");
        let conn = open_writer(&path, true).unwrap();
        let schema = "CREATE TABLE numbers (n INTEGER PRIMARY KEY);
                      CREATE TABLE doubles (n INTEGER REFERENCES numbers DEFERRABLE INITIALLY DEFERRED);
                      PRAGMA foreign_keys = ON;";
        conn.execute_batch(schema).unwrap();
        let instants = Arc::new(Instants::new(Clock::system()));
        Writer::start(conn, instants, move || open_writer(&path, false)).unwrap()
    }

    fn insert(conn: &Connection, n: i64) -> Result<i64> {
        conn.execute("INSERT INTO numbers VALUES (?1)", [n])?;
        Ok(n)
    }

    async fn write<T: Send + 'static>(
        writer: &Writer,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        writer.write(Durability::Full, None, |conn, _| work(conn)).await
    }

    /// Keeps the thread busy until the gate is dropped, so that what follows comes in one batch.
    async fn busy(writer: &Writer) -> Sender<()> {
        let (gate, closed) = mpsc::channel::<()>();
        let (running, runs) = oneshot::channel();
        let wait = move |_: &Connection| {
            let _ = running.send(());
            let _ = closed.recv();
            Ok(())
        };
        let call = writer.write(Durability::Full, None, |conn, _| wait(conn));
        // Polled once, the call is queued; nobody needs its answer.
        tokio::select! { biased; _ = call => {}, _ = runs => {} }
        gate
    }

    async fn numbers(writer: &Writer) -> Vec<i64> {
        let select = |conn: &Connection| {
            let mut select = conn.prepare("SELECT n FROM numbers ORDER BY n")?;
            Ok(select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
        };
        write(writer, select).await.unwrap()
    }

    #[tokio::test]
    async fn a_failed_or_panicking_write_is_undone_alone() {
        let folder = tempfile::tempdir().unwrap();
        let writer = writer(&folder);
        let fails = |conn: &Connection| insert(conn, 2).and(Err::<(), _>(Error::Closed));
        let panics = |conn: &Connection| -> Result<()> {
            insert(conn, 3)?;
            panic!("boo");
        };
        let gate = busy(&writer).await;
        let (one, failed, panicked, four, ()) = tokio::join!(
            write(&writer, |conn| insert(conn, 1)),
            write(&writer, fails),
            write(&writer, panics),
            write(&writer, |conn| insert(conn, 4)),
            async { drop(gate) },
        );
        assert_eq!((one, failed, four), (Ok(1), Err(Error::Closed), Ok(4)));
        assert_eq!(panicked.unwrap_err().to_string(), "database error: a write panicked: boo");
        assert_eq!(numbers(&writer).await, [1, 4]);
        assert_eq!(write(&writer, fails).await, Err(Error::Closed));
        assert!(write(&writer, panics).await.is_err());
        assert_eq!(numbers(&writer).await, [1, 4]);
    }

    #[tokio::test]
    async fn a_failed_commit_reaches_everyone_and_the_next_one_works() {
        let folder = tempfile::tempdir().unwrap();
        let writer = writer(&folder);
        let dangling = |conn: &Connection| Ok(conn.execute("INSERT INTO doubles VALUES (99)", [])?);
        let gate = busy(&writer).await;
        let (one, dangles, two, ()) = tokio::join!(
            write(&writer, |conn| insert(conn, 1)),
            write(&writer, dangling),
            write(&writer, |conn| insert(conn, 2)),
            async { drop(gate) },
        );
        let error = dangles.unwrap_err();
        assert!(matches!(error, Error::Database { .. }), "{error}");
        assert_eq!((one, two), (Err(error.clone()), Err(error)));
        assert_eq!(write(&writer, |conn| insert(conn, 3)).await, Ok(3));
        assert_eq!(numbers(&writer).await, [3]);
    }

    #[tokio::test]
    async fn what_is_queued_before_the_close_is_done_and_nothing_after() {
        let folder = tempfile::tempdir().unwrap();
        let writer = writer(&folder);
        let gate = busy(&writer).await;
        let (before, (), after, ()) = tokio::join!(
            write(&writer, |conn| insert(conn, 1)),
            writer.close(),
            write(&writer, |conn| insert(conn, 2)),
            async { drop(gate) },
        );
        assert_eq!((before, after), (Ok(1), Err(Error::Closed)));
        assert_eq!(write(&writer, |conn| insert(conn, 3)).await, Err(Error::Closed));
    }

    #[tokio::test]
    async fn a_lock_held_elsewhere_is_an_error_only_while_it_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let writer = writer(&folder);
        write(&writer, |conn| Ok(conn.busy_timeout(Duration::ZERO)?)).await.unwrap();
        let other = open_writer(&folder.path().join("test.db"), false).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let locked = write(&writer, |conn| insert(conn, 1)).await.unwrap_err();
        assert!(matches!(locked, Error::DatabaseLocked { .. }), "{locked}");
        other.execute_batch("ROLLBACK").unwrap();
        assert_eq!(write(&writer, |conn| insert(conn, 1)).await, Ok(1));
    }

    #[tokio::test]
    async fn commits_of_others_ring_the_bell() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, wakes) = (writer(&folder), Arc::new(Wakes::default()));
        let waiter = wakes.register("any");
        writer.watch(wakes);
        waiter.wait().await;
        let rang = tokio::time::timeout(WATCH_EVERY * 3, waiter.wait()).await;
        assert!(rang.is_err(), "nothing happened");
        let other = open_writer(&folder.path().join("test.db"), false).unwrap();
        insert(&other, 1).unwrap();
        tokio::time::timeout(Duration::from_secs(5), waiter.wait()).await.unwrap();
    }

    #[test]
    fn time_never_goes_back() {
        let (clock, hand) = Clock::test("2025-01-01T00:00:00Z".parse().unwrap());
        let instants = Instants::new(clock.clone());
        let first = instants.now();
        hand.set(clock.now() - chrono::TimeDelta::hours(1));
        assert_eq!(instants.now(), first);
        hand.advance(Duration::from_secs(3601));
        assert_eq!(instants.now(), first + 1_000_000);
    }
}
