//! Connections: accepted up to a limit, each served by a task of its own.

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
use crate::metrics::Counted;
use crate::patience::Patience;

/// A request's head may be this large, and so may what is read ahead of a body.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long the two sides may take to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// After a failure to accept, such as too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How long a client that is turned away may take to read why.
const TURNING_AWAY: Duration = Duration::from_secs(1);

const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
content-type: application/json\r\ncontent-length: 93\r\nretry-after: 1\r\nconnection: close\r\n\r\n\
{\"error\":\"the server has as many connections as it may; try again later\",\"code\":\"overloaded\"}";

/// Connections that are open. They end with it.
pub(crate) struct Open {
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
}

impl Open {
    /// Until each connection has answered what it was asked, and is closed.
    pub async fn close(self) {
        let Open { graceful, mut tasks } = self;
        graceful.shutdown().await;
        while tasks.join_next().await.is_some() {}
    }
}

/// Accepts connections until `shutdown` is ready, and returns those that are still open.
pub(crate) async fn accept(
    listener: &TcpListener,
    app: &App,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> Open {
    let mut open = Open { graceful: GracefulShutdown::new(), tasks: JoinSet::new() };
    let places = Arc::new(Semaphore::new(app.options.connections_max));
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
                refused(&error).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            app.metrics.connections_refused.increment(1);
            tokio::spawn(turn_away(connection, app.options.tls.is_some()));
            continue;
        };
        let (app, router, watcher) = (app.clone(), router.clone(), open.graceful.watcher());
        open.tasks.spawn(async move {
            let _counted = Counted::new(&app.metrics.connections);
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "cannot set TCP_NODELAY");
            }
            match &app.options.tls {
                None => serve_one(connection, &app, router, watcher).await,
                Some(tls) => match timeout(HANDSHAKE, tls.0.accept(connection)).await {
                    Ok(Ok(connection)) => serve_one(connection, &app, router, watcher).await,
                    Ok(Err(error)) => tracing::debug!(%error, "no TLS"),
                    Err(_) => tracing::debug!("no TLS in time"),
                },
            }
            drop(place);
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
            TokioIo::new(Patience::new(connection, app.options.idle_timeout)),
            TowerToHyperService::new(router),
        );
    if let Err(error) = watcher.watch(served).await {
        // The client's doing, nearly always.
        tracing::debug!(%error, "a connection failed");
    }
}

/// A connection that failed before it was accepted is nothing; too many open files need a pause.
async fn refused(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(ACCEPT_AGAIN).await;
    }
}

/// Says why, where that needs no handshake.
async fn turn_away(mut connection: TcpStream, tls: bool) {
    if !tls {
        let answer = async {
            connection.write_all(TOO_MANY).await?;
            connection.shutdown().await?;
            // Closed with something unread, the connection would be reset, and the answer lost.
            tokio::io::copy(&mut connection, &mut tokio::io::sink()).await
        };
        // The client may have gone; there is nothing more to do for it.
        let _ = timeout(TURNING_AWAY, answer).await;
    }
}
