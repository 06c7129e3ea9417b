//! Accepts connections up to a limit and serves each in its own task.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::app::App;
use crate::metrics::GaugeGuard;
use crate::write_timeout::WriteTimeout;

/// The largest request head. Also the size of the read buffer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long a TLS handshake may take.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed `accept`, for example because of too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long a rejected client may take to read the response.
const REJECT_TIMEOUT: Duration = Duration::from_secs(1);

const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
content-type: application/json\r\ncontent-length: 69\r\nretry-after: 1\r\nconnection: close\r\n\r\n\
{\"error\":\"too many connections; try again later\",\"code\":\"overloaded\"}";

/// The open connections. Dropping this closes them.
pub(crate) struct OpenConnections {
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
}

impl OpenConnections {
    /// Waits until each connection has sent its pending responses and is closed.
    pub async fn close(self) {
        let OpenConnections { graceful, mut tasks } = self;
        graceful.shutdown().await;
        while tasks.join_next().await.is_some() {}
    }
}

/// Accepts connections until `shutdown` resolves, and returns those that are still open.
pub(crate) async fn accept(
    listener: &TcpListener,
    app: &App,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> OpenConnections {
    let mut open = OpenConnections { graceful: GracefulShutdown::new(), tasks: JoinSet::new() };
    let permits = Arc::new(Semaphore::new(app.options.connections_max));
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => return open,
            Some(_) = open.tasks.join_next() => continue,
        };
        let connection = match accepted {
            Ok((connection, _)) => connection,
            Err(error) => {
                pause_after_error(&error).await;
                continue;
            }
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            app.metrics.connections_refused.increment(1);
            tokio::spawn(reject(connection, app.options.tls.is_some()));
            continue;
        };
        let (app, router, watcher) = (app.clone(), router.clone(), open.graceful.watcher());
        open.tasks.spawn(async move {
            let _gauge = GaugeGuard::new(&app.metrics.connections);
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "cannot set TCP_NODELAY");
            }
            match &app.options.tls {
                None => serve_one(connection, &app, router, watcher).await,
                Some(tls) => match timeout(TLS_HANDSHAKE_TIMEOUT, tls.0.accept(connection)).await {
                    Ok(Ok(connection)) => serve_one(connection, &app, router, watcher).await,
                    Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                    Err(_) => tracing::debug!("TLS handshake timed out"),
                },
            }
            drop(permit);
        });
    }
}

async fn serve_one<C>(connection: C, app: &App, router: Router, watcher: Watcher)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.options.idle_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(
            TokioIo::new(WriteTimeout::new(connection, app.options.idle_timeout)),
            TowerToHyperService::new(router),
        );
    if let Err(error) = watcher.watch(served).await {
        // Almost always caused by the client.
        tracing::debug!(%error, "connection failed");
    }
}

/// Pauses after an error such as too many open files. A connection that was closed before it was accepted needs none.
async fn pause_after_error(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
    }
}

/// Sends a 503, unless that would need a TLS handshake.
async fn reject(mut connection: TcpStream, tls: bool) {
    if !tls {
        let answer = async {
            connection.write_all(TOO_MANY_CONNECTIONS).await?;
            connection.shutdown().await?;
            // Closing a connection with unread data resets it, and the client would lose the response.
            tokio::io::copy(&mut connection, &mut tokio::io::sink()).await
        };
        // The client may have disconnected.
        let _ = timeout(REJECT_TIMEOUT, answer).await;
    }
}
