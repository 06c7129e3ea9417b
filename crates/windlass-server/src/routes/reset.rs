//! `POST /events/{id}/reset`: take an event from its worker.

use axum::Json;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::MAIN;
use windlass_api::EventBody;

use super::event_body;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{EventId, InNamespace, QueryArgs};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(reset))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ResetArgs {
    /// Reason for the log. Default: `manual`.
    #[param(example = "worker_timeout")]
    reason: Option<String>,
    /// Default: `main`.
    subscription: Option<String>,
}

/// Reset an event
///
/// Takes the event from its worker: it becomes PENDING immediately, and the worker can no longer report on it. A FAILED
/// or EXPIRED event is redriven.
#[utoipa::path(
    post, path = "/events/{id}/reset", tag = "operate", security(("token" = ["admin"])),
    params(("id" = i64, Path, description = "The event."), ResetArgs),
    responses(
        (status = 200, description = "The event in its new state.", body = EventBody),
        (status = 404, description = "No such event or subscription."),
        (status = 409, description = "The event is neither held by a worker nor a dead letter; nothing was changed."),
    )
)]
async fn reset(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    QueryArgs(args): QueryArgs<ResetArgs>,
) -> Result<Json<EventBody>, ApiError> {
    let subscription = args.subscription.as_deref().unwrap_or(MAIN);
    queue.reset(id, subscription, args.reason.as_deref().unwrap_or("manual")).await?;
    Ok(Json(event_body::for_subscription(subscription, queue.get(id).await?)?))
}
