//! `/dead-letters`: list, redrive and purge dead letters.

use axum::Json;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{DeadLetter, DeadLetterFilter, Queue, Status};
use windlass_api::{DeadLetterBody, DeadLetterFilterRequest, DeadLettersBody, NameList, PurgedBody, RedrivenBody};

use super::event_body::{count_fitting, take_options};
use super::inspect::limit;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{EventId, InNamespace, JsonBody, QueryArgs, clamp_to_epoch};

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
    /// Only dead letters of this subscription.
    subscription: Option<String>,
    /// FAILED or EXPIRED.
    #[param(value_type = Option<Status>)]
    status: Option<String>,
    /// Comma-separated. Only dead letters of these types, each exact or a prefix ending in `*`.
    #[param(value_type = Option<String>)]
    types: Option<NameList>,
    /// Only dead letters with exactly this reason.
    reason: Option<String>,
    /// Only dead letters that failed before this time.
    failed_before: Option<DateTime<Utc>>,
    /// Page size, at most 1000. Default: 20.
    limit: Option<usize>,
    /// Number of dead letters to skip. Default: 0.
    offset: Option<usize>,
}

fn dead_letter_body(letter: DeadLetter) -> DeadLetterBody {
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

/// List dead letters
///
/// A response holds payloads of at most 32 MiB together, so it may have fewer than `limit` dead letters. Continue with
/// the `offset` after the last one.
#[utoipa::path(
    get, path = "/dead-letters", tag = "dead letters", security(("token" = ["read"])),
    params(ListArgs),
    responses(
        (status = 200, description = "A page of the list.", body = DeadLettersBody),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn list_dead_letters(
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<ListArgs>,
) -> Result<Json<DeadLettersBody>, ApiError> {
    let (limit, offset) = (limit(args.limit, queue.limits())?, args.offset.unwrap_or(0));
    let filter = DeadLetterFilter {
        subscription: args.subscription,
        status: args.status.as_deref().map(str::parse).transpose()?,
        types: args.types.unwrap_or_default().into_list(),
        reason: args.reason,
        failed_before: args.failed_before.map(clamp_to_epoch),
        limit,
        offset,
        ..DeadLetterFilter::default()
    };
    let page = queue.dead_letters(filter).await?;
    let fitting = count_fitting(page.items.iter().map(|letter| &*letter.event.payload));
    let dead_letters = page.items.into_iter().take(fitting).map(dead_letter_body).collect();
    Ok(Json(DeadLettersBody { dead_letters, total: page.total, limit, offset }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeadLetterArgs {
    /// The subscription of the delivery. Required only if several subscriptions have a dead letter of the event.
    subscription: Option<String>,
}

fn single(event_id: i64, args: DeadLetterArgs) -> DeadLetterFilter {
    DeadLetterFilter { event_ids: vec![event_id], subscription: args.subscription, ..DeadLetterFilter::default() }
}

fn not_found(queue: &Queue, event_id: i64) -> ApiError {
    let error = format!("event {event_id} is not among the dead letters of namespace '{}'", queue.namespace());
    ApiError::new(StatusCode::NOT_FOUND, "dead_letter_not_found", error)
}

/// Show a dead letter
#[utoipa::path(
    get, path = "/dead-letters/{id}", tag = "dead letters", security(("token" = ["read"])),
    params(("id" = i64, Path, description = "The event."), DeadLetterArgs),
    responses(
        (status = 200, description = "The dead letter.", body = DeadLetterBody),
        (status = 404, description = "No such dead letter."),
    )
)]
async fn show_dead_letter(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    QueryArgs(args): QueryArgs<DeadLetterArgs>,
) -> Result<Json<DeadLetterBody>, ApiError> {
    let found = queue.dead_letters(single(id, args)).await?.items.into_iter().next();
    found.map(|letter| Json(dead_letter_body(letter))).ok_or_else(|| not_found(&queue, id))
}

/// Redrive a dead letter
///
/// It becomes PENDING again, with its retries reset.
#[utoipa::path(
    post, path = "/dead-letters/{id}/redrive", tag = "dead letters", security(("token" = ["admin"])),
    params(("id" = i64, Path, description = "The event."), DeadLetterArgs),
    responses(
        (status = 200, description = "Redriven.", body = RedrivenBody),
        (status = 404, description = "No such dead letter."),
    )
)]
async fn redrive_dead_letter(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    QueryArgs(args): QueryArgs<DeadLetterArgs>,
) -> Result<Json<RedrivenBody>, ApiError> {
    match queue.redrive(single(id, args)).await? {
        0 => Err(not_found(&queue, id)),
        redriven => Ok(Json(RedrivenBody { redriven })),
    }
}

/// Delete a dead letter
///
/// The event stays in the history.
#[utoipa::path(
    delete, path = "/dead-letters/{id}", tag = "dead letters", security(("token" = ["admin"])),
    params(("id" = i64, Path, description = "The event."), DeadLetterArgs),
    responses(
        (status = 200, description = "Deleted.", body = PurgedBody),
        (status = 404, description = "No such dead letter."),
    )
)]
async fn purge_dead_letter(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    QueryArgs(args): QueryArgs<DeadLetterArgs>,
) -> Result<Json<PurgedBody>, ApiError> {
    match queue.purge(single(id, args)).await? {
        0 => Err(not_found(&queue, id)),
        purged => Ok(Json(PurgedBody { purged })),
    }
}

