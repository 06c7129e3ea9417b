//! `POST /events/{id}/complete`: the worker is done.

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use windlass::{Action, Attempt, Held, Queue, Report, Timestamp};

use crate::error::ApiError;
use crate::extract::{EventId, InNamespace, JsonBody};

pub(super) fn routes() -> Router<Queue> {
    Router::new().route("/events/{id}/complete", post(complete))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct CompleteRequest {
    worker_id: String,
    execution_time_ms: Option<u64>,
    status_code: Option<i32>,
}

#[derive(Serialize)]
struct CompletedBody {
    event_id: i64,
    worker_id: Option<String>,
    action: Action,
    status_code: Option<i32>,
    execution_time_ms: Option<u64>,
    created_at: Timestamp,
}

impl From<&Attempt> for CompletedBody {
    fn from(attempt: &Attempt) -> CompletedBody {
        CompletedBody {
            event_id: attempt.event_id,
            worker_id: attempt.worker_id.clone(),
            action: attempt.action,
            status_code: attempt.status_code,
            execution_time_ms: attempt.execution_time_ms,
            created_at: attempt.finished_at,
        }
    }
}

/// 200 with the log entry, the recorded one where it was reported before; 409 where the worker does
/// not hold the event.
async fn complete(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    JsonBody(request): JsonBody<CompleteRequest>,
) -> Result<Json<CompletedBody>, ApiError> {
    let mut report = Report::done();
    if let Some(ms) = request.execution_time_ms {
        report = report.execution_time_ms(ms);
    }
    if let Some(code) = request.status_code {
        report = report.status_code(code);
    }
    let finished = queue.finish(Held::by_worker(id, &request.worker_id), report).await?;
    let attempt = finished.attempt().ok_or_else(|| lost(id, &request.worker_id))?;
    Ok(Json(attempt.into()))
}

fn lost(event_id: i64, worker_id: &str) -> ApiError {
    let error = format!("worker '{worker_id}' does not hold event {event_id}; nothing was changed");
    ApiError::new(StatusCode::CONFLICT, "lost", error)
}
