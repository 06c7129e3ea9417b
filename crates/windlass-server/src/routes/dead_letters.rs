//! `/dead-letters`: what will not be tried again by itself.

use axum::Json;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{DeadLetter, DeadLetterFilter, Queue, Status};

use super::event::{EventOptions, fitting, take_options};
use super::inspect::limit;
use super::list::List;
use super::names::Names;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, EventId, InNamespace, JsonBody, known};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_dead_letters))
        .routes(routes!(show_dead_letter, purge_dead_letter))
        .routes(routes!(redrive_dead_letter))
        .routes(routes!(redrive_dead_letters))
        .routes(routes!(purge_dead_letters))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListArgs {
    /// Only of this subscription.
    subscription: Option<String>,
    /// FAILED or EXPIRED.
    #[param(value_type = Option<Status>)]
    status: Option<String>,
    /// Comma-separated; only of these types, each exact or a prefix ending in `*`.
    #[param(value_type = Option<String>)]
    types: Option<Names>,
    /// Only with exactly this reason.
    reason: Option<String>,
    /// Only those given up before this instant.
    failed_before: Option<DateTime<Utc>>,
    /// How many; 20 if absent, at most 1000.
    limit: Option<usize>,
    /// How many to pass over; 0 if absent.
    offset: Option<usize>,
}

/// A part of the list.
#[derive(Serialize, ToSchema)]
struct DeadLettersBody {
    /// The newest first.
    dead_letters: Vec<DeadLetterBody>,
    /// How many match in all.
    total: u64,
    limit: usize,
    offset: usize,
}

/// An event that was given up, and why.
#[derive(Serialize, ToSchema)]
struct DeadLetterBody {
    event_id: i64,
    /// What kind of event it is.
    #[serde(rename = "type")]
    event_type: String,
    title: Option<String>,
    description: Option<String>,
    /// Comma-separated, as it was sent.
    tags: String,
    /// As it was sent.
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    /// Whose delivery it was.
    subscription: String,
    /// FAILED or EXPIRED.
    status: Status,
    /// Why it was given up, in a few words.
    reason: String,
    /// The error's detail.
    error: Option<String>,
    /// How often it was handed out.
    attempts: u32,
    retry_count: u32,
    max_retries: Option<u32>,
    failed_at: DateTime<Utc>,
    /// When the event was published.
    created_at: DateTime<Utc>,
    #[serde(flatten)]
    options: EventOptions,
}

impl From<DeadLetter> for DeadLetterBody {
    fn from(letter: DeadLetter) -> DeadLetterBody {
        let mut event = letter.event;
        DeadLetterBody {
            options: take_options(&mut event),
            event_id: event.id,
            event_type: event.event_type,
            title: event.title,
            description: event.description,
            tags: event.tags,
            payload: event.payload,
            subscription: letter.subscription,
            status: letter.status,
            reason: letter.reason,
            error: letter.error,
            attempts: letter.attempts,
            retry_count: letter.retry_count,
            max_retries: letter.max_retries,
            failed_at: letter.failed_at,
            created_at: event.created_at,
        }
    }
}

/// List dead letters
///
/// Payloads of 32 MiB together are enough for one answer: it may hold fewer than `limit`. Go on with the
/// `offset` after the last.
#[utoipa::path(
    get, path = "/dead-letters", tag = "dead letters", security(("token" = ["read"])),
    params(ListArgs),
    responses(
        (status = 200, description = "A part of the list.", body = DeadLettersBody),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn list_dead_letters(
    InNamespace(queue): InNamespace,
    Args(args): Args<ListArgs>,
) -> Result<Json<DeadLettersBody>, ApiError> {
    let (limit, offset) = (limit(args.limit, queue.limits())?, args.offset.unwrap_or(0));
    let filter = DeadLetterFilter {
        subscription: args.subscription,
        status: args.status.as_deref().map(str::parse).transpose()?,
        types: args.types.unwrap_or_default().into_list(),
        reason: args.reason,
        failed_before: args.failed_before.map(known),
        limit,
        offset,
        ..DeadLetterFilter::default()
    };
    let page = queue.dead_letters(filter).await?;
    let fitting = fitting(page.items.iter().map(|letter| &*letter.event.payload));
    let dead_letters = page.items.into_iter().take(fitting).map(Into::into).collect();
    Ok(Json(DeadLettersBody { dead_letters, total: page.total, limit, offset }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OneArgs {
    /// Whose delivery it was, where several gave the event up.
    subscription: Option<String>,
}

fn one(event_id: i64, args: OneArgs) -> DeadLetterFilter {
    DeadLetterFilter { event_ids: vec![event_id], subscription: args.subscription, ..DeadLetterFilter::default() }
}

fn none(queue: &Queue, event_id: i64) -> ApiError {
    let error = format!("event {event_id} is not among the dead letters of namespace '{}'", queue.namespace());
    ApiError::new(StatusCode::NOT_FOUND, "dead_letter_not_found", error)
}

/// Show a dead letter
#[utoipa::path(
    get, path = "/dead-letters/{id}", tag = "dead letters", security(("token" = ["read"])),
    params(("id" = i64, Path, description = "The event."), OneArgs),
    responses(
        (status = 200, description = "The dead letter.", body = DeadLetterBody),
        (status = 404, description = "No such dead letter."),
    )
)]
async fn show_dead_letter(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    Args(args): Args<OneArgs>,
) -> Result<Json<DeadLetterBody>, ApiError> {
    let found = queue.dead_letters(one(id, args)).await?.items.into_iter().next();
    found.map(|letter| Json(letter.into())).ok_or_else(|| none(&queue, id))
}

/// How many were put back.
#[derive(Serialize, ToSchema)]
struct RedrivenBody {
    redriven: usize,
}

/// How many were deleted.
#[derive(Serialize, ToSchema)]
struct PurgedBody {
    purged: usize,
}

/// Put one dead letter back
///
/// It is PENDING again, with fresh retries.
#[utoipa::path(
    post, path = "/dead-letters/{id}/redrive", tag = "dead letters", security(("token" = ["admin"])),
    params(("id" = i64, Path, description = "The event."), OneArgs),
    responses(
        (status = 200, description = "Put back.", body = RedrivenBody),
        (status = 404, description = "No such dead letter."),
    )
)]
async fn redrive_dead_letter(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    Args(args): Args<OneArgs>,
) -> Result<Json<RedrivenBody>, ApiError> {
    match queue.redrive(one(id, args)).await? {
        0 => Err(none(&queue, id)),
        redriven => Ok(Json(RedrivenBody { redriven })),
    }
}

