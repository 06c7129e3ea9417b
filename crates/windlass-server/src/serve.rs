//! Serving: HTTP and upkeep, from the first connection to an orderly end.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use windlass::Queue;

use crate::app::App;
use crate::auth::Access;
use crate::dashboard::Dashboard;
use crate::tls::Tls;
use crate::{listen, routes};

/// How to serve. Everything has a limit; beyond it a request is refused with 413, 429 or 503.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Whom to answer; only this machine unless set.
    pub access: Access,
    /// Speaks TLS; plain HTTP unless set.
    pub tls: Option<Tls>,
    /// Whether there is a dashboard, and whether it can change anything; on unless set.
    pub dashboard: Dashboard,
    /// How often it looks for upkeep that is due: run-out leases, deadlines, retention. Every second unless set.
    pub maintain_every: Duration,
    /// What `/metrics` says of the database is at most so old; unless reading it takes more than a twentieth of this: then
    /// it may be as old as twenty such reads. 5 s unless set; zero reads it every time.
    pub metrics_age_max: Duration,
    /// How long requests that are under way may still take once the server stops. 30 s unless set.
    pub shutdown_grace: Duration,
    /// How long a request may take, beside the time that a claim waits. 30 s unless set.
    pub request_timeout: Duration,
    /// How long a connection may stay silent between requests, take to send a request's head, or leave an
    /// answer unread. 60 s unless set.
    pub idle_timeout: Duration,
    /// The most connections at once. 16,384 unless set.
    pub connections_max: usize,
    /// The most claims that wait at once. 16,384 unless set.
    pub waiting_claims_max: usize,
    /// The most streams at once. 1,000 unless set.
    pub streams_max: usize,
    /// The largest body of a request with many events, in bytes. 32 MiB unless set.
    pub batch_bytes_max: usize,
    /// The most bytes of request bodies in memory at once. 256 MiB unless set.
    pub bodies_bytes_max: usize,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            access: Access::Local,
            tls: None,
            dashboard: Dashboard::On,
            maintain_every: Duration::from_secs(1),
            metrics_age_max: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(30),
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            connections_max: 16_384,
            waiting_claims_max: 16_384,
            streams_max: 1_000,
            batch_bytes_max: 32 << 20,
            bodies_bytes_max: 256 << 20,
        }
    }
}

/// Serves the queue until `shutdown` is ready: then nothing new is accepted, requests that are under
/// way are answered, claims that wait are told to ask elsewhere, and the queue is closed.
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
    let (stop, stopping) = watch::channel(false);
    let app = App::new(queue.clone(), options, stopping);
    // Dropped with this future, it ends its tasks.
    let mut upkeep = JoinSet::new();
    upkeep.spawn({
        let (queue, every) = (queue.clone(), app.options.maintain_every);
        async move { queue.maintain_all(every).await }
    });
    upkeep.spawn({
        let app = app.clone();
        async move { app.metrics.settle().await }
    });
    // It is set once, and here.
    let _ = app.address.set(listener.local_addr()?);
    let open = listen::accept(&listener, &app, routes::router(app.clone()), shutdown).await;
    drop(listener);
    tracing::info!("stopping: requests under way are still answered");
    stop.send_replace(true);
    queue.stop_waiting();
    let grace = app.options.shutdown_grace;
    tokio::select! {
        () = open.close() => {}
        () = app.answered_all() => tracing::info!("clients that neither ask nor read are cut off"),
        () = tokio::time::sleep(grace) => tracing::warn!(?grace, "requests are still under way; they are cut off"),
    }
    upkeep.shutdown().await;
    queue.close().await;
    Ok(())
}
