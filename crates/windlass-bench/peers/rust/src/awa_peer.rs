//! Awa: a job queue on append-only, rotating tables of PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use awa::{Client, InsertOpts, JobArgs, JobResult, QueueConfig, QueueStorage, QueueStorageConfig};
use serde::{Deserialize, Serialize};
use sqlx08::PgPool;
use sqlx08::postgres::PgPoolOptions;

use crate::board::{Board, Outcome};
use crate::peer::{Opened, Peer, Workers};
use crate::protocol::{Payload, Result, Variant};
use crate::version_of;

const QUEUE: &str = "bench";
const CONNECTIONS: u32 = 20;
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(20);

pub struct Awa {
    pool: PgPool,
    storage: QueueStorage,
    board: Arc<Board>,
    variant: Variant,
}

#[derive(Clone, Serialize, Deserialize, JobArgs)]
#[serde(transparent)]
struct Task(Payload);

impl Awa {
    fn config(variant: Variant) -> QueueConfig {
        match variant {
            Variant::Recommended => QueueConfig { max_workers: 10, ..QueueConfig::default() },
            // More claimers were slower, and so was going without a deadline, which Awa has a compact form of claims for.
            Variant::Tuned => {
                QueueConfig { max_workers: 1000, poll_interval: Duration::from_millis(50), ..QueueConfig::default() }
            }
        }
    }

    fn client(&self) -> Result<Client> {
        let board = self.board.clone();
        let client = Client::builder(self.pool.clone())
            .queue(QUEUE, Self::config(self.variant))
            .register::<Task, _, _>(move |Task(event), _| {
                let board = board.clone();
                async move {
                    match board.handle(&event) {
                        Outcome::Fail => Ok(JobResult::RetryAfter(Duration::ZERO)),
                        Outcome::Succeed => {
                            board.finish(1);
                            Ok(JobResult::Completed)
                        }
                    }
                }
            })
            .build()?;
        Ok(client)
    }
}

fn opts() -> InsertOpts {
    InsertOpts { queue: QUEUE.into(), ..InsertOpts::default() }
}

impl Peer for Awa {
    async fn open(url: &str, variant: Variant, board: Arc<Board>) -> Result<Opened<Self>> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        awa::migrations::run(&pool).await?;
        let storage = QueueStorage::new(QueueStorageConfig::default())?;
        let peer = Self { pool, storage, board, variant };
        // The first worker of a new database switches the queue storage on.
        let client = peer.client()?;
        client.start().await?;
        client.shutdown(SHUTDOWN_PATIENCE).await;
        let about = variant.choose(
            "10 workers, woken by NOTIFY, polls every 200 ms; batches by COPY; finished jobs are kept as history",
            "1000 workers that claim up to 512 at once, woken by NOTIFY, polls every 50 ms; batches by COPY; finished \
             jobs are kept as history",
        );
        Ok(Opened { peer, version: version_of("awa"), about: about.to_owned() })
    }

    async fn publish(&self, events: Vec<Payload>) -> Result<()> {
        if let [event] = events.as_slice() {
            awa::insert_with(&self.pool, &Task(event.clone()), opts()).await?;
            return Ok(());
        }
        let mut jobs = Vec::with_capacity(events.len());
        for event in events {
            jobs.push(awa::insert::params_with(&Task(event), opts())?);
        }
        self.storage.enqueue_params_copy(&self.pool, &jobs).await?;
        Ok(())
    }

    async fn start(&self) -> Result<Workers> {
        let client = self.client()?;
        client.start().await?;
        let mut workers = Workers::new();
        workers.spawn(&self.board, |stopping| async move {
            stopping.told().await;
            client.shutdown(SHUTDOWN_PATIENCE).await;
            Ok(())
        });
        Ok(workers)
    }

    async fn unfinished(&self) -> Result<Option<u64>> {
        let counts = self.storage.queue_counts(&self.pool, QUEUE).await?;
        Ok(Some((counts.available + counts.running) as u64))
    }

    async fn close(self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}
