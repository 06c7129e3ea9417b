//! State shared by all request handlers.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use windlass::Queue;

use crate::auth::Authorizer;
use crate::dashboard::{DeliveryCountCache, OverviewCache, WorkerCache};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::serve::ServeOptions;
use crate::stream::ActivityHub;

/// One running server. Clones share all state.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    pub queue: Queue,
    pub options: ServeOptions,
    pub authorizer: Authorizer,
    pub hub: ActivityHub,
    pub overview_cache: OverviewCache,
    pub delivery_counts: DeliveryCountCache,
    pub worker_cache: WorkerCache,
    pub metrics: Metrics,
    /// The listening address; unset for an in-process API.
    pub address: OnceLock<SocketAddr>,
    /// Permits for waiting claims.
    waiting_claims: Arc<Semaphore>,
    /// Memory for request bodies, one permit per KiB.
    body_memory: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
    /// Number of requests without a response.
    in_flight: watch::Sender<usize>,
}

/// Counts one request as in flight until it is dropped.
pub(crate) struct InFlightRequest(App);

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.0.in_flight.send_modify(|count| *count -= 1);
    }
}

/// How long clients may take to read the last responses during shutdown.
const FINAL_READ_TIME: Duration = Duration::from_secs(5);

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl App {
    pub fn new(queue: Queue, options: ServeOptions, stopping: watch::Receiver<bool>) -> App {
        let metrics = Metrics::new(&queue, options.metrics_age_max);
        let authorizer = Authorizer::new(options.access, &metrics);
        App(Arc::new(Shared {
            hub: ActivityHub::new(options.streams_max),
            overview_cache: OverviewCache::default(),
            delivery_counts: DeliveryCountCache::default(),
            worker_cache: WorkerCache::default(),
            waiting_claims: Arc::new(Semaphore::new(options.waiting_claims_max)),
            body_memory: Arc::new(Semaphore::new(options.bodies_bytes_max / 1024)),
            queue,
            options,
            authorizer,
            metrics,
            address: OnceLock::new(),
            stopping,
            in_flight: watch::Sender::new(0),
        }))
    }

    /// Counts a request as in flight until the returned guard is dropped.
    pub fn track_request(&self) -> InFlightRequest {
        self.in_flight.send_modify(|count| *count += 1);
        InFlightRequest(self.clone())
    }

    /// Resolves when every request has a response and clients have had time to read it.
    pub async fn all_requests_answered(&self) {
        // This cannot fail: `self` keeps the sender alive.
        let _ = self.in_flight.subscribe().wait_for(|count| *count == 0).await;
        tokio::time::sleep(FINAL_READ_TIME).await;
    }

    /// Whether the server is shutting down.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Resolves when the server starts to shut down.
    pub async fn stopping(&self) {
        // An error means that the sender was dropped, so the server has stopped.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    /// Takes a permit for a waiting claim; 429 if all are in use.
    pub fn acquire_waiting_claim(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.waiting_claims.clone().try_acquire_owned().map_err(|_| {
            let max = self.options.waiting_claims_max;
            let error = format!("{max} claims are already waiting; retry later, or with wait_ms=0");
            ApiError::new(axum::http::StatusCode::TOO_MANY_REQUESTS, "too_many_waiting", error)
        })
    }

    /// Reserves memory for a request body; 503 if the limit is reached.
    pub fn reserve_body_memory(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        self.body_memory
            .clone()
            .try_acquire_many_owned(kib)
            .map_err(|_| ApiError::unavailable("overloaded", "too many request bodies in memory; try again later"))
    }
}
