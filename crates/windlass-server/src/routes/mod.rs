//! The routes of the HTTP API.
//!
//! Each file holds the paths, query parameters and handlers of one verb of the library, under the same name. The bodies
//! of requests and responses are in [`windlass_api`]. The handlers translate between HTTP and the library and contain no
//! queue logic. [`router`] puts them together.

mod cancel;
mod claim;
mod dead_letters;
mod doctor;
mod event_body;
mod explain;
mod finish;
mod health;
mod heartbeat;
mod inspect;
pub(crate) mod namespace;
mod nodes;
mod pg_cron;
mod publish;
mod reset;
mod samples;
mod schedules;
mod search;
mod stream;
mod subscription;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Router, middleware, routing};
use utoipa_axum::router::OpenApiRouter;
use windlass::WAIT_MAX;

pub(crate) use self::doctor::collect_findings;
use crate::app::App;
use crate::auth;
use crate::dashboard;
use crate::error::ApiError;
use crate::openapi;

pub(crate) fn router(app: App) -> Router {
    let timeout = app.options.request_timeout;
    let namespace_routes = OpenApiRouter::default()
        .merge(with_timeout(timeout, publish::routes()))
        .merge(with_timeout(timeout + WAIT_MAX, claim::routes()))
        .merge(with_timeout(timeout, finish::routes()))
        .merge(with_timeout(timeout, heartbeat::routes()))
        .merge(with_timeout(timeout, cancel::routes()))
        .merge(with_timeout(timeout, reset::routes()))
        .merge(with_timeout(timeout, inspect::routes()))
        .merge(with_timeout(timeout, search::routes()))
        .merge(with_timeout(timeout, explain::routes()))
        .merge(with_timeout(timeout, samples::routes()))
        // Redriving or canceling many deliveries, and backfilling a new subscription, take long.
        .merge(with_timeout(timeout + LONG_OPERATION, cancel::bulk_routes()))
        .merge(with_timeout(timeout + LONG_OPERATION, dead_letters::routes()))
        .merge(with_timeout(timeout + LONG_OPERATION, subscription::routes()))
        .merge(with_timeout(timeout, namespace::routes()))
        .merge(with_timeout(timeout, nodes::routes()))
        .merge(with_timeout(timeout, schedules::routes()))
        .merge(with_timeout(timeout, pg_cron::routes()))
        .merge(stream::routes());
    let (router, api) = OpenApiRouter::default()
        .merge(with_timeout(timeout, health::routes()))
        // Concurrent diagnoses run one after another.
        .merge(with_timeout(2 * timeout, doctor::routes()))
        .merge(with_timeout(timeout, namespace::root_routes()))
        .merge(namespace_routes.clone())
        .nest("/namespaces/{namespace}", namespace_routes)
        .split_for_parts();
    let document: Arc<str> = openapi::document(&api).to_string().into();
    let required = Arc::new(openapi::required_access(&api));
    router
        .route_layer(from_fn_with_state((app.clone(), required), auth::authorize))
        .merge(dashboard::router(&app))
        .route_layer(from_fn(record_path))
        .route("/openapi.json", routing::get(move || async move { openapi_response(document) }))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        // `JsonBody` has its own limit.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(app.clone(), record_metrics))
        .with_state(app)
}

/// Additional time for long operations.
pub(crate) const LONG_OPERATION: Duration = Duration::from_secs(600);

/// Answers requests that exceed the limit with `timed_out`.
fn with_timeout(limit: Duration, routes: OpenApiRouter<App>) -> OpenApiRouter<App> {
    routes.layer(from_fn(move |request: Request, next: Next| async move {
        let response = tokio::time::timeout(limit, next.run(request)).await;
        response.unwrap_or_else(|_| ApiError::timed_out(limit).into_response())
    }))
}

async fn record_metrics(State(app): State<App>, request: Request, next: Next) -> Response {
    let (in_flight, started_at) = (app.track_request(), Instant::now());
    let method = method_label(request.method());
    // A layer around the whole router sees no matched path, so `record_path` attaches it to the response.
    let response = next.run(request).await;
    drop(in_flight);
    let path = response.extensions().get::<MatchedPath>().map_or(UNMATCHED_PATH, MatchedPath::as_str);
    app.metrics.record_request(method, path, response.status().as_u16(), started_at.elapsed());
    response
}

/// The `path` label of requests that match no route. Their actual paths would be an unbounded set of labels.
const UNMATCHED_PATH: &str = "none";

/// Attaches the matched path to the response, for the metrics.
async fn record_path(request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(path) = path {
        response.extensions_mut().insert(path);
    }
    response
}

/// The `method` label: `other` for unknown methods, so that the set of labels is bounded.
fn method_label(method: &Method) -> &'static str {
    let known = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD, Method::OPTIONS];
    let names = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    known.iter().position(|known| known == method).map_or("other", |index| names[index])
}

fn openapi_response(document: Arc<str>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], document.to_string())
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown_path", format!("there is nothing at {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let error = format!("{} does not support {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", error)
}
