//! `POST /events/{id}/reset`: take an event from its worker by hand.

use axum::Json;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::MAIN;

use super::event::EventBody;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, EventId, InNamespace};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(reset))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ResetArgs {
    /// Why; it is kept in the log. `manual` if absent.
    #[param(example = "worker_timeout")]
    reason: Option<String>,
    /// `main` if absent.
    subscription: Option<String>,
}

/// Take an event from its worker
///
/// It is PENDING again at once, and the worker can no longer report on it. One that is FAILED or
/// EXPIRED is redriven.
#[utoipa::path(
    post, path = "/events/{id}/reset", tag = "operate", security(("token" = ["admin"])),
    params(("id" = i64, Path, description = "The event."), ResetArgs),
    responses(
        (status = 200, description = "The event as it now stands.", body = EventBody),
        (status = 404, description = "No such event or subscription."),
        (status = 409, description = "It is neither held nor dead; nothing was changed."),
    )
)]
async fn reset(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    Args(args): Args<ResetArgs>,
) -> Result<Json<EventBody>, ApiError> {
    let subscription = args.subscription.as_deref().unwrap_or(MAIN);
    queue.reset(id, subscription, args.reason.as_deref().unwrap_or("manual")).await?;
    Ok(Json(EventBody::seen_by(subscription, queue.get(id).await?)?))
}
