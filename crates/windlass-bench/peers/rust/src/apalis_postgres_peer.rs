//! apalis on PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use apalis::prelude::{
    BackendExt, BoxDynError, Data, Strategy, TaskSink, WorkerBuilder, WorkerBuilderExt, WorkerError,
};
use apalis_postgres::{Config, PgPool, PostgresStorage};
use sqlx::postgres::PgPoolOptions;

use crate::board::{Board, Outcome};
use crate::peer::{Opened, Peer, Stopping, Workers};
use crate::protocol::{Payload, Result, Variant};
use crate::version_of;

const CONNECTIONS: u32 = 18;
const QUEUE: &str = "bench";
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub struct ApalisPostgres {
    pool: PgPool,
    storage: PostgresStorage<Payload>,
    board: Arc<Board>,
    workers: u64,
    concurrency: usize,
    /// Workers need names of their own, also in the next run.
    named: AtomicU64,
}

impl Peer for ApalisPostgres {
    async fn open(url: &str, variant: Variant, board: Arc<Board>) -> Result<Opened<Self>> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        PostgresStorage::setup(&pool).await?;
        let (workers, batch, concurrency) = variant.choose((1, 10, 10), (2, 1000, 1000));
        // The lock that a task gets when it is fetched is enough; the second one, at its start, is optional.
        let config = Config::default().queue(QUEUE).batch_size(batch).lock_tasks(variant == Variant::Recommended);
        let storage = PostgresStorage::new(&pool).with_config(config);
        let about = format!(
            "{workers} workers with concurrency {concurrency} that fetch {batch} at a time, woken by NOTIFY, polling every \
             {POLL_INTERVAL:?}; finished tasks are kept"
        );
        let peer = Self { pool, storage, board, workers, concurrency, named: AtomicU64::new(0) };
        Ok(Opened { peer, version: version_of("apalis-postgres"), about })
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
            let (storage, board, concurrency) = (self.storage.clone(), self.board.clone(), self.concurrency);
            workers.spawn(&self.board, |stopping| run(name, storage, board, concurrency, stopping));
        }
        Ok(workers)
    }

    async fn unfinished(&self) -> Result<Option<u64>> {
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'").fetch_one(&self.pool).await?;
        Ok(Some(count as u64))
    }

    async fn close(self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

async fn run(
    name: String,
    storage: PostgresStorage<Payload>,
    board: Arc<Board>,
    concurrency: usize,
    stopping: Stopping,
) -> Result<()> {
    let backend = storage.with_pubsub().poll_with_strategy(Strategy::new().interval(POLL_INTERVAL));
    let worker = WorkerBuilder::new(name).backend(backend).concurrency(concurrency).data(board).build(handle);
    Ok(worker.run_until(until(stopping)).await?)
}

pub async fn until(stopping: Stopping) -> std::result::Result<(), WorkerError> {
    stopping.told().await;
    Ok(())
}

pub async fn handle(event: Payload, board: Data<Arc<Board>>) -> std::result::Result<(), BoxDynError> {
    match board.handle(&event) {
        Outcome::Fail => Err("fails once".into()),
        Outcome::Succeed => {
            board.finish(1);
            Ok(())
        }
    }
}
