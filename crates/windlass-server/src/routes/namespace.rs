//! `/namespaces`, `/pause` and `/resume`: namespaces and their policy.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{
    Backoff, Error, ExhaustedPolicy, GroupFailurePolicy, HandlerResultStorage, History, Namespace, NamespacePolicy,
    Policy, PolicyOverrides, Queue, UnhandledPolicy, UnrecoverablePolicy,
};

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::extract::{Args, InNamespace, JsonBody};

/// The paths that are not within a namespace.
pub(super) fn registry() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(list_namespaces)).routes(routes!(show_namespace, put_namespace))
}

/// The paths within one.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(pause_namespace)).routes(routes!(resume_namespace))
}

/// A namespace.
#[derive(Serialize, ToSchema)]
struct NamespaceBody {
    namespace: String,
    /// Anything people want to keep with it.
    #[schema(value_type = Object)]
    metadata: Box<RawValue>,
    policy: PolicyBody,
    /// Nothing is handed out while it is paused.
    paused: bool,
    /// Types that are not handed out.
    paused_types: Vec<String>,
    created_at: DateTime<Utc>,
}

/// How a namespace treats its events.
#[derive(Serialize, ToSchema)]
pub(crate) struct PolicyBody {
    /// How long a claim lasts.
    lease_ms: u64,
    /// The failure that brings `retry_count` to this is the last; null: no bound.
    max_retries: Option<u32>,
    /// How long a failed event waits before it is tried again.
    backoff: Backoff,
    /// What becomes of an event that failed for good.
    exhausted: ExhaustedPolicy,
    /// Whether an unrecoverable error of one handler ends the event although other handlers want to be retried.
    unrecoverable: UnrecoverablePolicy,
    /// What becomes of an event that no handler knows.
    unhandled: UnhandledPolicy,
    /// How many times an event may be handed out, crashes included.
    max_attempts: u32,
    /// Whether completed events are kept.
    history: History,
    /// Whether a group waits while its first event is being retried.
    group_failure: GroupFailurePolicy,
    /// Whether the handlers of an event on a node share one database transaction.
    share_transaction: bool,
    /// When a node stores the results of an event's handlers, if it has several.
    handler_results: HandlerResultStorage,
    /// Deliveries that expire within this time are claimed before all others; null: all with a deadline.
    deadline_horizon_ms: Option<u64>,
    /// For how long a published key is remembered.
    key_window_ms: u64,
    /// Events that say nothing about it expire when they have waited for so long; null: never.
    expires_after_ms: Option<u64>,
    /// For how long completed and cancelled events are kept, from their end; null: forever.
    keep_completed_ms: Option<u64>,
    /// For how long dead letters that failed are kept; null: until they are redriven or purged.
    keep_failed_ms: Option<u64>,
    /// For how long dead letters that expired are kept; null: until they are redriven or purged.
    keep_expired_ms: Option<u64>,
    /// Whether history is written to files before it is deleted.
    archive: bool,
    /// Exceptions by type: exact, or by prefix ending in `*`. The longest match wins.
    types: BTreeMap<String, PolicyOverrides>,
}

impl From<NamespacePolicy> for PolicyBody {
    fn from(NamespacePolicy { base, types }: NamespacePolicy) -> PolicyBody {
        PolicyBody {
            lease_ms: base.lease_ms,
            max_retries: base.max_retries,
            backoff: base.backoff,
            exhausted: base.exhausted,
            unrecoverable: base.unrecoverable,
            unhandled: base.unhandled,
            max_attempts: base.max_attempts,
            history: base.history,
            group_failure: base.group_failure,
            share_transaction: base.share_transaction,
            handler_results: base.handler_results,
            deadline_horizon_ms: base.deadline_horizon_ms,
            key_window_ms: base.key_window_ms,
            expires_after_ms: base.expires_after_ms,
            keep_completed_ms: base.keep_completed_ms,
            keep_failed_ms: base.keep_failed_ms,
            keep_expired_ms: base.keep_expired_ms,
            archive: base.archive,
            types,
        }
    }
}

