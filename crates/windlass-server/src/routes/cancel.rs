//! `POST /events/{id}/cancel`, `POST /events/cancel`: call off what has not begun.

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::CancelFilter;

use super::list::List;
use super::names::Names;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, EventId, InNamespace, JsonBody};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(cancel))
}

/// What may take a while.
pub(super) fn of_many() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(cancel_events))
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

/// Which waiting deliveries: those that match everything given.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "types": "order.*", "tags": "email" }))]
struct CancelRequest {
    /// Of these events.
    #[schema(value_type = Option<Vec<i64>>)]
    event_ids: Option<List<i64>>,
    /// Of these types, each exact or a prefix ending in `*`.
    types: Option<Names>,
    /// With any of these tags.
    tags: Option<Names>,
    /// Of this subscription.
    subscription: Option<String>,
    /// Really all of them. Needed where nothing else is given.
    #[serde(default)]
    all: bool,
}

impl TryFrom<CancelRequest> for CancelFilter {
    type Error = ApiError;

    fn try_from(request: CancelRequest) -> Result<CancelFilter, ApiError> {
        let CancelRequest { event_ids, types, tags, subscription, all } = request;
        let event_ids = event_ids.map_or_else(Vec::new, |ids| ids.0);
        let (types, tags) = (types.unwrap_or_default().into_list(), tags.unwrap_or_default().into_list());
        let nothing = event_ids.is_empty() && types.is_empty() && tags.is_empty() && subscription.is_none();
        if nothing != all {
            let problem = if all { "makes no sense with a filter" } else { "must be true where no filter is given" };
            return Err(ApiError::invalid("all", problem));
        }
        Ok(CancelFilter { event_ids, types, tags, subscription, up_to: None })
    }
}

/// How many were called off.
#[derive(Serialize, ToSchema)]
struct CancelledManyBody {
    /// How many deliveries were waiting and no longer are.
    cancelled: usize,
}

/// Call events off
///
/// All deliveries that match and wait; what a worker holds goes on.
#[utoipa::path(
    post, path = "/events/cancel", tag = "operate", security(("token" = ["admin"])),
    request_body = CancelRequest,
    responses(
        (status = 200, description = "Called off.", body = CancelledManyBody),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn cancel_events(
    InNamespace(queue): InNamespace,
    JsonBody(request, _room): JsonBody<CancelRequest>,
) -> Result<Json<CancelledManyBody>, ApiError> {
    Ok(Json(CancelledManyBody { cancelled: queue.cancel_all(request.try_into()?).await? }))
}
