//! What a peer has to offer to be measured.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::board::Board;
use crate::protocol::{Payload, Result, Variant};

pub struct Opened<P> {
    pub peer: P,
    pub version: String,
    /// How it is configured and what it keeps.
    pub about: String,
}

pub trait Peer: Sized + Send + Sync + 'static {
    /// Why failed events cannot be tried again, if they cannot.
    const NO_RETRIES: Option<&'static str> = None;

    /// Connects to what is empty and makes the schema.
    fn open(url: &str, variant: Variant, board: Arc<Board>) -> impl Future<Output = Result<Opened<Self>>>;

    /// Publishes in one call and waits for the acknowledgement; a single event by the call for one.
    fn publish(&self, events: Vec<Payload>) -> impl Future<Output = Result<()>> + Send;

    /// Starts workers, which call [`Board::handle`] and [`Board::finish`].
    fn start(&self) -> impl Future<Output = Result<Workers>> + Send;

    /// How many events are not finished, by what is stored; `None` if `finish` is called only once that is certain.
    fn unfinished(&self) -> impl Future<Output = Result<Option<u64>>> + Send {
        async { Ok(None) }
    }

    fn close(self) -> impl Future<Output = Result<()>> + Send;
}

/// Running workers.
pub struct Workers {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Workers {
    pub fn new() -> Self {
        Self { stop: watch::Sender::new(false), tasks: JoinSet::new() }
    }

    /// A worker that ends soon after `stopping` was told; until then every end is a failure.
    pub fn spawn<F, W>(&mut self, board: &Arc<Board>, worker: impl FnOnce(Stopping) -> F)
    where
        F: Future<Output = Result<W>> + Send + 'static,
    {
        let (work, board, stopping) = (worker(Stopping(self.stop.subscribe())), board.clone(), self.stop.subscribe());
        self.tasks.spawn(async move {
            match work.await {
                Err(error) => board.fail(error),
                Ok(_) if !*stopping.borrow() => board.fail("a worker ended by itself"),
                Ok(_) => {}
            }
        });
    }

    pub async fn stop(mut self) -> Result<()> {
        self.stop.send_replace(true);
        timeout(Duration::from_secs(30), async { while self.tasks.join_next().await.is_some() {} })
            .await
            .map_err(|_| "the workers do not stop".into())
    }
}

/// Whether workers are to stop.
#[derive(Clone)]
pub struct Stopping(watch::Receiver<bool>);

impl Stopping {
    pub fn now(&self) -> bool {
        *self.0.borrow()
    }

    pub async fn told(mut self) {
        // An error means that the workers were dropped, which is as good.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

/// The version of a package by a lock file.
pub fn locked_version(lock: &str, package: &str) -> String {
    let after = lock.split_once(&format!("name = \"{package}\"\nversion = \""));
    let version = after.and_then(|(_, after)| after.split('"').next());
    version.unwrap_or("unknown").to_owned()
}