impl From<Namespace> for NamespaceBody {
    fn from(namespace: Namespace) -> NamespaceBody {
        NamespaceBody {
            namespace: namespace.namespace,
            metadata: namespace.metadata,
            policy: namespace.policy.into(),
            paused: namespace.paused,
            paused_types: namespace.paused_types,
            created_at: namespace.created_at,
        }
    }
}

/// The namespaces.
#[derive(Serialize, ToSchema)]
struct NamespacesBody {
    namespaces: Vec<NamespaceBody>,
}

/// List namespaces
///
/// Those that the token is for.
#[utoipa::path(
    get, path = "/namespaces", tag = "namespaces", security(("token" = ["read"])),
    responses((status = 200, description = "The namespaces, by name.", body = NamespacesBody))
)]
async fn list_namespaces(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<NamespacesBody>, ApiError> {
    let all = app.queue.namespaces().await?.into_iter();
    let namespaces = all.filter(|namespace| caller.covers(&namespace.namespace)).map(Into::into).collect();
    Ok(Json(NamespacesBody { namespaces }))
}

/// Show a namespace
#[utoipa::path(
    get, path = "/namespaces/{namespace}", tag = "namespaces", security(("token" = ["read"])),
    params(("namespace" = String, Path, description = "Its name.")),
    responses(
        (status = 200, description = "The namespace.", body = NamespaceBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn show_namespace(InNamespace(queue): InNamespace) -> Result<Json<NamespaceBody>, ApiError> {
    Ok(Json(queue.describe().await?.into()))
}

/// What to set; what is absent stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "policy": { "preset": "tags", "backoff": { "kind": "fixed", "delay_ms": 300000 } } }))]
struct PutRequest {
    /// A JSON object with anything people want to keep with it.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// Replaces the whole policy: the preset, with these settings in place of its own.
    policy: Option<PolicyRequest>,
}

/// A policy: a preset, and what is different from it.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
pub(crate) struct PolicyRequest {
    /// `default`, `queue`, `bus`, `tags`, `core` or `outbox`; `default` if absent.
    preset: Option<String>,
    /// How long a claim lasts.
    lease_ms: Option<u64>,
    /// The failure that brings `retry_count` to this is the last; `null` lifts the bound.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u32>)]
    max_retries: Option<Option<u32>>,
    /// How long a failed event waits before it is tried again.
    backoff: Option<Backoff>,
    /// What becomes of an event that failed for good.
    exhausted: Option<ExhaustedPolicy>,
    /// Whether an unrecoverable error of one handler ends the event although other handlers want to be retried.
    unrecoverable: Option<UnrecoverablePolicy>,
    /// What becomes of an event that no handler knows.
    unhandled: Option<UnhandledPolicy>,
    /// How many times an event may be handed out, crashes included.
    max_attempts: Option<u32>,
    /// Whether completed events are kept.
    history: Option<History>,
    /// Whether a group waits while its first event is being retried.
    group_failure: Option<GroupFailurePolicy>,
    /// Whether the handlers of an event on a node share one database transaction.
    share_transaction: Option<bool>,
    /// When a node stores the results of an event's handlers, if it has several.
    handler_results: Option<HandlerResultStorage>,
    /// Deliveries that expire within this time are claimed before all others; `null`: all with a deadline.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    deadline_horizon_ms: Option<Option<u64>>,
    /// For how long a published key is remembered.
    key_window_ms: Option<u64>,
    /// Events that say nothing about it expire when they have waited for so long; `null`: never.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    expires_after_ms: Option<Option<u64>>,
    /// For how long completed and cancelled events are kept, from their end; `null`: forever.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    keep_completed_ms: Option<Option<u64>>,
    /// For how long dead letters that failed are kept; `null`: until they are redriven or purged.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    keep_failed_ms: Option<Option<u64>>,
    /// For how long dead letters that expired are kept; `null`: until they are redriven or purged.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    keep_expired_ms: Option<Option<u64>>,
    /// Whether history is written to files before it is deleted; a server does so that was started with `--archive-dir`.
    archive: Option<bool>,
    /// Exceptions by type: exact, or by prefix ending in `*`. The longest match wins.
    types: BTreeMap<String, PolicyOverrides>,
}

/// Tells a field that is `null` from one that is absent.
fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl TryFrom<PolicyRequest> for NamespacePolicy {
    type Error = Error;

    fn try_from(request: PolicyRequest) -> Result<NamespacePolicy, Error> {
        let preset = Policy::preset(request.preset.as_deref().unwrap_or("default"))?;
        let key_window_ms = request.key_window_ms.unwrap_or(preset.key_window_ms);
        let given = PolicyOverrides {
            lease_ms: request.lease_ms,
            max_retries: request.max_retries,
            backoff: request.backoff,
            exhausted: request.exhausted,
            unrecoverable: request.unrecoverable,
            unhandled: request.unhandled,
            max_attempts: request.max_attempts,
            history: request.history,
            group_failure: request.group_failure,
            share_transaction: request.share_transaction,
            handler_results: request.handler_results,
            deadline_horizon_ms: request.deadline_horizon_ms,
            expires_after_ms: request.expires_after_ms,
            keep_completed_ms: request.keep_completed_ms,
            keep_failed_ms: request.keep_failed_ms,
            keep_expired_ms: request.keep_expired_ms,
        };
        let archive = request.archive.unwrap_or(preset.archive);
        let base = Policy { key_window_ms, archive, ..given.apply(&preset) };
        Ok(NamespacePolicy { base, types: request.types })
    }
}

/// Create a namespace, or change it
#[utoipa::path(
    put, path = "/namespaces/{namespace}", tag = "namespaces", security(("token" = ["admin"])),
    params(("namespace" = String, Path, description = "1 to 63 ASCII letters, digits, `-`, `_` and `.`.")),
    request_body = PutRequest,
    responses(
        (status = 200, description = "Changed.", body = NamespaceBody),
        (status = 201, description = "Created.", body = NamespaceBody),
    )
)]
async fn put_namespace(
    InNamespace(queue): InNamespace,
    JsonBody(request, _room): JsonBody<PutRequest>,
) -> Result<(StatusCode, Json<NamespaceBody>), ApiError> {
    let policy = request.policy.map(NamespacePolicy::try_from).transpose()?;
    let status = match queue.describe().await {
        Ok(_) => StatusCode::OK,
        Err(Error::NamespaceNotFound { .. }) => StatusCode::CREATED,
        Err(error) => return Err(error.into()),
    };
    let queue = queue.put_namespace(queue.namespace(), policy, request.metadata).await?;
    Ok((status, Json(queue.describe().await?.into())))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PauseArgs {
    /// Only this type, exact or by prefix ending in `*`; the whole namespace if absent.
    #[serde(rename = "type")]
    #[param(example = "order.*")]
    event_type: Option<String>,
}

/// Hand out nothing more
///
/// Publishing goes on, and so does what is held.
#[utoipa::path(
    post, path = "/pause", tag = "operate", security(("token" = ["admin"])),
    params(PauseArgs),
    responses(
        (status = 200, description = "Paused.", body = NamespaceBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn pause_namespace(
    InNamespace(queue): InNamespace,
    Args(args): Args<PauseArgs>,
) -> Result<Json<NamespaceBody>, ApiError> {
    match &args.event_type {
        Some(event_type) => queue.pause_type(event_type).await?,
        None => queue.pause().await?,
    }
    described(&queue).await
}

/// Hand out again
#[utoipa::path(
    post, path = "/resume", tag = "operate", security(("token" = ["admin"])),
    params(PauseArgs),
    responses(
        (status = 200, description = "Resumed.", body = NamespaceBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn resume_namespace(
    InNamespace(queue): InNamespace,
    Args(args): Args<PauseArgs>,
) -> Result<Json<NamespaceBody>, ApiError> {
    match &args.event_type {
        Some(event_type) => queue.resume_type(event_type).await?,
        None => queue.resume().await?,
    }
    described(&queue).await
}

async fn described(queue: &Queue) -> Result<Json<NamespaceBody>, ApiError> {
    Ok(Json(queue.describe().await?.into()))
}
