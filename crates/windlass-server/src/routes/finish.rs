//! `POST /events/{id}/complete`, `fail`, `release`, `snooze`, and `POST /events/finish` for many: the
//! worker's reports.

use std::time::Duration;

use axum::Json;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Action, Attempt, Finished, LeasedEvent, Outcome, Queue, Report};

use super::hold::{Holder, HolderRequest};
use super::list::List;
use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{BatchBody, EventId, InNamespace, JsonBody};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(complete))
        .routes(routes!(fail))
        .routes(routes!(release))
        .routes(routes!(snooze))
        .routes(routes!(finish))
}

/// The work is done.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742", "execution_time_ms": 1250, "status_code": 200 }))]
struct CompleteRequest {
    /// Who held it. Needed unless `lease` is given.
    worker_id: Option<String>,
    /// The claim's token, for an exact guard.
    lease: Option<String>,
    /// `main` if absent.
    subscription: Option<String>,
    /// How long it took.
    execution_time_ms: Option<u64>,
    /// A number of the worker's own.
    status_code: Option<i32>,
    /// It is done, but not without errors: it ends COMPLETED_WITH_ERRORS.
    error_message: Option<String>,
    /// Anything else to keep with the attempt: JSON, at most 64 KiB. The log shows it.
    #[schema(value_type = Option<serde_json::Value>)]
    detail: Option<Box<RawValue>>,
}

/// The work failed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({
    "worker_id": "worker-02:8742", "execution_time_ms": 5000, "status_code": 500,
    "error_message": "Connection timeout: mail server unreachable."
}))]
struct FailRequest {
    /// Who held it. Needed unless `lease` is given.
    worker_id: Option<String>,
    /// The claim's token, for an exact guard.
    lease: Option<String>,
    /// `main` if absent.
    subscription: Option<String>,
    /// How long it took.
    execution_time_ms: Option<u64>,
    /// A number of the worker's own.
    status_code: Option<i32>,
    /// What went wrong.
    error_message: Option<String>,
    /// Anything else to keep with the attempt: JSON, at most 64 KiB. The log shows it.
    #[schema(value_type = Option<serde_json::Value>)]
    detail: Option<Box<RawValue>>,
    /// `false`: it will never work, so it becomes a dead letter at once.
    retry: Option<bool>,
    /// When to try again, instead of the policy's backoff.
    retry_after_ms: Option<u64>,
}

/// The worker puts it back for later.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742", "delay_ms": 60000 }))]
struct SnoozeRequest {
    /// Who held it. Needed unless `lease` is given.
    worker_id: Option<String>,
    /// The claim's token, for an exact guard.
    lease: Option<String>,
    /// `main` if absent.
    subscription: Option<String>,
    /// For how long.
    delay_ms: u64,
}

/// A report, as it is on record.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "event_id": 1001, "worker_id": "worker-02:8742", "action": "COMPLETED", "status_code": 200,
    "execution_time_ms": 1250, "created_at": "2025-12-24T10:31:15Z"
}))]
struct ReportBody {
    event_id: i64,
    /// Who reported it.
    worker_id: Option<String>,
    /// What was recorded.
    action: Action,
    status_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    execution_time_ms: Option<u64>,
    /// With FAILED: whether it will be tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_scheduled: Option<bool>,
    /// When it will be handed out again.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_retry_at: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
}

impl From<&Attempt> for ReportBody {
    fn from(attempt: &Attempt) -> ReportBody {
        let failed = attempt.action == Action::Failed;
        ReportBody {
            event_id: attempt.event_id,
            worker_id: attempt.worker_id.clone(),
            action: attempt.action,
            status_code: attempt.status_code,
            error_message: attempt.error_message.clone(),
            execution_time_ms: attempt.execution_time_ms,
            retry_scheduled: failed.then_some(attempt.next_retry_at.is_some()),
            // What was given back keeps its old place, which says nothing to anybody.
            next_retry_at: attempt.next_retry_at.filter(|_| failed || attempt.action == Action::Snoozed),
            created_at: attempt.finished_at,
        }
    }
}

/// The work is done
///
/// Sent again it is answered with what is on record, and nothing changes.
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
    JsonBody(request, _room): JsonBody<CompleteRequest>,
) -> Result<Json<ReportBody>, ApiError> {
    let item = FinishItem::new(id, Ending::Complete, request.worker_id, request.lease, request.subscription);
    let CompleteRequest { execution_time_ms, status_code, error_message, detail, .. } = request;
    report_one(&queue, FinishItem { execution_time_ms, status_code, error_message, detail, ..item }).await
}

