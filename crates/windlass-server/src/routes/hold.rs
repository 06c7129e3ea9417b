//! `POST /events/{id}/start` and `heartbeat`: a worker speaks up while it holds an event.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Action, LeasedEvent, MAIN};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{EventId, InNamespace, JsonBody};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(start)).routes(routes!(heartbeat))
}

/// Who says that it holds an event.
pub(super) struct Holder {
    pub event_id: i64,
    pub worker_id: Option<String>,
    pub lease: Option<String>,
    pub subscription: Option<String>,
}

impl Holder {
    pub fn held(&self) -> Result<LeasedEvent, ApiError> {
        let held = match (&self.lease, &self.worker_id) {
            (Some(lease), _) => LeasedEvent::by_lease(self.event_id, lease.parse()?),
            (None, Some(worker_id)) => LeasedEvent::by_worker(self.event_id, worker_id),
            (None, None) => {
                return Err(ApiError::invalid("worker_id", "is required: who held the event; or its lease"));
            }
        };
        Ok(held.of_subscription(self.subscription.as_deref().unwrap_or(MAIN)))
    }

    /// It does not.
    pub fn lost(&self) -> ApiError {
        let event_id = self.event_id;
        let error = match (&self.lease, &self.worker_id) {
            (None, Some(worker)) => format!("worker '{}' does not hold event {event_id}", worker.escape_debug()),
            _ => format!("the lease on event {event_id} is not the current one"),
        };
        ApiError::new(StatusCode::CONFLICT, "lost", format!("{error}; nothing was changed"))
    }
}

/// Who holds it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742" }))]
pub(super) struct HolderRequest {
    /// Who holds it. Needed unless `lease` is given.
    pub worker_id: Option<String>,
    /// The claim's token, for an exact guard.
    pub lease: Option<String>,
    /// `main` if absent.
    pub subscription: Option<String>,
}

/// The log entry.
#[derive(Serialize, ToSchema)]
struct StartedBody {
    event_id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// STARTED.
    action: Action,
    created_at: DateTime<Utc>,
}

/// Say that work began
///
/// The log shows it; a worker that picks events and never starts them is listed as an orphan's.
#[utoipa::path(
    post, path = "/events/{id}/start", tag = "consume", security(("token" = ["consume"])),
    params(("id" = i64, Path, description = "The event.")),
    request_body = HolderRequest,
    responses(
        (status = 200, description = "On record.", body = StartedBody),
        (status = 404, description = "No such event."),
        (status = 409, description = "The worker does not hold the event; nothing was changed."),
    )
)]
async fn start(
    InNamespace(queue): InNamespace,
    EventId(event_id): EventId,
    JsonBody(request, _room): JsonBody<HolderRequest>,
) -> Result<Json<StartedBody>, ApiError> {
    let HolderRequest { worker_id, lease, subscription } = request;
    let holder = Holder { event_id, worker_id, lease, subscription };
    let created_at = queue.start(holder.held()?).await?.ok_or_else(|| holder.lost())?;
    Ok(Json(StartedBody { event_id, worker_id: holder.worker_id, action: Action::Started, created_at }))
}

/// Who holds it, and for how much longer.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742", "lease_ms": 60000 }))]
struct HeartbeatRequest {
    /// Who holds it. Needed unless `lease` is given.
    worker_id: Option<String>,
    /// The claim's token, for an exact guard.
    lease: Option<String>,
    /// `main` if absent.
    subscription: Option<String>,
    /// For how long from now; the policy's lease if absent.
    lease_ms: Option<u64>,
}

/// The new end.
#[derive(Serialize, ToSchema)]
struct HeldBody {
    event_id: i64,
    /// When others may have it, unless another heartbeat comes before.
    lease_expires_at: DateTime<Utc>,
}

/// Hold the event for longer
#[utoipa::path(
    post, path = "/events/{id}/heartbeat", tag = "consume", security(("token" = ["consume"])),
    params(("id" = i64, Path, description = "The event.")),
    request_body = HeartbeatRequest,
    responses(
        (status = 200, description = "Held for longer.", body = HeldBody),
        (status = 404, description = "No such event."),
        (status = 409, description = "The worker does not hold the event; nothing was changed."),
    )
)]
async fn heartbeat(
    InNamespace(queue): InNamespace,
    EventId(event_id): EventId,
    JsonBody(request, _room): JsonBody<HeartbeatRequest>,
) -> Result<Json<HeldBody>, ApiError> {
    let HeartbeatRequest { worker_id, lease, subscription, lease_ms } = request;
    let holder = Holder { event_id, worker_id, lease, subscription };
    let extended = queue.extend(holder.held()?, lease_ms.map(Duration::from_millis)).await?;
    let lease_expires_at = extended.ok_or_else(|| holder.lost())?;
    Ok(Json(HeldBody { event_id, lease_expires_at }))
}
