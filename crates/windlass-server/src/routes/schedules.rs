//! `/schedules`: cron rules that publish events.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{MissedPolicy, NewEvent, NewSchedule, ScheduleFilter, ScheduleFire, ScheduleView};

use super::event::{EventBody, fitting};
use super::inspect::limit;
use super::names::Names;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, InNamespace, JsonBody, ScheduleId, known};

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

/// A schedule to create, or what one is to be replaced by.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({
    "name": "daily report", "cron": "0 6 * * MON-FRI", "timezone": "Europe/Berlin", "type": "report.due",
    "payload": { "day": "{{tick.date}}" }
}))]
struct ScheduleRequest {
    /// Its name, unique in the namespace.
    name: String,
    /// When it ticks: minute, hour, day of the month, month and day of the week; with six fields, the second first.
    cron: String,
    /// The zone of the IANA database that the expression goes by; `UTC` if absent.
    timezone: Option<String>,
    /// The type of its events.
    #[serde(rename = "type")]
    event_type: String,
    /// Any JSON; `null` if absent. In it and in the title, `{{tick.date}}` and the like stand for values of the tick.
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// A line for people.
    title: Option<String>,
    /// A few sentences for people.
    description: Option<String>,
    /// What consumers can ask for.
    #[serde(default)]
    tags: Names,
    /// Events of a group are handled one at a time, in order.
    group_id: Option<String>,
    /// Higher goes first.
    #[serde(default)]
    priority: i16,
    /// Instead of the policy's.
    max_retries: Option<u32>,
    /// A JSON object that travels with its events.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// Its events are never started later than this after they were published; they end EXPIRED instead.
    expires_in_ms: Option<u64>,
    /// What becomes of ticks that were missed; `once` if absent.
    #[serde(default)]
    missed: MissedPolicy,
    /// Whether it fires; it does if absent.
    active: Option<bool>,
}

impl ScheduleRequest {
    fn into_schedule(self) -> Result<NewSchedule, ApiError> {
        let mut event = NewEvent::new(self.event_type).tags_text(self.tags.into_text()).priority(self.priority);
        if let Some(payload) = self.payload {
            event = event.payload_raw(payload);
        }
        if let Some(title) = self.title {
            event = event.title(title);
        }
        if let Some(description) = self.description {
            event = event.description(description);
        }
        if let Some(group_id) = self.group_id {
            event = event.group(group_id);
        }
        if let Some(max_retries) = self.max_retries {
            event = event.max_retries(max_retries);
        }
        if let Some(metadata) = self.metadata {
            event = event.metadata(&metadata)?;
        }
        if let Some(expires_in_ms) = self.expires_in_ms {
            event = event.expires_in(Duration::from_millis(expires_in_ms));
        }
        let mut new = NewSchedule::new(self.name, self.cron, event).missed(self.missed);
        if let Some(timezone) = self.timezone {
            new = new.timezone(timezone);
        }
        Ok(if self.active == Some(false) { new.paused() } else { new })
    }
}

