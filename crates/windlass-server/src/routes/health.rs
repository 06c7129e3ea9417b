//! `/healthz`, `/readyz` and `/metrics`: about the server itself.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(alive)).routes(routes!(ready)).routes(routes!(metrics))
}

/// A database that takes longer than this does not answer.
const PING_MAX: Duration = Duration::from_secs(5);

/// All is well.
#[derive(Serialize, ToSchema)]
struct HealthBody {
    /// `ok`
    status: &'static str,
}

/// Whether the server runs
///
/// It says nothing about the database: restarting the server would not bring that back.
#[utoipa::path(
    get, path = "/healthz", tag = "server", security(()),
    responses((status = 200, description = "It runs.", body = HealthBody))
)]
async fn alive() -> Json<HealthBody> {
    Json(HealthBody { status: "ok" })
}

/// Whether the server can do its work
///
/// The database answers, and the server is not about to stop.
#[utoipa::path(
    get, path = "/readyz", tag = "server", security(()),
    responses((status = 200, description = "It can.", body = HealthBody))
)]
async fn ready(State(app): State<App>) -> Result<Json<HealthBody>, ApiError> {
    if app.is_stopping() {
        return Err(ApiError::unavailable("shutting_down", "the server is stopping"));
    }
    match tokio::time::timeout(PING_MAX, app.queue.ping()).await {
        Ok(Ok(())) => Ok(Json(HealthBody { status: "ok" })),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            let error = format!("the database did not answer within {} s", PING_MAX.as_secs());
            Err(ApiError::unavailable("database_unavailable", error))
        }
    }
}

/// What happened and how much there is, for Prometheus
///
/// Counters are this process's own; gauges of the database are a few seconds old at most. A token for some namespaces
/// gets to see those only.
#[utoipa::path(
    get, path = "/metrics", tag = "server", security(("token" = ["read"])),
    responses((status = 200, description = "Prometheus's text format.", body = String, content_type = "text/plain"))
)]
async fn metrics(State(app): State<App>, Extension(caller): Extension<Caller>) -> impl IntoResponse {
    let text = app.metrics.render(|namespace| caller.covers(namespace)).await;
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
