//! graphile_worker: the port of Graphile Worker to Rust.

use std::sync::Arc;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::board::{Board, Outcome};
use crate::peer::{Opened, Peer, Workers};
use crate::protocol::{Payload, Result, Variant};
use crate::version_of;

/// One more is taken by the listener for notifications.
const CONNECTIONS: u32 = 19;
const LOCAL_QUEUE_SIZE: usize = 500;
const BATCH_DELAY: Duration = Duration::from_millis(1);

pub struct GraphileWorker {
    pool: PgPool,
    utils: WorkerUtils,
    board: Arc<Board>,
    variant: Variant,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Task(Payload);

impl TaskHandler for Task {
    const IDENTIFIER: &'static str = "bench";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let Some(board) = context.get_ext::<Arc<Board>>() else { return Err("no board") };
        match board.handle(&self.0) {
            Outcome::Fail => Err("fails once"),
            Outcome::Succeed => {
                board.finish(1);
                Ok(())
            }
        }
    }
}

impl GraphileWorker {
    fn options(pool: &PgPool, board: &Arc<Board>, variant: Variant) -> WorkerOptions {
        let options = WorkerOptions::default()
            .pg_pool(pool.clone())
            .define_job::<Task>()
            .add_extension(board.clone())
            .listen_os_shutdown_signals(false);
        match variant {
            // Without a local queue a backlog is drained by ten jobs at each poll, that is ten a second.
            Variant::Recommended => options.concurrency(10).local_queue(LocalQueueConfig::default()),
            Variant::Tuned => options
                .concurrency(LOCAL_QUEUE_SIZE)
                .local_queue(LocalQueueConfig::default().with_size(LOCAL_QUEUE_SIZE).with_queue_count(2))
                .complete_job_batch_delay(BATCH_DELAY)
                .fail_job_batch_delay(BATCH_DELAY),
        }
    }
}

impl Peer for GraphileWorker {
    async fn open(url: &str, variant: Variant, board: Arc<Board>) -> Result<Opened<Self>> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        // Making a worker makes the schema.
        let utils = Self::options(&pool, &board, variant).init().await?.create_utils();
        let about = variant.choose(
            "concurrency 10, a local queue of 100, woken by NOTIFY, polls every second; finished jobs are deleted"
                .to_owned(),
            format!(
                "concurrency {LOCAL_QUEUE_SIZE}, 2 local queues of {LOCAL_QUEUE_SIZE}, completions batched for \
                 {BATCH_DELAY:?}; finished jobs are deleted"
            ),
        );
        Ok(Opened { peer: Self { pool, utils, board, variant }, version: version_of("graphile_worker"), about })
    }

    async fn publish(&self, events: Vec<Payload>) -> Result<()> {
        if let [event] = events.as_slice() {
            self.utils.add_job(Task(event.clone()), JobSpec::default()).await?;
            return Ok(());
        }
        let spec = JobSpec::default();
        let jobs: Vec<_> = events.into_iter().map(|event| (Task(event), &spec)).collect();
        self.utils.add_jobs(&jobs).await?;
        Ok(())
    }

    async fn start(&self) -> Result<Workers> {
        let mut workers = Workers::new();
        let options = Self::options(&self.pool, &self.board, self.variant);
        workers.spawn(&self.board, |stopping| async move {
            let worker = options.shutdown_signal(stopping.told()).init().await?;
            Ok(worker.run().await?)
        });
        Ok(workers)
    }

    async fn unfinished(&self) -> Result<Option<u64>> {
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM graphile_worker._private_jobs").fetch_one(&self.pool).await?;
        Ok(Some(count as u64))
    }

    async fn close(self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}