/// Delete one dead letter
///
/// The event stays in the history.
#[utoipa::path(
    delete, path = "/dead-letters/{id}", tag = "dead letters", security(("token" = ["admin"])),
    params(("id" = i64, Path, description = "The event."), OneArgs),
    responses(
        (status = 200, description = "Deleted.", body = PurgedBody),
        (status = 404, description = "No such dead letter."),
    )
)]
async fn purge_dead_letter(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    Args(args): Args<OneArgs>,
) -> Result<Json<PurgedBody>, ApiError> {
    match queue.purge(one(id, args)).await? {
        0 => Err(none(&queue, id)),
        purged => Ok(Json(PurgedBody { purged })),
    }
}

/// Which dead letters: those that match everything given.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "types": "order.*", "failed_before": "2025-12-24T10:30:00Z" }))]
struct FilterRequest {
    /// Of these events.
    #[schema(value_type = Option<Vec<i64>>)]
    event_ids: Option<List<i64>>,
    /// Of this subscription.
    subscription: Option<String>,
    /// FAILED or EXPIRED.
    status: Option<Status>,
    /// Of these types, each exact or a prefix ending in `*`.
    types: Option<Names>,
    /// With exactly this reason.
    reason: Option<String>,
    /// Given up before this instant.
    failed_before: Option<DateTime<Utc>>,
    /// Really all of them. Needed where nothing else is given.
    #[serde(default)]
    all: bool,
}

impl TryFrom<FilterRequest> for DeadLetterFilter {
    type Error = ApiError;

    fn try_from(request: FilterRequest) -> Result<DeadLetterFilter, ApiError> {
        let FilterRequest { event_ids, subscription, status, types, reason, failed_before, all } = request;
        let event_ids = event_ids.map_or_else(Vec::new, |ids| ids.0);
        let (types, failed_before) = (types.unwrap_or_default().into_list(), failed_before.map(known));
        let nothing = event_ids.is_empty() && types.is_empty() && subscription.is_none() && status.is_none();
        let nothing = nothing && reason.is_none() && failed_before.is_none();
        if nothing != all {
            let problem = if all { "makes no sense with a filter" } else { "must be true where no filter is given" };
            return Err(ApiError::invalid("all", problem));
        }
        if reason.as_ref().is_some_and(|reason| reason.contains('\0')) {
            return Err(ApiError::invalid("reason", "must not contain the character U+0000"));
        }
        let filter =
            DeadLetterFilter { event_ids, subscription, status, types, reason, failed_before, ..Default::default() };
        Ok(filter)
    }
}

/// Put dead letters back
///
/// All that match are PENDING again, with fresh retries.
#[utoipa::path(
    post, path = "/dead-letters/redrive", tag = "dead letters", security(("token" = ["admin"])),
    request_body = FilterRequest,
    responses(
        (status = 200, description = "Put back.", body = RedrivenBody),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn redrive_dead_letters(
    InNamespace(queue): InNamespace,
    JsonBody(request, _room): JsonBody<FilterRequest>,
) -> Result<Json<RedrivenBody>, ApiError> {
    Ok(Json(RedrivenBody { redriven: queue.redrive(request.try_into()?).await? }))
}

/// Delete dead letters
///
/// All that match. Their events stay in the history.
#[utoipa::path(
    post, path = "/dead-letters/purge", tag = "dead letters", security(("token" = ["admin"])),
    request_body = FilterRequest,
    responses(
        (status = 200, description = "Deleted.", body = PurgedBody),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn purge_dead_letters(
    InNamespace(queue): InNamespace,
    JsonBody(request, _room): JsonBody<FilterRequest>,
) -> Result<Json<PurgedBody>, ApiError> {
    Ok(Json(PurgedBody { purged: queue.purge(request.try_into()?).await? }))
}
