//! `POST /events/{id}/complete`, `fail`, `release`, `snooze`, and `POST /events/finish` for many events: a worker
//! reports the outcome of an attempt.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::Action;

use crate::{BoundedList, ErrorBody};

/// Report of a successful attempt.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742", "execution_time_ms": 1250, "status_code": 200 }))]
pub struct CompleteRequest {
    /// The worker that holds the lease. Required unless `lease` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The lease token of the claim. Identifies exactly one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// Default: `main`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// Duration of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_time_ms: Option<u64>,
    /// A number defined by the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i32>,
    /// If given, the event ends COMPLETED_WITH_ERRORS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Further information to store with the attempt: JSON, at most 64 KiB. The log shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub detail: Option<Box<RawValue>>,
}

/// Report of a failed attempt.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({
    "worker_id": "worker-02:8742", "execution_time_ms": 5000, "status_code": 500,
    "error_message": "Connection timeout: mail server unreachable."
}))]
pub struct FailRequest {
    /// The worker that holds the lease. Required unless `lease` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The lease token of the claim. Identifies exactly one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// Default: `main`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// Duration of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_time_ms: Option<u64>,
    /// A number defined by the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i32>,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Further information to store with the attempt: JSON, at most 64 KiB. The log shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub detail: Option<Box<RawValue>>,
    /// `false`: do not retry; the event becomes a dead letter immediately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
    /// Delay before the next attempt, instead of the policy's backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// Request to deliver the event again later.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742", "delay_ms": 60000 }))]
pub struct SnoozeRequest {
    /// The worker that holds the lease. Required unless `lease` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The lease token of the claim. Identifies exactly one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// Default: `main`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// Delay before the event is delivered again.
    pub delay_ms: u64,
}

/// The recorded report.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "event_id": 1001, "worker_id": "worker-02:8742", "action": "COMPLETED", "status_code": 200,
    "execution_time_ms": 1250, "created_at": "2025-12-24T10:31:15Z"
}))]
pub struct ReportBody {
    /// The event.
    pub event_id: i64,
    /// The worker that reported.
    pub worker_id: Option<String>,
    /// The recorded action.
    pub action: Action,
    /// A number defined by the worker.
    pub status_code: Option<i32>,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Duration of the attempt.
    pub execution_time_ms: Option<u64>,
    /// With FAILED: whether the event will be retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_scheduled: Option<bool>,
    /// When the event will be delivered again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<DateTime<Utc>>,
    /// When it was recorded.
    pub created_at: DateTime<Utc>,
}

/// A batch of reports.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742", "items": [
    { "event_id": 1001, "outcome": "complete", "lease": "00c0ffee00c0ffee" },
    { "event_id": 1002, "outcome": "fail", "error_message": "Connection timeout" }
] }))]
pub struct FinishRequest {
    /// For items without a worker and a lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// For items without a subscription. Default: `main`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// The reports. Each has its own result.
    #[schema(value_type = Vec<FinishItem>, max_items = 10000)]
    pub items: BoundedList<FinishItem>,
}

/// Outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishOutcome {
    /// The attempt succeeded.
    Complete,
    /// The attempt failed.
    Fail,
    /// The worker released the event.
    Release,
    /// The worker snoozed the event.
    Snooze,
}

/// One report of a batch, with the fields of the single call for its outcome.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct FinishItem {
    /// The event.
    pub event_id: i64,
    /// Outcome of the attempt.
    pub outcome: FinishOutcome,
    /// The worker that holds the lease. Default: that of the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The lease token of the claim. Identifies exactly one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// Default: that of the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// Duration of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_time_ms: Option<u64>,
    /// A number defined by the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i32>,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Further information to store with the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub detail: Option<Box<RawValue>>,
    /// With `fail`: `false` makes the event a dead letter immediately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
    /// With `fail`: delay before the next attempt, instead of the policy's backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// With `snooze`: delay before the event is delivered again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
}

impl FinishItem {
    /// A report without optional fields.
    pub fn new(event_id: i64, outcome: FinishOutcome) -> FinishItem {
        FinishItem {
            event_id,
            outcome,
            worker_id: None,
            lease: None,
            subscription: None,
            execution_time_ms: None,
            status_code: None,
            error_message: None,
            detail: None,
            retry: None,
            retry_after_ms: None,
            delay_ms: None,
        }
    }
}

/// The result of each report.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FinishedBody {
    /// In the order of the request.
    pub results: Vec<ItemResult>,
}

/// Status and body that the single call would have returned.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ItemResult {
    /// The event.
    pub event_id: i64,
    /// The status that the single call would have returned.
    pub status: u16,
    /// The recorded report, if it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<ReportBody>,
    /// The error, if the report was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<ErrorBody>,
}