/// The work failed
///
/// The event is tried again after the policy's backoff. The failure that uses up the retries is stored
/// too, with all its effects, and answered with 400.
#[utoipa::path(
    post, path = "/events/{id}/fail", tag = "consume", security(("token" = ["consume"])),
    params(("id" = i64, Path, description = "The event.")),
    request_body = FailRequest,
    responses(
        (status = 200, description = "On record.", body = ReportBody),
        (status = 400, description = "Bad input; or, with the code max_retries_exceeded: on record, and the last."),
        (status = 404, description = "No such event."),
        (status = 409, description = "The worker does not hold the event; nothing was changed."),
    )
)]
async fn fail(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    JsonBody(request, _room): JsonBody<FailRequest>,
) -> Result<Json<ReportBody>, ApiError> {
    let item = FinishItem::new(id, Ending::Fail, request.worker_id, request.lease, request.subscription);
    let FailRequest { execution_time_ms, status_code, error_message, detail, retry, retry_after_ms, .. } = request;
    let item = FinishItem { execution_time_ms, status_code, error_message, detail, retry, retry_after_ms, ..item };
    report_one(&queue, item).await
}

/// Give the event back
///
/// Others may have it at once. Not a failure.
#[utoipa::path(
    post, path = "/events/{id}/release", tag = "consume", security(("token" = ["consume"])),
    params(("id" = i64, Path, description = "The event.")),
    request_body = HolderRequest,
    responses(
        (status = 200, description = "On record.", body = ReportBody),
        (status = 404, description = "No such event."),
        (status = 409, description = "The worker does not hold the event; nothing was changed."),
    )
)]
async fn release(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    JsonBody(request, _room): JsonBody<HolderRequest>,
) -> Result<Json<ReportBody>, ApiError> {
    let HolderRequest { worker_id, lease, subscription } = request;
    report_one(&queue, FinishItem::new(id, Ending::Release, worker_id, lease, subscription)).await
}

/// Put the event back for later
///
/// Not a failure.
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
    JsonBody(request, _room): JsonBody<SnoozeRequest>,
) -> Result<Json<ReportBody>, ApiError> {
    let SnoozeRequest { worker_id, lease, subscription, delay_ms } = request;
    let item = FinishItem::new(id, Ending::Snooze, worker_id, lease, subscription);
    report_one(&queue, FinishItem { delay_ms: Some(delay_ms), ..item }).await
}

async fn report_one(queue: &Queue, item: FinishItem) -> Result<Json<ReportBody>, ApiError> {
    let may_retry = item.may_retry();
    let (holder, held, report) = item.into_report()?;
    let finished = queue.finish(held, report).await?;
    answer(&finished, &holder, may_retry).map(Json)
}

/// The answer to a report, alone or among many.
fn answer(finished: &Finished, holder: &Holder, may_retry: bool) -> Result<ReportBody, ApiError> {
    match finished {
        Finished::Applied(attempt) => match used_up(attempt) {
            Some(max_retries) if may_retry => Err(ApiError::max_retries_exceeded(attempt.retry_count, max_retries)),
            _ => Ok(attempt.into()),
        },
        Finished::Repeated(attempt) => Ok(attempt.into()),
        Finished::Lost => Err(holder.lost()),
    }
}

/// The bound that this failure reached, if it did.
fn used_up(attempt: &Attempt) -> Option<u32> {
    let failed = attempt.action == Action::Failed && attempt.next_retry_at.is_none();
    attempt.max_retries.filter(|max| failed && attempt.retry_count >= *max)
}

/// Many reports.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742", "items": [
    { "event_id": 1001, "outcome": "complete", "lease": "00c0ffee00c0ffee" },
    { "event_id": 1002, "outcome": "fail", "error_message": "Connection timeout" }
] }))]
struct FinishRequest {
    /// For items that name no worker and no lease.
    worker_id: Option<String>,
    /// For items that name none; `main` if absent.
    subscription: Option<String>,
    /// Each has its own result.
    #[schema(value_type = Vec<FinishItem>, max_items = 10000)]
    items: List<FinishItem>,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Ending {
    /// Done.
    Complete,
    /// Failed.
    Fail,
    /// Given back.
    Release,
    /// Put back for later.
    Snooze,
}

/// One report among many: the fields of the call that its outcome names.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct FinishItem {
    event_id: i64,
    /// How the attempt ended.
    outcome: Ending,
    worker_id: Option<String>,
    lease: Option<String>,
    subscription: Option<String>,
    execution_time_ms: Option<u64>,
    status_code: Option<i32>,
    error_message: Option<String>,
    /// Anything else to keep with the attempt.
    #[schema(value_type = Option<serde_json::Value>)]
    detail: Option<Box<RawValue>>,
    /// With `fail`: `false` makes it a dead letter at once.
    retry: Option<bool>,
    /// With `fail`: instead of the policy's backoff.
    retry_after_ms: Option<u64>,
    /// With `snooze`: for how long.
    delay_ms: Option<u64>,
}

/// What became of each report.
#[derive(Serialize, ToSchema)]
struct FinishedBody {
    /// In the order they were sent.
    results: Vec<ItemResult>,
}

/// What the single call would have answered: its status, and the fields of its answer.
#[derive(Serialize, ToSchema)]
struct ItemResult {
    event_id: i64,
    /// The status that the single call would have been answered with.
    status: u16,
    /// The report, where it is on record.
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<ReportBody>,
    /// What went wrong, where something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<ErrorBody>,
}

