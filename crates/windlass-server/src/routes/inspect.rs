//! `GET /events`, `GET /events/{id}`, `/stuck`, `/workers`, `/stats`, `/stats/maintenance`: how things stand.

use std::time::Duration;

use axum::Json;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{
    ConsumerView, EventView, Limits, ListFilter, MAIN, MaintenanceTaskView, StatRow, Status, StuckDelivery, WorkerView,
};

use super::event::EventBody;
use super::names::Names;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, EventId, InNamespace, known};

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
    /// Whether to add the whole log.
    #[serde(default)]
    include_logs: bool,
    /// Whose view; `main` if absent.
    subscription: Option<String>,
}

/// Show an event
///
/// How it stands and, if asked for, all that happened to it.
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
    Args(args): Args<ShowArgs>,
) -> Result<Json<EventBody>, ApiError> {
    let subscription = args.subscription.as_deref().unwrap_or(MAIN);
    let mut body = EventBody::seen_by(subscription, queue.get(id).await?)?;
    if args.include_logs {
        let log = queue.log(id).await?;
        body.logs = Some(log.into_iter().filter(|entry| entry.subscription == subscription).map(Into::into).collect());
    }
    Ok(Json(body))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListArgs {
    /// Only in this state.
    #[param(value_type = Option<Status>)]
    status: Option<String>,
    /// Comma-separated; only events with any of these tags.
    #[param(value_type = Option<String>)]
    tags: Option<Names>,
    /// Comma-separated; only of these types, each exact or a prefix ending in `*`.
    #[param(value_type = Option<String>)]
    types: Option<Names>,
    /// Whose view; `main` if absent.
    subscription: Option<String>,
    /// How many; 20 if absent, at most 1000.
    limit: Option<usize>,
    /// How many to pass over; 0 if absent.
    offset: Option<usize>,
}

/// A part of a list of events.
#[derive(Serialize, ToSchema)]
struct EventsBody {
    /// The newest first.
    events: Vec<ListedBody>,
    /// How many match in all.
    total: u64,
    limit: usize,
    offset: usize,
}

/// An event in a list.
#[derive(Serialize, ToSchema)]
struct ListedBody {
    id: i64,
    /// What kind of event it is.
    #[serde(rename = "type")]
    event_type: String,
    title: Option<String>,
    status: Status,
    /// Comma-separated, as it was sent.
    tags: String,
    attempts: u32,
    retry_count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_retry_at: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

impl ListedBody {
    fn seen_by(subscription: &str, view: EventView) -> Option<ListedBody> {
        let seen = view.delivery(subscription)?.clone();
        Some(ListedBody {
            id: view.event.id,
            event_type: view.event.event_type,
            title: view.event.title,
            status: seen.status,
            tags: view.event.tags,
            attempts: seen.attempts,
            retry_count: seen.retry_count,
            next_retry_at: seen.next_retry_at,
            created_at: view.event.created_at,
            updated_at: seen.updated_at,
        })
    }
}

/// How many a list shows unless told.
const LIMIT_DEFAULT: usize = 20;

/// A limit that was given; the library takes 0 for "none given".
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
        (status = 200, description = "A part of the list.", body = EventsBody),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn list_events(
    InNamespace(queue): InNamespace,
    Args(args): Args<ListArgs>,
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
    let events = page.items.into_iter().filter_map(|view| ListedBody::seen_by(subscription, view)).collect();
    Ok(Json(EventsBody { events, total: page.total, limit, offset }))
}

/// LeasedEvent for longer than this, or silent for longer: the source document's 30 seconds.
const LONG_SILENCE: Duration = Duration::from_secs(30);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StuckArgs {
    /// LeasedEvent for longer than this; 30000 if absent.
    older_than_ms: Option<u64>,
    /// How many; 20 if absent, at most 1000.
    limit: Option<usize>,
}

/// What is held for long.
#[derive(Serialize, ToSchema)]
struct StuckBody {
    /// The earliest first. Without `started_at` it is an orphan: picked, and nothing heard of it since.
    stuck: Vec<StuckDelivery>,
}

/// List events that are held for long
///
/// PROCESSING for longer than the given time, orphans among them.
#[utoipa::path(
    get, path = "/stuck", tag = "inspect", security(("token" = ["read"])),
    params(StuckArgs),
    responses(
        (status = 200, description = "What is held for long.", body = StuckBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn list_stuck(InNamespace(queue): InNamespace, Args(args): Args<StuckArgs>) -> Result<Json<StuckBody>, ApiError> {
    let older_than = args.older_than_ms.map_or(LONG_SILENCE, Duration::from_millis);
    Ok(Json(StuckBody { stuck: queue.stuck(older_than, limit(args.limit, queue.limits())?).await? }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WorkersArgs {
    /// A worker that holds events and was silent for longer than this is stale; 30000 if absent.
    stale_after_ms: Option<u64>,
    /// Whether to add who asks for events.
    #[serde(default)]
    include_consumers: bool,
}

/// Who works.
#[derive(Serialize, ToSchema)]
struct WorkersBody {
    workers: Vec<WorkerView>,
    /// Who asked for events within the last hour, and for which. Those who still ask were seen within a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    consumers: Option<Vec<ConsumerView>>,
}

/// List workers
///
/// Whoever holds events, or reported on one within the last hour; and, if asked for, who waits for which events.
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
    Args(args): Args<WorkersArgs>,
) -> Result<Json<WorkersBody>, ApiError> {
    let stale_after = args.stale_after_ms.map_or(LONG_SILENCE, Duration::from_millis);
    let consumers = if args.include_consumers { Some(queue.consumers().await?) } else { None };
    Ok(Json(WorkersBody { workers: queue.workers(stale_after).await?, consumers }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatsArgs {
    /// Count what ended since this instant; an hour ago if absent.
    since: Option<DateTime<Utc>>,
}

/// How much there is of what.
#[derive(Serialize, ToSchema)]
struct StatsBody {
    namespace: String,
    /// What ended before this is not counted.
    since: DateTime<Utc>,
    /// Nothing is handed out while the namespace is paused.
    paused: bool,
    /// By subscription, type and status: all that is live or dead, and what ended since then.
    stats: Vec<StatRow>,
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
    Args(args): Args<StatsArgs>,
) -> Result<Json<StatsBody>, ApiError> {
    let since = args.since.map_or_else(|| queue.clock().now() - TimeDelta::hours(1), known);
    let (namespace, paused) = (queue.namespace().to_owned(), queue.describe().await?.paused);
    Ok(Json(StatsBody { namespace, since, paused, stats: queue.stats(since).await? }))
}

/// How upkeep goes.
#[derive(Serialize, ToSchema)]
struct MaintenanceBody {
    namespace: String,
    /// By name: what was done last, and when it is due again. That of the whole database is shown with `default`.
    tasks: Vec<MaintenanceTaskView>,
}

/// Show upkeep
///
/// What the servers and nodes do by themselves: when each task was done last, by whom, how long it took, and what came
/// of it.
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
