//! What every handler can reach.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use windlass::Queue;

use crate::auth::Gate;
use crate::dashboard::{AllCounted, AllWorkers, Figured};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::serve::ServeOptions;
use crate::stream::Hub;

/// One running server. Clones share everything.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    pub queue: Queue,
    pub options: ServeOptions,
    pub gate: Gate,
    pub hub: Hub,
    pub figured: Figured,
    pub counted: AllCounted,
    pub workers: AllWorkers,
    pub metrics: Metrics,
    /// Where it listens; nowhere, within a process.
    pub address: OnceLock<SocketAddr>,
    /// Room for claims that wait.
    waiting: Arc<Semaphore>,
    /// Room for request bodies, in kibibytes.
    bodies: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
    /// Requests that have no answer yet.
    unanswered: watch::Sender<usize>,
}

/// A request that has no answer yet.
pub(crate) struct Unanswered(App);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.unanswered.send_modify(|count| *count -= 1);
    }
}

/// How long clients may take to read the last answers.
const READ_MAX: Duration = Duration::from_secs(5);

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl App {
    pub fn new(queue: Queue, options: ServeOptions, stopping: watch::Receiver<bool>) -> App {
        let metrics = Metrics::new(&queue, options.metrics_age_max);
        let gate = Gate::new(options.access, &metrics);
        App(Arc::new(Shared {
            hub: Hub::new(options.streams_max),
            figured: Figured::default(),
            counted: AllCounted::default(),
            workers: AllWorkers::default(),
            waiting: Arc::new(Semaphore::new(options.waiting_claims_max)),
            bodies: Arc::new(Semaphore::new(options.bodies_bytes_max / 1024)),
            queue,
            options,
            gate,
            metrics,
            address: OnceLock::new(),
            stopping,
            unanswered: watch::Sender::new(0),
        }))
    }

    /// Counts a request that has no answer yet, for as long as what is returned lives.
    pub fn asked(&self) -> Unanswered {
        self.unanswered.send_modify(|count| *count += 1);
        Unanswered(self.clone())
    }

    /// Ready when every request has its answer, and the clients had a while to read it.
    pub async fn answered_all(&self) {
        // The sender is ours: it does not go away.
        let _ = self.unanswered.subscribe().wait_for(|count| *count == 0).await;
        tokio::time::sleep(READ_MAX).await;
    }

    /// Whether the server is about to end.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Ready when the server is about to end.
    pub async fn stopping(&self) {
        // An error means that the server is gone altogether.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    /// A place among the claims that wait.
    pub fn wait_place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.waiting.clone().try_acquire_owned().map_err(|_| {
            let max = self.options.waiting_claims_max;
            let error = format!("{max} claims are waiting already; ask again later, or with wait_ms=0");
            ApiError::new(axum::http::StatusCode::TOO_MANY_REQUESTS, "too_many_waiting", error)
        })
    }

    /// Room for so many more bytes of request bodies.
    pub fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        self.bodies.clone().try_acquire_many_owned(kib).map_err(|_| {
            ApiError::unavailable("overloaded", "the server holds as many request bodies as it may; try again later")
        })
    }
}
