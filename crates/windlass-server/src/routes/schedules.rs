//! `/schedules`: cron rules that publish events.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{NewEvent, NewSchedule, ScheduleFilter, ScheduleView};
use windlass_api::{EventBody, FiresBody, PreviewBody, ScheduleRequest, SchedulesBody};

use super::event_body::{self, count_fitting};
use super::inspect::limit;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{InNamespace, JsonBody, QueryArgs, ScheduleId, clamp_to_epoch};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_schedules, add_schedule))
        .routes(routes!(preview_schedule))
        .routes(routes!(show_schedule, replace_schedule, remove_schedule))
        .routes(routes!(pause_schedule))
        .routes(routes!(resume_schedule))
        .routes(routes!(run_schedule))
        .routes(routes!(list_fires))
}

fn new_schedule(request: ScheduleRequest) -> Result<NewSchedule, ApiError> {
    let mut event = NewEvent::new(request.event_type).tags_text(request.tags.into_text()).priority(request.priority);
    if let Some(payload) = request.payload {
        event = event.payload_raw(payload);
    }
    if let Some(title) = request.title {
        event = event.title(title);
    }
    if let Some(description) = request.description {
        event = event.description(description);
    }
    if let Some(group_id) = request.group_id {
        event = event.group(group_id);
    }
    if let Some(max_retries) = request.max_retries {
        event = event.max_retries(max_retries);
    }
    if let Some(metadata) = request.metadata {
        event = event.metadata(&metadata)?;
    }
    if let Some(expires_in_ms) = request.expires_in_ms {
        event = event.expires_in(Duration::from_millis(expires_in_ms));
    }
    let mut new = NewSchedule::new(request.name, request.cron, event).missed(request.missed);
    if let Some(timezone) = request.timezone {
        new = new.timezone(timezone);
    }
    Ok(if request.active == Some(false) { new.paused() } else { new })
}

/// Create a schedule
///
/// Each tick of the expression publishes one event, regardless of the number of servers and nodes.
#[utoipa::path(
    post, path = "/schedules", tag = "schedules", security(("token" = ["admin"])),
    request_body = ScheduleRequest,
    responses(
        (status = 201, description = "Created.", body = ScheduleView),
        (status = 404, description = "No such namespace."),
        (status = 409, description = "The name exists already."),
    )
)]
async fn add_schedule(
    InNamespace(queue): InNamespace,
    JsonBody(request, _memory): JsonBody<ScheduleRequest>,
) -> Result<(StatusCode, Json<ScheduleView>), ApiError> {
    Ok((StatusCode::CREATED, Json(queue.add_schedule(new_schedule(request)?).await?)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListArgs {
    /// Only the schedule with this name.
    name: Option<String>,
    /// Only active schedules, or only paused ones.
    active: Option<bool>,
    /// Only schedules that publish events of this type.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    event_type: Option<String>,
    /// Page size, at most 1000. Default: 20.
    limit: Option<usize>,
    /// Number of schedules to skip. Default: 0.
    offset: Option<usize>,
}

/// List schedules
#[utoipa::path(
    get, path = "/schedules", tag = "schedules", security(("token" = ["read"])),
    params(ListArgs),
    responses(
        (status = 200, description = "A page of the list.", body = SchedulesBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn list_schedules(
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<ListArgs>,
) -> Result<Json<SchedulesBody>, ApiError> {
    let (limit, offset) = (limit(args.limit, queue.limits())?, args.offset.unwrap_or(0));
    let ListArgs { name, active, event_type, .. } = args;
    let page = queue.schedules(ScheduleFilter { name, active, event_type, limit, offset }).await?;
    let mut schedules = page.items;
    schedules.truncate(count_fitting(schedules.iter().map(|view| &*view.payload)));
    Ok(Json(SchedulesBody { schedules, total: page.total, limit, offset }))
}

/// Show a schedule
#[utoipa::path(
    get, path = "/schedules/{schedule_id}", tag = "schedules", security(("token" = ["read"])),
    params(("schedule_id" = String, Path, description = "Id of the schedule.")),
    responses(
        (status = 200, description = "The schedule.", body = ScheduleView),
        (status = 404, description = "No such schedule."),
    )
)]
async fn show_schedule(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
) -> Result<Json<ScheduleView>, ApiError> {
    Ok(Json(queue.schedule(&id).await?))
}

/// Replace a schedule
///
/// Replaces all properties. The schedule continues with its next tick.
#[utoipa::path(
    put, path = "/schedules/{schedule_id}", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Id of the schedule.")),
    request_body = ScheduleRequest,
    responses(
        (status = 200, description = "Replaced.", body = ScheduleView),
        (status = 404, description = "No such schedule."),
        (status = 409, description = "Another schedule has this name."),
    )
)]
async fn replace_schedule(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
    JsonBody(request, _memory): JsonBody<ScheduleRequest>,
) -> Result<Json<ScheduleView>, ApiError> {
    Ok(Json(queue.put_schedule(&id, new_schedule(request)?).await?))
}

/// Remove a schedule
///
/// The events that it published stay.
#[utoipa::path(
    delete, path = "/schedules/{schedule_id}", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Id of the schedule.")),
    responses(
        (status = 204, description = "Removed."),
        (status = 404, description = "No such schedule."),
    )
)]
async fn remove_schedule(InNamespace(queue): InNamespace, ScheduleId(id): ScheduleId) -> Result<StatusCode, ApiError> {
    queue.remove_schedule(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a schedule
///
/// It does not fire until it is resumed.
#[utoipa::path(
    post, path = "/schedules/{schedule_id}/pause", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Id of the schedule.")),
    responses(
        (status = 200, description = "Paused.", body = ScheduleView),
        (status = 404, description = "No such schedule."),
    )
)]
async fn pause_schedule(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
) -> Result<Json<ScheduleView>, ApiError> {
    Ok(Json(queue.pause_schedule(&id).await?))
}

