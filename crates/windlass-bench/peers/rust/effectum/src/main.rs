//! Speaks the adapter protocol of `windlass-bench compare` for effectum.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use board::{Board, Outcome};
use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use peer::{Opened, Peer, Workers};
use protocol::{Payload, Result, Variant};

#[path = "../../src/board.rs"]
mod board;
#[expect(dead_code, reason = "other peers use all of it")]
#[path = "../../src/peer.rs"]
mod peer;
#[path = "../../src/protocol.rs"]
mod protocol;
#[path = "../../src/serve.rs"]
mod serve;
#[path = "../../src/workload.rs"]
mod workload;

// The allocator that Windlass is measured with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KIND: &str = "bench";

#[tokio::main]
async fn main() -> ExitCode {
    match serve::serve::<Effectum>().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Effectum {
    queue: Queue,
    board: Arc<Board>,
    concurrency: u16,
}

impl Peer for Effectum {
    const NO_RETRIES: Option<&'static str> =
        Some("effectum 0.7.0 counts a retry of one job for all jobs, which then run out of retries");

    async fn open(url: &str, variant: Variant, board: Arc<Board>) -> Result<Opened<Self>> {
        let path = Path::new(url.strip_prefix("sqlite://").ok_or("the URL begins with sqlite://")?);
        let queue = Queue::new(path).await?;
        let concurrency = variant.choose(10, 1000);
        let about = format!(
            "rollback journal, synchronous=NORMAL (neither can be set), so that commits are synced; concurrency \
             {concurrency}; finished jobs are kept"
        );
        let version = peer::locked_version(include_str!("../Cargo.lock"), "effectum");
        Ok(Opened { peer: Self { queue, board, concurrency }, version, about })
    }

    async fn publish(&self, events: Vec<Payload>) -> Result<()> {
        let mut jobs = Vec::with_capacity(events.len());
        for event in &events {
            jobs.push(Job::builder(KIND).json_payload(event)?.build());
        }
        match jobs.len() {
            1 => self.queue.add_job(jobs.remove(0)).await.map(|_| ())?,
            _ => self.queue.add_jobs(jobs).await.map(|_| ())?,
        }
        Ok(())
    }

    async fn start(&self) -> Result<Workers> {
        let runner = JobRunner::builder(KIND, handle).build();
        let worker = Worker::builder(&self.queue, self.board.clone())
            .max_concurrency(self.concurrency)
            .jobs([runner])
            .build()
            .await?;
        let mut workers = Workers::new();
        workers.spawn(&self.board, |stopping| async move {
            stopping.told().await;
            Ok(worker.unregister(Some(Duration::from_secs(20))).await?)
        });
        Ok(workers)
    }

    async fn unfinished(&self) -> Result<Option<u64>> {
        let active = self.queue.num_active_jobs().await?;
        Ok(Some(active.pending + active.running))
    }

    async fn close(self) -> Result<()> {
        Ok(self.queue.close(Duration::from_secs(20)).await?)
    }
}

async fn handle(job: RunningJob, board: Arc<Board>) -> std::result::Result<(), String> {
    let event: Payload = job.json_payload().map_err(|error| error.to_string())?;
    match board.handle(&event) {
        Outcome::Fail => Err("fails once".into()),
        Outcome::Succeed => {
            board.finish(1);
            Ok(())
        }
    }
}
