//! The same paths without a network, for a program that has the queue itself, as the command line does.

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

/// The HTTP API of a queue, called within the process. It asks for no token: whoever has the database may do all.
/// Upkeep is not part of it.
pub struct Inside {
    router: Router,
    /// While it is there, streams and claims that wait go on.
    _stop: watch::Sender<bool>,
}

impl Inside {
    /// Of this queue.
    pub fn new(queue: Queue) -> Inside {
        let (stop, stopping) = watch::channel(false);
        let options = ServeOptions { access: Access::Open, ..ServeOptions::default() };
        Inside { router: routes::router(App::new(queue, options, stopping)), _stop: stop }
    }

    /// Answers as a server would.
    pub async fn call(&self, request: Request<Body>) -> Response {
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}
