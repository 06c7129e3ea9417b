//! `GET /events`, `GET /events/{id}`, `/stuck`, `/workers`, `/stats`, `/stats/maintenance`: the current state.

use std::time::Duration;

use axum::Json;
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{EventView, Limits, ListFilter, MAIN, Status};
use windlass_api::{
    EventBody, EventSummaryBody, EventsBody, MaintenanceBody, NameList, StatsBody, StuckBody, WorkersBody,
};

use super::event_body::{self, log_entry};
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{EventId, InNamespace, QueryArgs, clamp_to_epoch};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(show_event))
        .routes(routes!(list_events))
        .routes(routes!(list_stuck))
        .routes(routes!(list_workers))
        .routes(routes!(count_events))
        .routes(routes!(show_maintenance))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ShowArgs {
    /// Whether to include the log.
    #[serde(default)]
    include_logs: bool,
    /// The subscription whose delivery is shown. Default: `main`.
    subscription: Option<String>,
}

/// Show an event
///
/// Its current state and, if requested, its log.
#[utoipa::path(
    get, path = "/events/{id}", tag = "inspect", security(("token" = ["read"])),
    params(("id" = i64, Path, description = "The event."), ShowArgs),
    responses(
        (status = 200, description = "The event.", body = EventBody),
        (status = 404, description = "No such event."),
    )
)]
async fn show_event(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    QueryArgs(args): QueryArgs<ShowArgs>,
) -> Result<Json<EventBody>, ApiError> {
    let subscription = args.subscription.as_deref().unwrap_or(MAIN);
    let mut body = event_body::for_subscription(subscription, queue.get(id).await?)?;
    if args.include_logs {
        let log = queue.log(id).await?;
        body.logs = Some(log.into_iter().filter(|entry| entry.subscription == subscription).map(log_entry).collect());
    }
    Ok(Json(body))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListArgs {
    /// Only events with this status.
    #[param(value_type = Option<Status>)]
    status: Option<String>,
    /// Comma-separated. Only events with any of these tags.
    #[param(value_type = Option<String>)]
    tags: Option<NameList>,
    /// Comma-separated. Only events of these types, each exact or a prefix ending in `*`.
    #[param(value_type = Option<String>)]
    types: Option<NameList>,
    /// The subscription whose delivery is shown. Default: `main`.
    subscription: Option<String>,
    /// Page size, at most 1000. Default: 20.
    limit: Option<usize>,
    /// Number of events to skip. Default: 0.
    offset: Option<usize>,
}

fn event_summary(subscription: &str, view: EventView) -> Option<EventSummaryBody> {
    let delivery = view.delivery(subscription)?.clone();
    Some(EventSummaryBody {
        id: view.event.id,
        event_type: view.event.event_type,
        title: view.event.title,
        status: delivery.status,
        tags: view.event.tags,
        attempts: delivery.attempts,
        retry_count: delivery.retry_count,
        next_retry_at: delivery.next_retry_at,
        created_at: view.event.created_at,
        updated_at: delivery.updated_at,
    })
}

/// Default page size of lists.
const LIMIT_DEFAULT: usize = 20;

/// The page size. 0 is refused here, because the library treats it as the default.
pub(super) fn limit(given: Option<usize>, limits: &Limits) -> Result<usize, ApiError> {
    match given {
        Some(0) => Err(ApiError::invalid("limit", "must be at least 1")),
        given => Ok(given.unwrap_or(LIMIT_DEFAULT.min(limits.page_max))),
    }
}

/// List events
#[utoipa::path(
    get, path = "/events", tag = "inspect", security(("token" = ["read"])),
    params(ListArgs),
    responses(
        (status = 200, description = "A page of the list.", body = EventsBody),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn list_events(
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<ListArgs>,
) -> Result<Json<EventsBody>, ApiError> {
    let (limit, offset) = (limit(args.limit, queue.limits())?, args.offset.unwrap_or(0));
    let filter = ListFilter {
        status: args.status.as_deref().map(str::parse).transpose()?,
        types: args.types.unwrap_or_default().into_list(),
        tags: args.tags.unwrap_or_default().into_list(),
        subscription: args.subscription.clone(),
        limit,
        offset,
    };
    let page = queue.list(filter).await?;
    let subscription = args.subscription.as_deref().unwrap_or(MAIN);
    let events = page.items.into_iter().filter_map(|view| event_summary(subscription, view)).collect();
    Ok(Json(EventsBody { events, total: page.total, limit, offset }))
}

/// Default age of stuck deliveries and of silent workers, as in the API contract.
const STUCK_AFTER_DEFAULT: Duration = Duration::from_secs(30);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StuckArgs {
    /// Only events that have been held for longer than this. Default: 30000.
    older_than_ms: Option<u64>,
    /// Page size, at most 1000. Default: 20.
    limit: Option<usize>,
}

/// List stuck events
///
/// Events that have been PROCESSING for longer than the given time, including orphans.
#[utoipa::path(
    get, path = "/stuck", tag = "inspect", security(("token" = ["read"])),
    params(StuckArgs),
    responses(
        (status = 200, description = "The stuck events.", body = StuckBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn list_stuck(
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<StuckArgs>,
) -> Result<Json<StuckBody>, ApiError> {
    let older_than = args.older_than_ms.map_or(STUCK_AFTER_DEFAULT, Duration::from_millis);
    Ok(Json(StuckBody { stuck: queue.stuck(older_than, limit(args.limit, queue.limits())?).await? }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WorkersArgs {
    /// A worker that holds events and was silent for longer than this is stale. Default: 30000.
    stale_after_ms: Option<u64>,
    /// Whether to include the consumers: claim requests and their filters.
    #[serde(default)]
    include_consumers: bool,
}

/// List workers
///
/// Workers that hold events or reported on one within the last hour; and, if requested, the consumers.
#[utoipa::path(
    get, path = "/workers", tag = "inspect", security(("token" = ["read"])),
    params(WorkersArgs),
    responses(
        (status = 200, description = "The workers.", body = WorkersBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn list_workers(
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<WorkersArgs>,
) -> Result<Json<WorkersBody>, ApiError> {
    let stale_after = args.stale_after_ms.map_or(STUCK_AFTER_DEFAULT, Duration::from_millis);
    let consumers = if args.include_consumers { Some(queue.consumers().await?) } else { None };
    Ok(Json(WorkersBody { workers: queue.workers(stale_after).await?, consumers }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatsArgs {
    /// Count finished events since this time. Default: one hour ago.
    since: Option<DateTime<Utc>>,
}

/// Count events
#[utoipa::path(
    get, path = "/stats", tag = "inspect", security(("token" = ["read"])),
    params(StatsArgs),
    responses(
        (status = 200, description = "The counts.", body = StatsBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn count_events(
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<StatsArgs>,
) -> Result<Json<StatsBody>, ApiError> {
    let since = args.since.map_or_else(|| queue.clock().now() - TimeDelta::hours(1), clamp_to_epoch);
    let (namespace, paused) = (queue.namespace().to_owned(), queue.describe().await?.paused);
    Ok(Json(StatsBody { namespace, since, paused, stats: queue.stats(since).await? }))
}

/// Show maintenance tasks
///
/// The background tasks of servers and nodes: when and where each last ran, its duration and its result.
#[utoipa::path(
    get, path = "/stats/maintenance", tag = "inspect", security(("token" = ["read"])),
    responses(
        (status = 200, description = "The tasks.", body = MaintenanceBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn show_maintenance(InNamespace(queue): InNamespace) -> Result<Json<MaintenanceBody>, ApiError> {
    Ok(Json(MaintenanceBody { namespace: queue.namespace().to_owned(), tasks: queue.maintenance_tasks().await? }))
}
