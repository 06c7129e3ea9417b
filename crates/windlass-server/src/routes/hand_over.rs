//! `PUT /schedules/{schedule_id}/runner`: who runs a schedule.

use axum::Json;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{ScheduleRunner, ScheduleView};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{InNamespace, JsonBody, ScheduleId};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(hand_over))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct RunnerRequest {
    /// `windlass`, or on PostgreSQL `pg_cron`, where that extension is installed.
    runner: ScheduleRunner,
}

/// Say who runs a schedule
///
/// Every server and node of Windlass, or pg_cron within the database. What pg_cron would run at other times – expressions
/// with seconds or of a kind that it does not know, and time zones other than its own – is refused.
#[utoipa::path(
    put, path = "/schedules/{schedule_id}/runner", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Its id.")),
    request_body = RunnerRequest,
    responses(
        (status = 200, description = "It is run so from now on.", body = ScheduleView),
        (status = 404, description = "No such schedule."),
    )
)]
async fn hand_over(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
    JsonBody(request, _room): JsonBody<RunnerRequest>,
) -> Result<Json<ScheduleView>, ApiError> {
    match request.runner {
        ScheduleRunner::PgCron => queue.hand_to_pg_cron(&id).await?,
        ScheduleRunner::Windlass => queue.take_from_pg_cron(&id).await?,
    }
    Ok(Json(queue.schedule(&id).await?))
}
