//! `GET /healthz`: whether the database answers.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use windlass::Queue;

use crate::error::ApiError;

pub(super) fn routes() -> Router<Queue> {
    Router::new().route("/healthz", get(health))
}

/// A database that takes longer than this does not answer.
const PING_MAX: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct HealthBody {
    status: &'static str,
}

async fn health(State(queue): State<Queue>) -> Result<Json<HealthBody>, ApiError> {
    let unhealthy = |code, error: String| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, error);
    match tokio::time::timeout(PING_MAX, queue.ping()).await {
        Ok(Ok(())) => Ok(Json(HealthBody { status: "ok" })),
        Ok(Err(error)) => Err(unhealthy(error.code(), error.to_string())),
        Err(_) => Err(unhealthy("database_unavailable", format!("the database did not answer within {PING_MAX:?}"))),
    }
}
