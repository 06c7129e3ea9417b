//! When the process is asked to end.

/// Ready once the process is asked to end: by SIGTERM, as a deploy does it, or by SIGINT, Ctrl-C. Made for
/// [`Node::run_until`](crate::Node::run_until):
///
/// ```
/// async fn run(node: windlass::Node) -> windlass::Result<()> {
///     node.run_until(windlass::shutdown_signal()).await
/// }
/// ```
///
/// Any number of futures may wait for it. From the first one on, these signals no longer end the process by themselves.
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
        // Signals cannot be had here: then the process ends in some other way.
        std::future::pending::<()>().await;
    }
}
