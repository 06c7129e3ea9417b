//! `/healthz`, `/readyz` and `/metrics`: the state of the server.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass_api::HealthBody;

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(alive)).routes(routes!(ready)).routes(routes!(metrics))
}

/// A database that takes longer than this to answer a ping counts as unavailable.
const PING_MAX: Duration = Duration::from_secs(5);

/// Check that the server runs
///
/// Does not check the database: restarting the server would not fix it.
#[utoipa::path(
    get, path = "/healthz", tag = "server", security(()),
    responses((status = 200, description = "The server runs.", body = HealthBody))
)]
async fn alive() -> Json<HealthBody> {
    Json(HealthBody { status: "ok".into() })
}

/// Check that the server is ready
///
/// The database answers, and the server is not shutting down.
#[utoipa::path(
    get, path = "/readyz", tag = "server", security(()),
    responses((status = 200, description = "The server is ready.", body = HealthBody))
)]
async fn ready(State(app): State<App>) -> Result<Json<HealthBody>, ApiError> {
    if app.is_stopping() {
        return Err(ApiError::unavailable("shutting_down", "the server is shutting down"));
    }
    match tokio::time::timeout(PING_MAX, app.queue.ping()).await {
        Ok(Ok(())) => Ok(Json(HealthBody { status: "ok".into() })),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            let error = format!("the database did not answer within {} s", PING_MAX.as_secs());
            Err(ApiError::unavailable("database_unavailable", error))
        }
    }
}

/// Metrics for Prometheus
///
/// Counters cover this process only. Gauges of the database are at most a few seconds old. A token limited to some
/// namespaces sees only those.
#[utoipa::path(
    get, path = "/metrics", tag = "server", security(("token" = ["read"])),
    responses((status = 200, description = "Prometheus's text format.", body = String, content_type = "text/plain"))
)]
async fn metrics(State(app): State<App>, Extension(caller): Extension<Caller>) -> impl IntoResponse {
    let text = app.metrics.render(|namespace| caller.covers(namespace)).await;
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
