//! Serving: HTTP and upkeep, from the first connection to an orderly end.

use std::future::{Future, IntoFuture};
use std::io;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use windlass::Queue;

use crate::{maintain, routes};

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// How often upkeep runs: run-out leases, deadlines, backfills. Every second unless set.
    pub maintain_every: Duration,
    /// How long requests that are under way may still take once the server stops. 30 s unless set.
    pub shutdown_grace: Duration,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions { maintain_every: Duration::from_secs(1), shutdown_grace: Duration::from_secs(30) }
    }
}

/// Serves the queue until `shutdown` is ready: then nothing new is accepted, requests that are under
/// way are answered, and the queue is closed.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use windlass_server::{ServeOptions, serve};
///
/// let queue = windlass::Queue::open("sqlite://windlass.db").await?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:7700").await?;
/// let until_interrupted = async { drop(tokio::signal::ctrl_c().await) };
/// serve(queue, listener, ServeOptions::default(), until_interrupted).await?;
/// # Ok(())
/// # }
/// ```
pub async fn serve(
    queue: Queue,
    listener: TcpListener,
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // Dropped with this future, it ends its task.
    let mut upkeep = JoinSet::new();
    upkeep.spawn(maintain::run(queue.clone(), options.maintain_every));

    let (stop, stopping) = oneshot::channel::<()>();
    let shutdown = async move {
        shutdown.await;
        tracing::info!("stopping: requests under way are still answered");
        drop(stop);
    };
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
    });
    let server = axum::serve(listener, routes::router(queue.clone())).with_graceful_shutdown(shutdown);
    let too_late = async move {
        let _ = stopping.await;
        tokio::time::sleep(options.shutdown_grace).await;
    };
    let served = tokio::select! {
        served = server.into_future() => served,
        () = too_late => {
            tracing::warn!(grace = ?options.shutdown_grace, "requests are still under way; they are cut off");
            Ok(())
        }
    };
    upkeep.shutdown().await;
    queue.close().await;
    served
}
