//! `PUT /schedules/{schedule_id}/runner`: lets Windlass or pg_cron run a schedule.

use axum::Json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{ScheduleRunner, ScheduleView};
use windlass_api::RunnerRequest;

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{InNamespace, JsonBody, ScheduleId};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(set_schedule_runner))
}

/// Set the runner of a schedule
///
/// Either the servers and nodes of Windlass, or pg_cron within the database. Schedules that pg_cron would run at other
/// times are refused: expressions with seconds or with syntax unknown to pg_cron, and time zones other than its own.
#[utoipa::path(
    put, path = "/schedules/{schedule_id}/runner", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Id of the schedule.")),
    request_body = RunnerRequest,
    responses(
        (status = 200, description = "Changed.", body = ScheduleView),
        (status = 404, description = "No such schedule."),
    )
)]
async fn set_schedule_runner(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
    JsonBody(request, _memory): JsonBody<RunnerRequest>,
) -> Result<Json<ScheduleView>, ApiError> {
    match request.runner {
        ScheduleRunner::PgCron => queue.hand_to_pg_cron(&id).await?,
        ScheduleRunner::Windlass => queue.take_from_pg_cron(&id).await?,
    }
    Ok(Json(queue.schedule(&id).await?))
}
