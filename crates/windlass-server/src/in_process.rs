//! The HTTP API without a socket, for a program that has opened the queue itself, such as the CLI.

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use tokio::sync::watch;
use tower::ServiceExt;
use windlass::Queue;

use crate::app::App;
use crate::auth::Access;
use crate::routes;
use crate::serve::ServeOptions;

/// The HTTP API of a queue, called within the process. It requires no token, because the process has access to the
/// database anyway. It runs no maintenance tasks.
pub struct InProcessApi {
    router: Router,
    /// Dropping it ends streams and waiting claims.
    _stop: watch::Sender<bool>,
}

impl InProcessApi {
    /// The API of this queue.
    pub fn new(queue: Queue) -> InProcessApi {
        let (stop, stopping) = watch::channel(false);
        let options = ServeOptions { access: Access::Open, ..ServeOptions::default() };
        InProcessApi { router: routes::router(App::new(queue, options, stopping)), _stop: stop }
    }

    /// Handles a request as a server would.
    pub async fn call(&self, request: Request<Body>) -> Response {
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}