/// Create a schedule
///
/// Each tick of its expression publishes an event, once, however many servers and nodes there are.
#[utoipa::path(
    post, path = "/schedules", tag = "schedules", security(("token" = ["admin"])),
    request_body = ScheduleRequest,
    responses(
        (status = 201, description = "Created.", body = ScheduleView),
        (status = 404, description = "No such namespace."),
        (status = 409, description = "There is one of that name."),
    )
)]
async fn add_schedule(
    InNamespace(queue): InNamespace,
    JsonBody(request, _room): JsonBody<ScheduleRequest>,
) -> Result<(StatusCode, Json<ScheduleView>), ApiError> {
    Ok((StatusCode::CREATED, Json(queue.add_schedule(request.into_schedule()?).await?)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListArgs {
    /// Only the one of this name.
    name: Option<String>,
    /// Only those that are active, or are not.
    active: Option<bool>,
    /// Only those whose events are of this type.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    event_type: Option<String>,
    /// How many; 20 if absent, at most 1000.
    limit: Option<usize>,
    /// How many to pass over; 0 if absent.
    offset: Option<usize>,
}

/// A part of the list of schedules.
#[derive(Serialize, ToSchema)]
struct SchedulesBody {
    /// By name. Fewer than were asked for where their payloads are very large.
    schedules: Vec<ScheduleView>,
    /// How many match in all.
    total: u64,
    limit: usize,
    offset: usize,
}

/// List schedules
#[utoipa::path(
    get, path = "/schedules", tag = "schedules", security(("token" = ["read"])),
    params(ListArgs),
    responses(
        (status = 200, description = "A part of the list.", body = SchedulesBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn list_schedules(
    InNamespace(queue): InNamespace,
    Args(args): Args<ListArgs>,
) -> Result<Json<SchedulesBody>, ApiError> {
    let (limit, offset) = (limit(args.limit, queue.limits())?, args.offset.unwrap_or(0));
    let ListArgs { name, active, event_type, .. } = args;
    let page = queue.schedules(ScheduleFilter { name, active, event_type, limit, offset }).await?;
    let mut schedules = page.items;
    schedules.truncate(fitting(schedules.iter().map(|view| &*view.payload)));
    Ok(Json(SchedulesBody { schedules, total: page.total, limit, offset }))
}

/// Show a schedule
#[utoipa::path(
    get, path = "/schedules/{schedule_id}", tag = "schedules", security(("token" = ["read"])),
    params(("schedule_id" = String, Path, description = "Its id.")),
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
/// All that can be said of it. It goes on with the next tick from now on.
#[utoipa::path(
    put, path = "/schedules/{schedule_id}", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Its id.")),
    request_body = ScheduleRequest,
    responses(
        (status = 200, description = "Replaced.", body = ScheduleView),
        (status = 404, description = "No such schedule."),
        (status = 409, description = "There is another of that name."),
    )
)]
async fn replace_schedule(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
    JsonBody(request, _room): JsonBody<ScheduleRequest>,
) -> Result<Json<ScheduleView>, ApiError> {
    Ok(Json(queue.put_schedule(&id, request.into_schedule()?).await?))
}

/// Remove a schedule
///
/// Its events stay.
#[utoipa::path(
    delete, path = "/schedules/{schedule_id}", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Its id.")),
    responses(
        (status = 204, description = "Removed."),
        (status = 404, description = "No such schedule."),
    )
)]
async fn remove_schedule(InNamespace(queue): InNamespace, ScheduleId(id): ScheduleId) -> Result<StatusCode, ApiError> {
    queue.remove_schedule(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Let a schedule fire no more
///
/// Until it is resumed.
#[utoipa::path(
    post, path = "/schedules/{schedule_id}/pause", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Its id.")),
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

/// Let a schedule fire again
///
/// From its next tick on; what came while it was paused was not missed.
#[utoipa::path(
    post, path = "/schedules/{schedule_id}/resume", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Its id.")),
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
/// Publishes its event, whether or not it is active. Its ticks come as before.
#[utoipa::path(
    post, path = "/schedules/{schedule_id}/run", tag = "schedules", security(("token" = ["admin"])),
    params(("schedule_id" = String, Path, description = "Its id.")),
    responses(
        (status = 201, description = "Published.", body = EventBody),
        (status = 404, description = "No such schedule."),
        (status = 413, description = "Its payload is larger than is allowed by now."),
    )
)]
async fn run_schedule(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
) -> Result<(StatusCode, Json<EventBody>), ApiError> {
    let published = queue.run_schedule(&id).await?;
    Ok((StatusCode::CREATED, Json(EventBody::published(published.event, published.max_retries))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FiresArgs {
    /// Only earlier ticks than this instant: the last `tick_at` of the page before.
    before: Option<DateTime<Utc>>,
    /// How many; 20 if absent, at most 1000.
    limit: Option<usize>,
}

/// Ticks that are on record.
#[derive(Serialize, ToSchema)]
struct FiresBody {
    /// The latest first.
    fires: Vec<ScheduleFire>,
}

/// List what a schedule fired
///
/// In the last 30 days.
#[utoipa::path(
    get, path = "/schedules/{schedule_id}/fires", tag = "schedules", security(("token" = ["read"])),
    params(("schedule_id" = String, Path, description = "Its id."), FiresArgs),
    responses(
        (status = 200, description = "Its ticks.", body = FiresBody),
        (status = 404, description = "No such schedule."),
    )
)]
async fn list_fires(
    InNamespace(queue): InNamespace,
    ScheduleId(id): ScheduleId,
    Args(args): Args<FiresArgs>,
) -> Result<Json<FiresBody>, ApiError> {
    let limit = limit(args.limit, queue.limits())?;
    Ok(Json(FiresBody { fires: queue.schedule_fires(&id, args.before.map(known), limit).await? }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PreviewArgs {
    /// The expression.
    cron: String,
    /// The zone that it goes by; `UTC` if absent.
    timezone: Option<String>,
    /// From when on; from now on if absent.
    from: Option<DateTime<Utc>>,
    /// How many; 5 if absent, at most 100.
    count: Option<usize>,
}

/// Ticks to come.
#[derive(Serialize, ToSchema)]
struct PreviewBody {
    ticks: Vec<DateTime<Utc>>,
}

/// How many ticks a preview shows unless told.
const PREVIEW_DEFAULT: usize = 5;

/// Preview a rule
///
/// When such a schedule would tick.
#[utoipa::path(
    get, path = "/schedules/preview", tag = "schedules", security(("token" = ["read"])),
    params(PreviewArgs),
    responses((status = 200, description = "Its ticks.", body = PreviewBody))
)]
async fn preview_schedule(
    InNamespace(queue): InNamespace,
    Args(args): Args<PreviewArgs>,
) -> Result<Json<PreviewBody>, ApiError> {
    let (timezone, count) = (args.timezone.as_deref().unwrap_or("UTC"), args.count.unwrap_or(PREVIEW_DEFAULT));
    Ok(Json(PreviewBody { ticks: queue.preview_schedule(&args.cron, timezone, args.from, count).await? }))
}
