//! `POST /events/{id}/cancel`: call off what has not begun.

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, EventId, InNamespace};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(cancel))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CancelArgs {
    /// Only the delivery to this subscription; all if absent.
    subscription: Option<String>,
}

/// What was called off.
#[derive(Serialize, ToSchema)]
struct CancelledBody {
    event_id: i64,
    /// How many deliveries were waiting and no longer are.
    cancelled: usize,
}

/// Call an event off
///
/// Works while it is waiting; what a worker holds goes on.
#[utoipa::path(
    post, path = "/events/{id}/cancel", tag = "operate", security(("token" = ["admin"])),
    params(("id" = i64, Path, description = "The event."), CancelArgs),
    responses(
        (status = 200, description = "Called off.", body = CancelledBody),
        (status = 404, description = "No such event or subscription."),
        (status = 409, description = "It is not waiting; nothing was changed."),
    )
)]
async fn cancel(
    InNamespace(queue): InNamespace,
    EventId(event_id): EventId,
    Args(args): Args<CancelArgs>,
) -> Result<Json<CancelledBody>, ApiError> {
    let cancelled = queue.cancel(event_id, args.subscription.as_deref()).await?;
    Ok(Json(CancelledBody { event_id, cancelled }))
}
