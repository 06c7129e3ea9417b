//! The paths. One file for each verb of the library holds its paths, requests, responses and handlers.

mod claim;
mod event;
mod finish;
mod health;
mod inspect;
mod publish;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use windlass::Queue;

use crate::error::ApiError;

pub(crate) fn router(queue: Queue) -> Router {
    let of_a_namespace =
        Router::new().merge(publish::routes()).merge(claim::routes()).merge(finish::routes()).merge(inspect::routes());
    Router::new()
        .merge(health::routes())
        .merge(of_a_namespace.clone())
        .nest("/namespaces/{namespace}", of_a_namespace)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        // `JsonBody` has its own limit.
        .layer(DefaultBodyLimit::disable())
        .with_state(queue)
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown_path", format!("there is nothing at {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let error = format!("{} does not answer to {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", error)
}