impl ItemResult {
    fn new(event_id: i64, answer: Result<ReportBody, ApiError>) -> ItemResult {
        match answer {
            Ok(report) => ItemResult { event_id, status: 200, report: Some(report), failure: None },
            Err(ApiError { status, body }) => {
                ItemResult { event_id, status: status.as_u16(), report: None, failure: Some(body) }
            }
        }
    }
}

/// Report on many events
///
/// Each report has its own result; one that is refused does not keep the others from being recorded.
#[utoipa::path(
    post, path = "/events/finish", tag = "consume", security(("token" = ["consume"])),
    request_body = FinishRequest,
    responses(
        (status = 200, description = "What became of each.", body = FinishedBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn finish(
    InNamespace(queue): InNamespace,
    BatchBody(request, _room): BatchBody<FinishRequest>,
) -> Result<Json<FinishedBody>, ApiError> {
    let FinishRequest { worker_id, subscription, items: List(items) } = request;
    let mut results: Vec<Option<ItemResult>> = items.iter().map(|_| None).collect();
    let (mut sent, mut reports) = (Vec::new(), Vec::new());
    for (place, mut item) in items.into_iter().enumerate() {
        item.worker_id = item.worker_id.or_else(|| worker_id.clone());
        item.subscription = item.subscription.or_else(|| subscription.clone());
        let (event_id, may_retry) = (item.event_id, item.may_retry());
        match item.into_report() {
            Ok((holder, held, report)) => {
                sent.push((place, holder, may_retry));
                reports.push((held, report));
            }
            Err(error) => results[place] = Some(ItemResult::new(event_id, Err(error))),
        }
    }
    let finished = queue.finish_all(reports).await?;
    for ((place, holder, may_retry), finished) in sent.into_iter().zip(finished) {
        let answer = finished.map_err(ApiError::from).and_then(|finished| answer(&finished, &holder, may_retry));
        results[place] = Some(ItemResult::new(holder.event_id, answer));
    }
    Ok(Json(FinishedBody { results: results.into_iter().flatten().collect() }))
}

impl FinishItem {
    fn new(
        event_id: i64,
        outcome: Ending,
        worker_id: Option<String>,
        lease: Option<String>,
        subscription: Option<String>,
    ) -> FinishItem {
        FinishItem {
            event_id,
            outcome,
            worker_id,
            lease,
            subscription,
            execution_time_ms: None,
            status_code: None,
            error_message: None,
            detail: None,
            retry: None,
            retry_after_ms: None,
            delay_ms: None,
        }
    }

    /// Whether it is a failure that the worker would like to be tried again.
    fn may_retry(&self) -> bool {
        self.outcome == Ending::Fail && self.retry != Some(false)
    }

    /// Who reports, the proof of holding the event, and what is reported.
    fn into_report(self) -> Result<(Holder, LeasedEvent, Report), ApiError> {
        let mut report = Report::new(self.outcome()?);
        if let Some(ms) = self.execution_time_ms {
            report = report.execution_time_ms(ms);
        }
        if let Some(code) = self.status_code {
            report = report.status_code(code);
        }
        if let Some(error) = self.error_message {
            report = report.error(error);
        }
        if let Some(detail) = self.detail {
            report = report.detail(detail);
        }
        let FinishItem { event_id, worker_id, lease, subscription, .. } = self;
        let holder = Holder { event_id, worker_id, lease, subscription };
        let held = holder.held()?;
        Ok((holder, held, report))
    }

    fn outcome(&self) -> Result<Outcome, ApiError> {
        let only = |field, given: bool, with: Ending| match given && self.outcome != with {
            true => Err(ApiError::invalid(field, "does not belong to this outcome")),
            false => Ok(()),
        };
        only("retry", self.retry.is_some(), Ending::Fail)?;
        only("retry_after_ms", self.retry_after_ms.is_some(), Ending::Fail)?;
        only("delay_ms", self.delay_ms.is_some(), Ending::Snooze)?;
        match self.outcome {
            Ending::Complete if self.error_message.is_some() => Ok(Outcome::DoneWithErrors),
            Ending::Complete => Ok(Outcome::Done),
            Ending::Fail => match (self.retry, self.retry_after_ms) {
                (Some(false), Some(_)) => Err(ApiError::invalid("retry_after_ms", "makes no sense with retry: false")),
                (Some(false), None) => Ok(Outcome::dead()),
                (_, after) => Ok(Outcome::Retry { after: after.map(Duration::from_millis) }),
            },
            Ending::Release => Ok(Outcome::Release),
            Ending::Snooze => {
                let ms = self.delay_ms.ok_or_else(|| ApiError::invalid("delay_ms", "is required to snooze"))?;
                Ok(Outcome::Snooze { delay: Duration::from_millis(ms) })
            }
        }
    }
}
