//! The store in an SQLite file: one thread writes, a few connections read.
//!
//! A method of a store trait copies its arguments and calls a function of its file with a connection: on the writer's
//! thread, in the transaction that all queued writes share, or on the thread of a reader.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::Connection;

use self::connection::Readers;
use self::monotonic_clock::MonotonicClock;
use self::writer::{Durability, Writer};
use super::Store;
use crate::clock::{Clock, Timestamp, from_micros};
use crate::error::{Error, Result};
use crate::observe::pools::PoolView;
use crate::queue::wake::WakeRegistry;

mod activity;
pub(crate) mod arrive;
mod attempts;
mod backfill;
mod cancel;
mod claim;
mod clock_check;
mod commit_watch;
mod connection;
mod dead_letters;
pub(crate) mod diagnose;
mod enqueue;
mod error;
mod expire;
mod explain;
mod fire;
mod group;
mod handler_tx;
mod heartbeat;
mod history;
mod inspect;
mod lanes;
mod maintenance_tasks;
mod migrate;
mod monotonic_clock;
mod nodes;
mod prune;
mod publish;
mod reschedule;
mod results;
mod retain;
mod route;
mod row;
mod run;
mod samples;
mod schedules;
mod search;
mod stats;
mod tokens;
mod topology;
mod transition;
mod wal_watch;
mod watch;
mod writer;

pub(crate) struct SqliteStore {
    file: PathBuf,
    writer: Writer,
    readers: Arc<Readers>,
    clock: Arc<MonotonicClock>,
}

/// The schema version of the database in this file, and the one that this build needs. Does not change the file.
pub(crate) async fn schema_version(path: &str) -> Result<(i64, i64)> {
    let path = file(path)?;
    let found = blocking(move || migrate::version_of(&path)).await?;
    Ok((found, migrate::KNOWN))
}

fn file(path: &str) -> Result<PathBuf> {
    match path {
        "" => Err(Error::DatabaseUrl { url: "sqlite://".to_owned(), problem: "must name a file".to_owned() }),
        ":memory:" => Ok(connection::in_memory()),
        path => Ok(PathBuf::from(path)),
    }
}

/// Runs `work` on a thread that may block.
async fn blocking<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    let failed = |error| Error::Database { detail: format!("a read did not finish: {error}") };
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

fn open_and_migrate(path: &Path, clock: &MonotonicClock, migrate: bool) -> Result<Connection> {
    if !migrate && !path.exists() {
        return Err(Error::SchemaTooOld { found: 0, known: migrate::KNOWN });
    }
    let mut conn = connection::open_writer(path, migrate)?;
    migrate::prepare(&mut conn, migrate, clock.now())?;
    Ok(conn)
}

impl SqliteStore {
    /// Opens the file. With `migrate`, creates it if necessary and applies missing migrations.
    pub async fn open(path: &str, clock: Clock, migrate: bool) -> Result<SqliteStore> {
        let path = file(path)?;
        let clock = Arc::new(MonotonicClock::new(clock));
        let conn = {
            let (path, clock) = (path.clone(), clock.clone());
            blocking(move || open_and_migrate(&path, &clock, migrate)).await?
        };
        let readers = Arc::new(Readers::new(path.clone()));
        let (stale, file) = (readers.clone(), path.clone());
        let reopen = move || {
            stale.clear();
            connection::open_writer(&path, false)
        };
        let settings = commit_watch::Settings::of(&file);
        let writer = Writer::start(conn, clock.clone(), settings, reopen)?;
        Ok(SqliteStore { file, writer, readers, clock })
    }

    /// Runs `work` in a transaction. Returns after the commit is synced.
    async fn write<T, F>(&self, now: Option<Timestamp>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, i64) -> Result<T> + Send + 'static,
    {
        self.writer.write(Durability::Full, row::micros(now), work).await
    }

    /// The same for code of the application, which may break the transaction: it shares a transaction only with other
    /// such writes, and runs again alone if that fails.
    async fn write_repeatable<T, F>(&self, now: Option<Timestamp>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&Connection, i64) -> Result<T> + Send + 'static,
    {
        self.writer.write_repeatable(row::micros(now), work).await
    }

    async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let readers = self.readers.clone();
        blocking(move || readers.read(work)).await
    }

    fn now(&self, now: Option<Timestamp>) -> i64 {
        row::micros(now).unwrap_or_else(|| self.clock.now())
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    /// While one batch is synced, the next one waits in the writer's queue, so that the writer never idles.
    fn batches_in_flight(&self) -> usize {
        2
    }

    fn sqlite(&self) -> Option<&SqliteStore> {
        Some(self)
    }

    async fn watch(&self, wakes: Arc<WakeRegistry>) {
        self.writer.watch(wakes);
    }

    async fn now(&self, now: Option<Timestamp>) -> Result<Timestamp> {
        Ok(from_micros(SqliteStore::now(self, now)))
    }

    /// There is no pool: one connection writes, and readers open connections on demand.
    fn pools(&self) -> Vec<PoolView> {
        Vec::new()
    }

    async fn close(&self) {
        self.readers.close();
        self.writer.close().await;
    }
}
