//! apalis on SQLite.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use apalis::prelude::{BackendExt, Strategy, TaskSink, WorkerBuilder, WorkerBuilderExt};
use apalis_sqlite::callback::HookCallbackListener;
use apalis_sqlite::{Config, SqlitePool, SqliteStorage};
use futures_util::StreamExt;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use crate::apalis_postgres_peer::{handle, until};
use crate::board::Board;
use crate::peer::{Opened, Peer, Stopping, Workers};
use crate::protocol::{Payload, Result, Variant};
use crate::version_of;

const QUEUE: &str = "bench";
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Its acknowledgements can hold the lock for longer than the usual 5 s.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

pub struct ApalisSqlite {
    pool: SqlitePool,
    storage: SqliteStorage<Payload>,
    listener: HookCallbackListener,
    board: Arc<Board>,
    workers: u64,
    concurrency: usize,
    /// Workers need names of their own, also in the next run.
    named: AtomicU64,
}

impl Peer for ApalisSqlite {
    async fn open(url: &str, variant: Variant, board: Arc<Board>) -> Result<Opened<Self>> {
        let (lazy, listener) = SqliteStorage::connect_with_callback(url)?;
        // One connection never waits for the lock of another one; the callback comes with the pool's options.
        let connections = variant.choose(lazy.options().get_max_connections(), 1);
        let options = SqliteConnectOptions::from_str(url)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = lazy.options().clone().max_connections(connections).connect_with(options).await?;
        // Not `setup`, which turns synchronous off in the connection it is given.
        SqliteStorage::migrations().run(&pool).await?;
        // A worker's acknowledgements look through all tasks it has ever finished: with more workers, each has fewer.
        let (workers, batch, concurrency) = variant.choose((1, 10, 10), (20, 100, 100));
        let config = Config::default().queue(QUEUE).batch_size(batch).lock_tasks(variant == Variant::Recommended);
        let storage = SqliteStorage::new(&pool).with_config(config);
        let about = format!(
            "WAL, synchronous=FULL (its own setup turns it off), {connections} connections; {workers} workers with concurrency {concurrency} that \
             fetch {batch} at a time, woken by the update hook, polling every {POLL_INTERVAL:?}; finished tasks are kept"
        );
        let peer = Self { pool, storage, listener, board, workers, concurrency, named: AtomicU64::new(0) };
        Ok(Opened { peer, version: version_of("apalis-sqlite"), about })
    }

    async fn publish(&self, events: Vec<Payload>) -> Result<()> {
        let mut storage = self.storage.clone();
        match events.as_slice() {
            [event] => storage.push(event.clone()).await?,
            _ => storage.push_bulk(events).await?,
        }
        Ok(())
    }

    async fn start(&self) -> Result<Workers> {
        let mut workers = Workers::new();
        for _ in 0..self.workers {
            let name = format!("bench-{}", self.named.fetch_add(1, Relaxed));
            // The interval goes first: a strategy behind one that is ready is not polled, and so never wakes the worker.
            let inserted = self.listener.clone().ready_chunks(self.concurrency);
            let strategy = Strategy::new().interval(POLL_INTERVAL).stream(inserted);
            let (storage, board, concurrency) = (self.storage.clone(), self.board.clone(), self.concurrency);
            workers.spawn(&self.board, |stopping| run(name, storage, strategy, board, concurrency, stopping));
        }
        Ok(workers)
    }

    async fn unfinished(&self) -> Result<Option<u64>> {
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM Jobs WHERE status <> 'Done'").fetch_one(&self.pool).await?;
        Ok(Some(count as u64))
    }

    async fn close(self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

async fn run(
    name: String,
    storage: SqliteStorage<Payload>,
    strategy: Strategy,
    board: Arc<Board>,
    concurrency: usize,
    stopping: Stopping,
) -> Result<()> {
    let worker = WorkerBuilder::new(name)
        .backend(storage.poll_with_strategy(strategy))
        .concurrency(concurrency)
        .data(board)
        .build(handle);
    Ok(worker.run_until(until(stopping)).await?)
}
