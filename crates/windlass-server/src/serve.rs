//! Runs the HTTP server and the maintenance tasks, from the first connection to a graceful shutdown.

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

/// Server options. Every resource has a limit; a request beyond it is refused with 413, 429 or 503.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Which clients to accept. Default: [`Access::Local`].
    pub access: Access,
    /// TLS certificate and key. Default: plain HTTP.
    pub tls: Option<Tls>,
    /// Whether to serve the dashboard, and whether it can change anything. Default: [`Dashboard::On`].
    pub dashboard: Dashboard,
    /// How often to check for due maintenance tasks: expired leases, deadlines, retention. Default: 1 s.
    pub maintain_every: Duration,
    /// Maximum age of the database values in `/metrics`. If reading them takes more than a twentieth of this, they may
    /// be as old as twenty such reads. Zero reads them for every request. Default: 5 s.
    pub metrics_age_max: Duration,
    /// How long in-flight requests may still take after the server starts to shut down. Default: 30 s.
    pub shutdown_grace: Duration,
    /// How long a request may take, in addition to the time that a claim waits. Default: 30 s.
    pub request_timeout: Duration,
    /// How long a connection may be idle between requests, take to send a request head, or leave a response unread.
    /// Default: 60 s.
    pub idle_timeout: Duration,
    /// Maximum number of open connections. Default: 16,384.
    pub connections_max: usize,
    /// Maximum number of waiting claims. Default: 16,384.
    pub waiting_claims_max: usize,
    /// Maximum number of open streams. Default: 1,000.
    pub streams_max: usize,
    /// Maximum size of a request body with many events, in bytes. Default: 32 MiB.
    pub batch_bytes_max: usize,
    /// Maximum total size of the request bodies in memory, in bytes. Default: 256 MiB.
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

/// Serves the queue until `shutdown` resolves. Then it accepts no more connections, answers in-flight requests, ends
/// waiting claims with `shutting_down`, and closes the queue.
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
    // Dropping this future drops the set, which aborts the tasks.
    let mut background = JoinSet::new();
    background.spawn({
        let (queue, every) = (queue.clone(), app.options.maintain_every);
        async move { queue.maintain_all(every).await }
    });
    background.spawn({
        let app = app.clone();
        async move { app.metrics.drain_histograms().await }
    });
    // This cannot fail: the address is set only here.
    let _ = app.address.set(listener.local_addr()?);
    let connections = listen::accept(&listener, &app, routes::router(app.clone()), shutdown).await;
    drop(listener);
    tracing::info!("shutting down: waiting for in-flight requests");
    stop.send_replace(true);
    queue.stop_waiting();
    let grace = app.options.shutdown_grace;
    tokio::select! {
        () = connections.close() => {}
        () = app.all_requests_answered() => tracing::info!("closing idle connections"),
        () = tokio::time::sleep(grace) => tracing::warn!(?grace, "aborting in-flight requests: the grace period is over"),
    }
    background.shutdown().await;
    queue.close().await;
    Ok(())
}
