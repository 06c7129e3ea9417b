//! `GET /events/{id}/explain`: explain why an event is not running.

use axum::Json;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Explanation, MAIN};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{EventId, InNamespace, QueryArgs};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(explain_event))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExplainArgs {
    /// The subscription of the delivery. Default: `main`.
    subscription: Option<String>,
}

/// Explain an event
///
/// Why it is not running: it waits for its group, its time or a worker; something is paused; or it has finished.
#[utoipa::path(
    get, path = "/events/{id}/explain", tag = "inspect", security(("token" = ["read"])),
    params(("id" = i64, Path, description = "The event."), ExplainArgs),
    responses(
        (status = 200, description = "The explanation.", body = Explanation),
        (status = 404, description = "No such event or subscription."),
    )
)]
async fn explain_event(
    InNamespace(queue): InNamespace,
    EventId(event_id): EventId,
    QueryArgs(args): QueryArgs<ExplainArgs>,
) -> Result<Json<Explanation>, ApiError> {
    Ok(Json(queue.explain(event_id, args.subscription.as_deref().unwrap_or(MAIN)).await?))
}
