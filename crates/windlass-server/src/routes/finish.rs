//! `POST /events/{id}/complete`, `fail`, `release`, `snooze`, and `POST /events/finish` for many events: a worker
//! reports the outcome of an attempt.

use std::time::Duration;

use axum::Json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Action, Attempt, Finished, LeasedEvent, Outcome, Queue, Report};
use windlass_api::{
    BoundedList, CompleteRequest, FailRequest, FinishItem, FinishOutcome, FinishRequest, FinishedBody, ItemResult,
    LeaseHolderRequest, ReportBody, SnoozeRequest,
};

use super::heartbeat::LeaseHolder;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{BatchBody, EventId, InNamespace, JsonBody};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(complete))
        .routes(routes!(fail))
        .routes(routes!(release))
        .routes(routes!(snooze))
        .routes(routes!(finish))
}

fn report_body(attempt: &Attempt) -> ReportBody {
    let failed = attempt.action == Action::Failed;
    ReportBody {
        event_id: attempt.event_id,
        worker_id: attempt.worker_id.clone(),
        action: attempt.action,
        status_code: attempt.status_code,
        error_message: attempt.error_message.clone(),
        execution_time_ms: attempt.execution_time_ms,
        retry_scheduled: failed.then_some(attempt.next_retry_at.is_some()),
        // A released delivery keeps its original `ready_at`, which is not a retry time.
        next_retry_at: attempt.next_retry_at.filter(|_| failed || attempt.action == Action::Snoozed),
        created_at: attempt.finished_at,
    }
}

/// Complete an event
///
/// A repeated report changes nothing and is answered with the recorded one.
#[utoipa::path(
    post, path = "/events/{id}/complete", tag = "consume", security(("token" = ["consume"])),
    params(("id" = i64, Path, description = "The event.")),
    request_body = CompleteRequest,
    responses(
        (status = 200, description = "On record.", body = ReportBody),
        (status = 404, description = "No such event."),
        (status = 409, description = "The worker does not hold the event; nothing was changed."),
    )
)]
async fn complete(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    JsonBody(request, _memory): JsonBody<CompleteRequest>,
) -> Result<Json<ReportBody>, ApiError> {
    let item = FinishItem {
        worker_id: request.worker_id,
        lease: request.lease,
        subscription: request.subscription,
        execution_time_ms: request.execution_time_ms,
        status_code: request.status_code,
        error_message: request.error_message,
        detail: request.detail,
        ..FinishItem::new(id, FinishOutcome::Complete)
    };
    report_one(&queue, item).await
}

/// Fail an event
///
/// The event is retried after the policy's backoff. The failure that exhausts the retries is stored like any other, but
/// answered with 400.
#[utoipa::path(
    post, path = "/events/{id}/fail", tag = "consume", security(("token" = ["consume"])),
    params(("id" = i64, Path, description = "The event.")),
    request_body = FailRequest,
    responses(
        (status = 200, description = "On record.", body = ReportBody),
        (status = 400, description = "Bad input; or, with the code max_retries_exceeded: the last failure, recorded."),
        (status = 404, description = "No such event."),
        (status = 409, description = "The worker does not hold the event; nothing was changed."),
    )
)]
async fn fail(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    JsonBody(request, _memory): JsonBody<FailRequest>,
) -> Result<Json<ReportBody>, ApiError> {
    let item = FinishItem {
        worker_id: request.worker_id,
        lease: request.lease,
        subscription: request.subscription,
        execution_time_ms: request.execution_time_ms,
        status_code: request.status_code,
        error_message: request.error_message,
        detail: request.detail,
        retry: request.retry,
        retry_after_ms: request.retry_after_ms,
        ..FinishItem::new(id, FinishOutcome::Fail)
    };
    report_one(&queue, item).await
}

/// Release an event
///
/// Other workers can claim it immediately. This does not count as a failure.
#[utoipa::path(
    post, path = "/events/{id}/release", tag = "consume", security(("token" = ["consume"])),
    params(("id" = i64, Path, description = "The event.")),
    request_body = LeaseHolderRequest,
    responses(
        (status = 200, description = "On record.", body = ReportBody),
        (status = 404, description = "No such event."),
        (status = 409, description = "The worker does not hold the event; nothing was changed."),
    )
)]
async fn release(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    JsonBody(request, _memory): JsonBody<LeaseHolderRequest>,
) -> Result<Json<ReportBody>, ApiError> {
    let LeaseHolderRequest { worker_id, lease, subscription } = request;
    let item = FinishItem { worker_id, lease, subscription, ..FinishItem::new(id, FinishOutcome::Release) };
    report_one(&queue, item).await
}

/// Snooze an event
///
/// It is delivered again after the delay. This does not count as a failure.
#[utoipa::path(
    post, path = "/events/{id}/snooze", tag = "consume", security(("token" = ["consume"])),
    params(("id" = i64, Path, description = "The event.")),
    request_body = SnoozeRequest,
    responses(
        (status = 200, description = "On record.", body = ReportBody),
        (status = 404, description = "No such event."),
        (status = 409, description = "The worker does not hold the event; nothing was changed."),
    )
)]
async fn snooze(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    JsonBody(request, _memory): JsonBody<SnoozeRequest>,
) -> Result<Json<ReportBody>, ApiError> {
    let SnoozeRequest { worker_id, lease, subscription, delay_ms } = request;
    let item = FinishItem { worker_id, lease, subscription, ..FinishItem::new(id, FinishOutcome::Snooze) };
    report_one(&queue, FinishItem { delay_ms: Some(delay_ms), ..item }).await
}

