//! Waits for the signals that ask the process to stop.

/// Ready when the process receives SIGTERM (as sent by a deployment) or SIGINT (Ctrl-C). Intended for
/// [`Node::run_until`](crate::Node::run_until):
///
/// ```
/// async fn run(node: windlass::Node) -> windlass::Result<()> {
///     node.run_until(windlass::shutdown_signal()).await
/// }
/// ```
///
/// Any number of futures may wait for it. Once the first one waits, these signals no longer terminate the process.
pub async fn shutdown_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                () = interrupted() => {}
            }
            return;
        }
    }
    interrupted().await;
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Signals are not available here. Wait forever; the process is stopped in another way.
        std::future::pending::<()>().await;
    }
}
