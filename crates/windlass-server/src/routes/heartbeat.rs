//! `POST /events/{id}/start` and `heartbeat`: signals from a worker that holds an event.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Action, LeasedEvent, MAIN};
use windlass_api::{HeartbeatRequest, LeaseBody, LeaseHolderRequest, StartedBody};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{EventId, InNamespace, JsonBody};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(start)).routes(routes!(heartbeat))
}

/// The worker or lease token that a request claims to hold an event with.
pub(super) struct LeaseHolder {
    pub event_id: i64,
    pub worker_id: Option<String>,
    pub lease: Option<String>,
    pub subscription: Option<String>,
}

impl LeaseHolder {
    pub fn leased_event(&self) -> Result<LeasedEvent, ApiError> {
        let leased = match (&self.lease, &self.worker_id) {
            (Some(lease), _) => LeasedEvent::by_lease(self.event_id, lease.parse()?),
            (None, Some(worker_id)) => LeasedEvent::by_worker(self.event_id, worker_id),
            (None, None) => {
                return Err(ApiError::invalid("worker_id", "is required unless lease is given"));
            }
        };
        Ok(leased.of_subscription(self.subscription.as_deref().unwrap_or(MAIN)))
    }

    /// 409: the lease is not the current one, or belongs to another worker.
    pub fn lost_error(&self) -> ApiError {
        let event_id = self.event_id;
        let error = match (&self.lease, &self.worker_id) {
            (None, Some(worker)) => format!("worker '{}' does not hold event {event_id}", worker.escape_debug()),
            _ => format!("the lease on event {event_id} is not the current one"),
        };
        ApiError::new(StatusCode::CONFLICT, "lost", format!("{error}; nothing was changed"))
    }
}

/// Report the start of work
///
/// The log shows it. `/stuck` lists events that were picked and never started as orphans.
#[utoipa::path(
    post, path = "/events/{id}/start", tag = "consume", security(("token" = ["consume"])),
    params(("id" = i64, Path, description = "The event.")),
    request_body = LeaseHolderRequest,
    responses(
        (status = 200, description = "On record.", body = StartedBody),
        (status = 404, description = "No such event."),
        (status = 409, description = "The worker does not hold the event; nothing was changed."),
    )
)]
async fn start(
    InNamespace(queue): InNamespace,
    EventId(event_id): EventId,
    JsonBody(request, _memory): JsonBody<LeaseHolderRequest>,
) -> Result<Json<StartedBody>, ApiError> {
    let LeaseHolderRequest { worker_id, lease, subscription } = request;
    let holder = LeaseHolder { event_id, worker_id, lease, subscription };
    let created_at = queue.start(holder.leased_event()?).await?.ok_or_else(|| holder.lost_error())?;
    Ok(Json(StartedBody { event_id, worker_id: holder.worker_id, action: Action::Started, created_at }))
}

/// Renew the lease
#[utoipa::path(
    post, path = "/events/{id}/heartbeat", tag = "consume", security(("token" = ["consume"])),
    params(("id" = i64, Path, description = "The event.")),
    request_body = HeartbeatRequest,
    responses(
        (status = 200, description = "Renewed.", body = LeaseBody),
        (status = 404, description = "No such event."),
        (status = 409, description = "The worker does not hold the event; nothing was changed."),
    )
)]
async fn heartbeat(
    InNamespace(queue): InNamespace,
    EventId(event_id): EventId,
    JsonBody(request, _memory): JsonBody<HeartbeatRequest>,
) -> Result<Json<LeaseBody>, ApiError> {
    let HeartbeatRequest { worker_id, lease, subscription, lease_ms } = request;
    let holder = LeaseHolder { event_id, worker_id, lease, subscription };
    let extended = queue.extend(holder.leased_event()?, lease_ms.map(Duration::from_millis)).await?;
    let lease_expires_at = extended.ok_or_else(|| holder.lost_error())?;
    Ok(Json(LeaseBody { event_id, lease_expires_at }))
}