async fn report_one(queue: &Queue, item: FinishItem) -> Result<Json<ReportBody>, ApiError> {
    let may_retry = may_retry(&item);
    let (holder, leased, report) = leased_report(item)?;
    let finished = queue.finish(leased, report).await?;
    report_response(&finished, &holder, may_retry).map(Json)
}

/// The response to one report, sent alone or in a batch.
fn report_response(finished: &Finished, holder: &LeaseHolder, may_retry: bool) -> Result<ReportBody, ApiError> {
    match finished {
        Finished::Applied(attempt) => match exhausted_limit(attempt) {
            Some(max_retries) if may_retry => Err(ApiError::max_retries_exceeded(attempt.retry_count, max_retries)),
            _ => Ok(report_body(attempt)),
        },
        Finished::Repeated(attempt) => Ok(report_body(attempt)),
        Finished::Lost => Err(holder.lost_error()),
    }
}

/// The retry limit, if this failure reached it.
fn exhausted_limit(attempt: &Attempt) -> Option<u32> {
    let failed = attempt.action == Action::Failed && attempt.next_retry_at.is_none();
    attempt.max_retries.filter(|max| failed && attempt.retry_count >= *max)
}

fn item_result(event_id: i64, response: Result<ReportBody, ApiError>) -> ItemResult {
    match response {
        Ok(report) => ItemResult { event_id, status: 200, report: Some(report), failure: None },
        Err(ApiError { status, body }) => {
            ItemResult { event_id, status: status.as_u16(), report: None, failure: Some(body) }
        }
    }
}

/// Report on a batch of events
///
/// Each report has its own result. A refused report does not prevent the others from being recorded.
#[utoipa::path(
    post, path = "/events/finish", tag = "consume", security(("token" = ["consume"])),
    request_body = FinishRequest,
    responses(
        (status = 200, description = "The result of each report.", body = FinishedBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn finish(
    InNamespace(queue): InNamespace,
    BatchBody(request, _memory): BatchBody<FinishRequest>,
) -> Result<Json<FinishedBody>, ApiError> {
    let FinishRequest { worker_id, subscription, items: BoundedList(items) } = request;
    let mut results: Vec<Option<ItemResult>> = items.iter().map(|_| None).collect();
    let (mut accepted, mut reports) = (Vec::new(), Vec::new());
    for (index, mut item) in items.into_iter().enumerate() {
        item.worker_id = item.worker_id.or_else(|| worker_id.clone());
        item.subscription = item.subscription.or_else(|| subscription.clone());
        let (event_id, may_retry) = (item.event_id, may_retry(&item));
        match leased_report(item) {
            Ok((holder, leased, report)) => {
                accepted.push((index, holder, may_retry));
                reports.push((leased, report));
            }
            Err(error) => results[index] = Some(item_result(event_id, Err(error))),
        }
    }
    let finished = queue.finish_all(reports).await?;
    for ((index, holder, may_retry), finished) in accepted.into_iter().zip(finished) {
        let response =
            finished.map_err(ApiError::from).and_then(|finished| report_response(&finished, &holder, may_retry));
        results[index] = Some(item_result(holder.event_id, response));
    }
    Ok(Json(FinishedBody { results: results.into_iter().flatten().collect() }))
}

/// Whether this is a failure that the worker wants to be retried.
fn may_retry(item: &FinishItem) -> bool {
    item.outcome == FinishOutcome::Fail && item.retry != Some(false)
}

/// The lease holder as sent, the leased event, and the report.
fn leased_report(item: FinishItem) -> Result<(LeaseHolder, LeasedEvent, Report), ApiError> {
    let mut report = Report::new(outcome(&item)?);
    if let Some(ms) = item.execution_time_ms {
        report = report.execution_time_ms(ms);
    }
    if let Some(code) = item.status_code {
        report = report.status_code(code);
    }
    if let Some(error) = item.error_message {
        report = report.error(error);
    }
    if let Some(detail) = item.detail {
        report = report.detail(detail);
    }
    let FinishItem { event_id, worker_id, lease, subscription, .. } = item;
    let holder = LeaseHolder { event_id, worker_id, lease, subscription };
    let leased = holder.leased_event()?;
    Ok((holder, leased, report))
}

fn outcome(item: &FinishItem) -> Result<Outcome, ApiError> {
    let only = |field, given: bool, with: FinishOutcome| match given && item.outcome != with {
        true => Err(ApiError::invalid(field, "is not allowed with this outcome")),
        false => Ok(()),
    };
    only("retry", item.retry.is_some(), FinishOutcome::Fail)?;
    only("retry_after_ms", item.retry_after_ms.is_some(), FinishOutcome::Fail)?;
    only("delay_ms", item.delay_ms.is_some(), FinishOutcome::Snooze)?;
    match item.outcome {
        FinishOutcome::Complete if item.error_message.is_some() => Ok(Outcome::DoneWithErrors),
        FinishOutcome::Complete => Ok(Outcome::Done),
        FinishOutcome::Fail => match (item.retry, item.retry_after_ms) {
            (Some(false), Some(_)) => Err(ApiError::invalid("retry_after_ms", "is not allowed with retry: false")),
            (Some(false), None) => Ok(Outcome::dead()),
            (_, after) => Ok(Outcome::Retry { after: after.map(Duration::from_millis) }),
        },
        FinishOutcome::Release => Ok(Outcome::Release),
        FinishOutcome::Snooze => {
            let ms = item.delay_ms.ok_or_else(|| ApiError::invalid("delay_ms", "is required to snooze"))?;
            Ok(Outcome::Snooze { delay: Duration::from_millis(ms) })
        }
    }
}
