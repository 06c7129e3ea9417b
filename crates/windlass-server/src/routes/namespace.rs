//! `/namespaces`, `/pause` and `/resume`: namespaces and their policies.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Error, Namespace, NamespacePolicy, Policy, PolicyOverrides};
use windlass_api::{NamespaceBody, NamespacesBody, PolicyBody, PolicyRequest, PutNamespaceRequest};

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::extract::{InNamespace, JsonBody, QueryArgs};

/// Routes that exist only at the root.
pub(super) fn root_routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(list_namespaces)).routes(routes!(show_namespace, put_namespace))
}

/// Routes within a namespace.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(pause_namespace)).routes(routes!(resume_namespace))
}

pub(crate) fn policy_body(NamespacePolicy { base, types }: NamespacePolicy) -> PolicyBody {
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

fn namespace_body(namespace: Namespace) -> NamespaceBody {
    NamespaceBody {
        namespace: namespace.namespace,
        metadata: namespace.metadata,
        policy: policy_body(namespace.policy),
        paused: namespace.paused,
        paused_types: namespace.paused_types,
        created_at: namespace.created_at,
    }
}

/// List namespaces
///
/// The namespaces that the token covers.
#[utoipa::path(
    get, path = "/namespaces", tag = "namespaces", security(("token" = ["read"])),
    responses((status = 200, description = "The namespaces, by name.", body = NamespacesBody))
)]
async fn list_namespaces(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<NamespacesBody>, ApiError> {
    let all = app.queue.namespaces().await?.into_iter();
    let namespaces = all.filter(|namespace| caller.covers(&namespace.namespace)).map(namespace_body).collect();
    Ok(Json(NamespacesBody { namespaces }))
}

/// Show a namespace
#[utoipa::path(
    get, path = "/namespaces/{namespace}", tag = "namespaces", security(("token" = ["read"])),
    params(("namespace" = String, Path, description = "Name of the namespace.")),
    responses(
        (status = 200, description = "The namespace.", body = NamespaceBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn show_namespace(InNamespace(queue): InNamespace) -> Result<Json<NamespaceBody>, ApiError> {
    Ok(Json(namespace_body(queue.describe().await?)))
}

pub(crate) fn namespace_policy(request: PolicyRequest) -> Result<NamespacePolicy, Error> {
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

/// Create or change a namespace
#[utoipa::path(
    put, path = "/namespaces/{namespace}", tag = "namespaces", security(("token" = ["admin"])),
    params(("namespace" = String, Path, description = "1 to 63 ASCII letters, digits, `-`, `_` and `.`.")),
    request_body = PutNamespaceRequest,
    responses(
        (status = 200, description = "Changed.", body = NamespaceBody),
        (status = 201, description = "Created.", body = NamespaceBody),
    )
)]
async fn put_namespace(
    InNamespace(queue): InNamespace,
    JsonBody(request, _memory): JsonBody<PutNamespaceRequest>,
) -> Result<(StatusCode, Json<NamespaceBody>), ApiError> {
    let policy = request.policy.map(namespace_policy).transpose()?;
    let status = match queue.describe().await {
        Ok(_) => StatusCode::OK,
        Err(Error::NamespaceNotFound { .. }) => StatusCode::CREATED,
        Err(error) => return Err(error.into()),
    };
    let queue = queue.put_namespace(queue.namespace(), policy, request.metadata).await?;
    Ok((status, Json(namespace_body(queue.describe().await?))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PauseArgs {
    /// Only this type, exact or a prefix ending in `*`. Default: the whole namespace.
    #[serde(rename = "type")]
    #[param(example = "order.*")]
    event_type: Option<String>,
}

/// Pause a namespace or a type
///
/// Nothing can be claimed. Publishing continues, and workers can finish the events that they hold.
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
    QueryArgs(args): QueryArgs<PauseArgs>,
) -> Result<Json<NamespaceBody>, ApiError> {
    match &args.event_type {
        Some(event_type) => queue.pause_type(event_type).await?,
        None => queue.pause().await?,
    }
    show_namespace(InNamespace(queue)).await
}

/// Resume a namespace or a type
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
    QueryArgs(args): QueryArgs<PauseArgs>,
) -> Result<Json<NamespaceBody>, ApiError> {
    match &args.event_type {
        Some(event_type) => queue.resume_type(event_type).await?,
        None => queue.resume().await?,
    }
    show_namespace(InNamespace(queue)).await
}
