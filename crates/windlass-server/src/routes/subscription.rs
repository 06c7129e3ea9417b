//! `/subscriptions`: who else is told.

use axum::Json;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Error, PolicyOverrides, Queue, Subscription, SubscriptionSpec};

use super::names::Names;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{InNamespace, JsonBody, SubscriptionName, known};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_subscriptions, add_subscription))
        .routes(routes!(show_subscription, remove_subscription))
        .routes(routes!(pause_subscription))
        .routes(routes!(resume_subscription))
}

/// The subscriptions.
#[derive(Serialize, ToSchema)]
struct SubscriptionsBody {
    subscriptions: Vec<Subscription>,
}

/// List subscriptions
#[utoipa::path(
    get, path = "/subscriptions", tag = "subscriptions", security(("token" = ["read"])),
    responses(
        (status = 200, description = "The subscriptions, by name.", body = SubscriptionsBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn list_subscriptions(InNamespace(queue): InNamespace) -> Result<Json<SubscriptionsBody>, ApiError> {
    Ok(Json(SubscriptionsBody { subscriptions: queue.subscriptions().await? }))
}

/// A subscription to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "subscription": "audit", "types": "order.*" }))]
struct AddRequest {
    /// Its name: 1 to 63 ASCII letters, digits, `-`, `_` and `.`.
    subscription: String,
    /// Only these types, each exact or a prefix ending in `*`; all if absent.
    types: Option<Names>,
    /// Only events with any of these tags; all if absent.
    tags: Option<Names>,
    /// What it does differently from its namespace.
    #[serde(default)]
    policy: PolicyOverrides,
    /// Also what was published since then and is still in the history.
    since: Option<DateTime<Utc>>,
}

/// Create a subscription
///
/// It gets its own delivery of each event that matches.
#[utoipa::path(
    post, path = "/subscriptions", tag = "subscriptions", security(("token" = ["admin"])),
    request_body = AddRequest,
    responses(
        (status = 201, description = "Created.", body = Subscription),
        (status = 404, description = "No such namespace."),
        (status = 409, description = "There is one of that name."),
    )
)]
async fn add_subscription(
    InNamespace(queue): InNamespace,
    JsonBody(request, _room): JsonBody<AddRequest>,
) -> Result<(StatusCode, Json<Subscription>), ApiError> {
    let mut spec = SubscriptionSpec::new(request.subscription)
        .types(request.types.unwrap_or_default().into_list())
        .tags(request.tags.unwrap_or_default().into_list())
        .policy(request.policy);
    if let Some(since) = request.since {
        spec = spec.since(known(since));
    }
    Ok((StatusCode::CREATED, Json(queue.add_subscription(spec).await?)))
}

/// Show a subscription
#[utoipa::path(
    get, path = "/subscriptions/{subscription}", tag = "subscriptions", security(("token" = ["read"])),
    params(("subscription" = String, Path, description = "Its name.")),
    responses(
        (status = 200, description = "The subscription.", body = Subscription),
        (status = 404, description = "No such subscription."),
    )
)]
async fn show_subscription(
    InNamespace(queue): InNamespace,
    SubscriptionName(name): SubscriptionName,
) -> Result<Json<Subscription>, ApiError> {
    find(&queue, &name).await.map(Json)
}

pub(super) async fn find(queue: &Queue, name: &str) -> Result<Subscription, ApiError> {
    let found = queue.subscriptions().await?.into_iter().find(|found| found.subscription == name);
    let none = || Error::SubscriptionNotFound { namespace: queue.namespace().into(), subscription: name.into() };
    Ok(found.ok_or_else(none)?)
}

/// Remove a subscription
///
/// With its waiting deliveries and dead letters. `main` stays.
#[utoipa::path(
    delete, path = "/subscriptions/{subscription}", tag = "subscriptions", security(("token" = ["admin"])),
    params(("subscription" = String, Path, description = "Its name.")),
    responses(
        (status = 204, description = "Removed."),
        (status = 404, description = "No such subscription."),
    )
)]
async fn remove_subscription(
    InNamespace(queue): InNamespace,
    SubscriptionName(name): SubscriptionName,
) -> Result<StatusCode, ApiError> {
    queue.remove_subscription(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Hand out nothing more to a subscription
///
/// Its deliveries still gather.
#[utoipa::path(
    post, path = "/subscriptions/{subscription}/pause", tag = "subscriptions", security(("token" = ["admin"])),
    params(("subscription" = String, Path, description = "Its name.")),
    responses(
        (status = 200, description = "Paused.", body = Subscription),
        (status = 404, description = "No such subscription."),
    )
)]
async fn pause_subscription(
    InNamespace(queue): InNamespace,
    SubscriptionName(name): SubscriptionName,
) -> Result<Json<Subscription>, ApiError> {
    queue.pause_subscription(&name).await?;
    find(&queue, &name).await.map(Json)
}

/// Hand out to a subscription again
#[utoipa::path(
    post, path = "/subscriptions/{subscription}/resume", tag = "subscriptions", security(("token" = ["admin"])),
    params(("subscription" = String, Path, description = "Its name.")),
    responses(
        (status = 200, description = "Resumed.", body = Subscription),
        (status = 404, description = "No such subscription."),
    )
)]
async fn resume_subscription(
    InNamespace(queue): InNamespace,
    SubscriptionName(name): SubscriptionName,
) -> Result<Json<Subscription>, ApiError> {
    queue.resume_subscription(&name).await?;
    find(&queue, &name).await.map(Json)
}
