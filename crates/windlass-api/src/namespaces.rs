//! `/namespaces`: namespaces and their policies.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::{
    Backoff, ExhaustedPolicy, GroupFailurePolicy, HandlerResultStorage, History, PolicyOverrides, UnhandledPolicy,
    UnrecoverablePolicy,
};

/// A namespace.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NamespaceBody {
    /// Name of the namespace.
    pub namespace: String,
    /// A JSON object defined by the user.
    #[schema(value_type = Object)]
    pub metadata: Box<RawValue>,
    /// The policy of the namespace.
    pub policy: PolicyBody,
    /// Whether the namespace is paused: nothing can be claimed from it.
    pub paused: bool,
    /// Types that cannot be claimed.
    pub paused_types: Vec<String>,
    /// When it was created.
    pub created_at: DateTime<Utc>,
}

/// The policy of a namespace.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PolicyBody {
    /// Lease duration.
    pub lease_ms: u64,
    /// The failure that raises `retry_count` to this value is the last; null: no limit.
    pub max_retries: Option<u32>,
    /// Delay before a failed event is retried.
    pub backoff: Backoff,
    /// What happens to an event whose retries are exhausted.
    pub exhausted: ExhaustedPolicy,
    /// Whether an unrecoverable error of one handler ends the event even if other handlers want a retry.
    pub unrecoverable: UnrecoverablePolicy,
    /// What happens to an event without a handler.
    pub unhandled: UnhandledPolicy,
    /// Maximum number of attempts, including those that end in a crash.
    pub max_attempts: u32,
    /// Whether completed events are kept in the history.
    pub history: History,
    /// Whether a group waits while its first event is retried.
    pub group_failure: GroupFailurePolicy,
    /// Whether the handlers of an event on a node share one database transaction.
    pub share_transaction: bool,
    /// When a node stores the results of the handlers of an event with several handlers.
    pub handler_results: HandlerResultStorage,
    /// Deliveries that expire within this time are claimed before all others; null: all deliveries with a deadline.
    pub deadline_horizon_ms: Option<u64>,
    /// How long an idempotency key is remembered.
    pub key_window_ms: u64,
    /// Default deadline of events, relative to the time from which they can be delivered; null: none.
    pub expires_after_ms: Option<u64>,
    /// Retention of completed and canceled events, from their end; null: forever.
    pub keep_completed_ms: Option<u64>,
    /// Retention of failed dead letters; null: until they are redriven or purged.
    pub keep_failed_ms: Option<u64>,
    /// Retention of expired dead letters; null: until they are redriven or purged.
    pub keep_expired_ms: Option<u64>,
    /// Whether history is archived to files before it is deleted.
    pub archive: bool,
    /// Overrides by type: exact, or a prefix ending in `*`. The longest match wins.
    pub types: BTreeMap<String, PolicyOverrides>,
}

/// The namespaces.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NamespacesBody {
    /// By name.
    pub namespaces: Vec<NamespaceBody>,
}

/// Settings of a namespace. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "policy": { "preset": "tags", "backoff": { "kind": "fixed", "delay_ms": 300000 } } }))]
pub struct PutNamespaceRequest {
    /// A JSON object defined by the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Box<RawValue>>,
    /// Replaces the whole policy with the preset and these overrides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRequest>,
}

/// A policy: a preset and overrides.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
pub struct PolicyRequest {
    /// `default`, `queue`, `bus`, `tags`, `core` or `outbox`. Default: `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Lease duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The failure that raises `retry_count` to this value is the last; `null`: no limit.
    #[serde(deserialize_with = "present_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub max_retries: Option<Option<u32>>,
    /// Delay before a failed event is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// What happens to an event whose retries are exhausted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhausted: Option<ExhaustedPolicy>,
    /// Whether an unrecoverable error of one handler ends the event even if other handlers want a retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrecoverable: Option<UnrecoverablePolicy>,
    /// What happens to an event without a handler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhandled: Option<UnhandledPolicy>,
    /// Maximum number of attempts, including those that end in a crash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Whether completed events are kept in the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// Whether a group waits while its first event is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_failure: Option<GroupFailurePolicy>,
    /// Whether the handlers of an event on a node share one database transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_transaction: Option<bool>,
    /// When a node stores the results of the handlers of an event with several handlers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler_results: Option<HandlerResultStorage>,
    /// Deliveries that expire within this time are claimed before all others; `null`: all deliveries with a deadline.
    #[serde(deserialize_with = "present_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub deadline_horizon_ms: Option<Option<u64>>,
    /// How long an idempotency key is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_window_ms: Option<u64>,
    /// Default deadline of events, relative to the time from which they can be delivered; `null`: none.
    #[serde(deserialize_with = "present_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub expires_after_ms: Option<Option<u64>>,
    /// Retention of completed and canceled events, from their end; `null`: forever.
    #[serde(deserialize_with = "present_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub keep_completed_ms: Option<Option<u64>>,
    /// Retention of failed dead letters; `null`: until they are redriven or purged.
    #[serde(deserialize_with = "present_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub keep_failed_ms: Option<Option<u64>>,
    /// Retention of expired dead letters; `null`: until they are redriven or purged.
    #[serde(deserialize_with = "present_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub keep_expired_ms: Option<Option<u64>>,
    /// Whether history is archived to files before it is deleted. Only servers started with `--archive-dir` do this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<bool>,
    /// Overrides by type: exact, or a prefix ending in `*`. The longest match wins.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, PolicyOverrides>,
}

/// Distinguishes a field that is `null` from an absent one.
fn present_or_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
