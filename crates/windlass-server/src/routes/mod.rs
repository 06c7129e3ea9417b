//! The paths. One file for each verb of the library holds its paths, requests, responses and handlers.

mod cancel;
mod claim;
mod dead_letters;
mod doctor;
mod event;
mod explain;
mod finish;
mod hand_over;
mod health;
mod hold;
mod inspect;
mod list;
mod names;
pub(crate) mod namespace;
mod nodes;
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

pub(crate) use self::doctor::findings;
use crate::app::App;
use crate::auth;
use crate::dashboard;
use crate::error::ApiError;
use crate::openapi;

pub(crate) fn router(app: App) -> Router {
    let quick = app.options.request_timeout;
    let within_a_namespace = OpenApiRouter::default()
        .merge(timed(quick, publish::routes()))
        .merge(timed(quick + WAIT_MAX, claim::routes()))
        .merge(timed(quick, finish::routes()))
        .merge(timed(quick, hold::routes()))
        .merge(timed(quick, cancel::routes()))
        .merge(timed(quick, reset::routes()))
        .merge(timed(quick, inspect::routes()))
        .merge(timed(quick, search::routes()))
        .merge(timed(quick, explain::routes()))
        .merge(timed(quick, samples::routes()))
        // Redriving or calling off many, or giving a new subscription its past, takes a while.
        .merge(timed(quick + LONG_WORK, cancel::of_many()))
        .merge(timed(quick + LONG_WORK, dead_letters::routes()))
        .merge(timed(quick + LONG_WORK, subscription::routes()))
        .merge(timed(quick, namespace::routes()))
        .merge(timed(quick, nodes::routes()))
        .merge(timed(quick, schedules::routes()))
        .merge(timed(quick, hand_over::routes()))
        .merge(stream::routes());
    let (router, api) = OpenApiRouter::default()
        .merge(timed(quick, health::routes()))
        // Who asks while somebody else does waits for his turn.
        .merge(timed(2 * quick, doctor::routes()))
        .merge(timed(quick, namespace::registry()))
        .merge(within_a_namespace.clone())
        .nest("/namespaces/{namespace}", within_a_namespace)
        .split_for_parts();
    let document: Arc<str> = openapi::document(&api).to_string().into();
    let needs = Arc::new(openapi::needs(&api));
    router
        .route_layer(from_fn_with_state((app.clone(), needs), auth::check))
        .merge(dashboard::router(&app))
        .route_layer(from_fn(note_path))
        .route("/openapi.json", routing::get(move || async move { show(document) }))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        // `JsonBody` has its own limit.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(app.clone(), count))
        .with_state(app)
}

/// What long work may take beyond the usual.
pub(crate) const LONG_WORK: Duration = Duration::from_secs(600);

/// Whoever has no answer by then is told so.
fn timed(limit: Duration, routes: OpenApiRouter<App>) -> OpenApiRouter<App> {
    routes.layer(from_fn(move |request: Request, next: Next| async move {
        let answer = tokio::time::timeout(limit, next.run(request)).await;
        answer.unwrap_or_else(|_| ApiError::timed_out(limit).into_response())
    }))
}

async fn count(State(app): State<App>, request: Request, next: Next) -> Response {
    let (unanswered, begun) = (app.asked(), Instant::now());
    let method = known_method(request.method());
    // A layer around the whole router sees no matched path, so each answer brings its own.
    let response = next.run(request).await;
    drop(unanswered);
    let path = response.extensions().get::<MatchedPath>().map_or(NO_PATH, MatchedPath::as_str);
    app.metrics.answered(method, path, response.status().as_u16(), begun.elapsed());
    response
}

/// What is counted as the path of requests that match none: those are as many as people can think of.
const NO_PATH: &str = "none";

/// Notes on the answer which path it is of.
async fn note_path(request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(path) = path {
        response.extensions_mut().insert(path);
    }
    response
}

/// Methods, too, are as many as people can think of.
fn known_method(method: &Method) -> &'static str {
    let known = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD, Method::OPTIONS];
    let names = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    known.iter().position(|known| known == method).map_or("other", |place| names[place])
}

fn show(document: Arc<str>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], document.to_string())
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown_path", format!("there is nothing at {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let error = format!("{} does not answer to {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", error)
}