fn dead_letter_filter(request: DeadLetterFilterRequest) -> Result<DeadLetterFilter, ApiError> {
    let DeadLetterFilterRequest { event_ids, subscription, status, types, reason, failed_before, all } = request;
    let event_ids = event_ids.map_or_else(Vec::new, |ids| ids.0);
    let (types, failed_before) = (types.unwrap_or_default().into_list(), failed_before.map(clamp_to_epoch));
    let unfiltered = event_ids.is_empty() && types.is_empty() && subscription.is_none() && status.is_none();
    let unfiltered = unfiltered && reason.is_none() && failed_before.is_none();
    if unfiltered != all {
        let problem = if all { "is not allowed with a filter" } else { "must be true if no filter is given" };
        return Err(ApiError::invalid("all", problem));
    }
    if reason.as_ref().is_some_and(|reason| reason.contains('\0')) {
        return Err(ApiError::invalid("reason", "must not contain the character U+0000"));
    }
    let filter =
        DeadLetterFilter { event_ids, subscription, status, types, reason, failed_before, ..Default::default() };
    Ok(filter)
}

/// Redrive dead letters
///
/// All matching dead letters become PENDING again, with their retries reset.
#[utoipa::path(
    post, path = "/dead-letters/redrive", tag = "dead letters", security(("token" = ["admin"])),
    request_body = DeadLetterFilterRequest,
    responses(
        (status = 200, description = "Redriven.", body = RedrivenBody),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn redrive_dead_letters(
    InNamespace(queue): InNamespace,
    JsonBody(request, _memory): JsonBody<DeadLetterFilterRequest>,
) -> Result<Json<RedrivenBody>, ApiError> {
    Ok(Json(RedrivenBody { redriven: queue.redrive(dead_letter_filter(request)?).await? }))
}

/// Delete dead letters
///
/// Deletes all matching dead letters. Their events stay in the history.
#[utoipa::path(
    post, path = "/dead-letters/purge", tag = "dead letters", security(("token" = ["admin"])),
    request_body = DeadLetterFilterRequest,
    responses(
        (status = 200, description = "Deleted.", body = PurgedBody),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn purge_dead_letters(
    InNamespace(queue): InNamespace,
    JsonBody(request, _memory): JsonBody<DeadLetterFilterRequest>,
) -> Result<Json<PurgedBody>, ApiError> {
    Ok(Json(PurgedBody { purged: queue.purge(dead_letter_filter(request)?).await? }))
}
