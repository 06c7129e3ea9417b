//! `POST /events/{id}/cancel`, `POST /events/cancel`: cancel pending deliveries.

use axum::Json;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::CancelFilter;
use windlass_api::{CancelRequest, CancelledBody, CancelledManyBody};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{EventId, InNamespace, JsonBody, QueryArgs};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(cancel))
}

/// The route that cancels many events. It needs a longer time limit.
pub(super) fn bulk_routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(cancel_events))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CancelArgs {
    /// Only the delivery to this subscription. Default: all.
    subscription: Option<String>,
}

/// Cancel an event
///
/// Cancels its pending deliveries. Deliveries held by a worker are not affected.
#[utoipa::path(
    post, path = "/events/{id}/cancel", tag = "operate", security(("token" = ["admin"])),
    params(("id" = i64, Path, description = "The event."), CancelArgs),
    responses(
        (status = 200, description = "Canceled.", body = CancelledBody),
        (status = 404, description = "No such event or subscription."),
        (status = 409, description = "The event is not pending; nothing was changed."),
    )
)]
async fn cancel(
    InNamespace(queue): InNamespace,
    EventId(event_id): EventId,
    QueryArgs(args): QueryArgs<CancelArgs>,
) -> Result<Json<CancelledBody>, ApiError> {
    let cancelled = queue.cancel(event_id, args.subscription.as_deref()).await?;
    Ok(Json(CancelledBody { event_id, cancelled }))
}

fn cancel_filter(request: CancelRequest) -> Result<CancelFilter, ApiError> {
    let CancelRequest { event_ids, types, tags, subscription, all } = request;
    let event_ids = event_ids.map_or_else(Vec::new, |ids| ids.0);
    let (types, tags) = (types.unwrap_or_default().into_list(), tags.unwrap_or_default().into_list());
    let unfiltered = event_ids.is_empty() && types.is_empty() && tags.is_empty() && subscription.is_none();
    if unfiltered != all {
        let problem = if all { "is not allowed with a filter" } else { "must be true if no filter is given" };
        return Err(ApiError::invalid("all", problem));
    }
    Ok(CancelFilter { event_ids, types, tags, subscription, up_to: None })
}

/// Cancel events
///
/// Cancels all matching pending deliveries. Deliveries held by a worker are not affected.
#[utoipa::path(
    post, path = "/events/cancel", tag = "operate", security(("token" = ["admin"])),
    request_body = CancelRequest,
    responses(
        (status = 200, description = "Canceled.", body = CancelledManyBody),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn cancel_events(
    InNamespace(queue): InNamespace,
    JsonBody(request, _memory): JsonBody<CancelRequest>,
) -> Result<Json<CancelledManyBody>, ApiError> {
    Ok(Json(CancelledManyBody { cancelled: queue.cancel_all(cancel_filter(request)?).await? }))
}