/// Resume a schedule
///
/// It continues with its next tick. Ticks during the pause do not count as missed.
#[utoipa::path(
    post, path = "/schedules/{schedule_id}/resume", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Id of the schedule.")),
    responses(
        (status = 200, description = "Resumed.", body = ScheduleView),
        (status = 404, description = "No such schedule."),
    )
)]
async fn resume_schedule(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
) -> Result<Json<ScheduleView>, ApiError> {
    Ok(Json(queue.resume_schedule(&id).await?))
}

/// Run a schedule now
///
/// Publishes its event, even if the schedule is paused. Its ticks do not change.
#[utoipa::path(
    post, path = "/schedules/{schedule_id}/run", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Id of the schedule.")),
    responses(
        (status = 201, description = "Published.", body = EventBody),
        (status = 404, description = "No such schedule."),
        (status = 413, description = "The payload is larger than the current limit."),
    )
)]
async fn run_schedule(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
) -> Result<(StatusCode, Json<EventBody>), ApiError> {
    let published = queue.run_schedule(&id).await?;
    Ok((StatusCode::CREATED, Json(event_body::published(published.event, published.max_retries))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FiresArgs {
    /// Only ticks before this time: the last `tick_at` of the previous page.
    before: Option<DateTime<Utc>>,
    /// Page size, at most 1000. Default: 20.
    limit: Option<usize>,
}

/// List the fired ticks of a schedule
///
/// Of the last seven days.
#[utoipa::path(
    get, path = "/schedules/{schedule_id}/fires", tag = "schedules", security(("token" = ["read"])),
    params(("schedule_id" = String, Path, description = "Id of the schedule."), FiresArgs),
    responses(
        (status = 200, description = "The ticks.", body = FiresBody),
        (status = 404, description = "No such schedule."),
    )
)]
async fn list_fires(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
    QueryArgs(args): QueryArgs<FiresArgs>,
) -> Result<Json<FiresBody>, ApiError> {
    let limit = limit(args.limit, queue.limits())?;
    Ok(Json(FiresBody { fires: queue.schedule_fires(&id, args.before.map(clamp_to_epoch), limit).await? }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PreviewArgs {
    /// Cron expression.
    cron: String,
    /// IANA time zone. Default: `UTC`.
    timezone: Option<String>,
    /// Start time. Default: now.
    from: Option<DateTime<Utc>>,
    /// Number of ticks, at most 100. Default: 5.
    count: Option<usize>,
}

/// Default number of ticks in a preview.
const PREVIEW_DEFAULT: usize = 5;

/// Preview a schedule
///
/// The ticks of a cron expression.
#[utoipa::path(
    get, path = "/schedules/preview", tag = "schedules", security(("token" = ["read"])),
    params(PreviewArgs),
    responses((status = 200, description = "The ticks.", body = PreviewBody))
)]
async fn preview_schedule(
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<PreviewArgs>,
) -> Result<Json<PreviewBody>, ApiError> {
    let (timezone, count) = (args.timezone.as_deref().unwrap_or("UTC"), args.count.unwrap_or(PREVIEW_DEFAULT));
    Ok(Json(PreviewBody { ticks: queue.preview_schedule(&args.cron, timezone, args.from, count).await? }))
}
