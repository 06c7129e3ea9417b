//! `/subscriptions`: create, list, pause and remove subscriptions.

use axum::Json;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Error, Queue, Subscription, SubscriptionSpec};
use windlass_api::{AddSubscriptionRequest, SubscriptionsBody};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{InNamespace, JsonBody, SubscriptionName, clamp_to_epoch};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_subscriptions, add_subscription))
        .routes(routes!(show_subscription, remove_subscription))
        .routes(routes!(pause_subscription))
        .routes(routes!(resume_subscription))
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

/// Create a subscription
///
/// It gets its own delivery of each matching event.
#[utoipa::path(
    post, path = "/subscriptions", tag = "subscriptions", security(("token" = ["admin"])),
    request_body = AddSubscriptionRequest,
    responses(
        (status = 201, description = "Created.", body = Subscription),
        (status = 404, description = "No such namespace."),
        (status = 409, description = "The name exists already."),
    )
)]
async fn add_subscription(
    InNamespace(queue): InNamespace,
    JsonBody(request, _memory): JsonBody<AddSubscriptionRequest>,
) -> Result<(StatusCode, Json<Subscription>), ApiError> {
    let mut spec = SubscriptionSpec::new(request.subscription)
        .types(request.types.unwrap_or_default().into_list())
        .tags(request.tags.unwrap_or_default().into_list())
        .policy(request.policy);
    if let Some(since) = request.since {
        spec = spec.since(clamp_to_epoch(since));
    }
    Ok((StatusCode::CREATED, Json(queue.add_subscription(spec).await?)))
}

/// Show a subscription
#[utoipa::path(
    get, path = "/subscriptions/{subscription}", tag = "subscriptions", security(("token" = ["read"])),
    params(("subscription" = String, Path, description = "Name of the subscription.")),
    responses(
        (status = 200, description = "The subscription.", body = Subscription),
        (status = 404, description = "No such subscription."),
    )
)]
async fn show_subscription(
    InNamespace(queue): InNamespace,
    SubscriptionName(name): SubscriptionName,
) -> Result<Json<Subscription>, ApiError> {
    find_subscription(&queue, &name).await.map(Json)
}

pub(super) async fn find_subscription(queue: &Queue, name: &str) -> Result<Subscription, ApiError> {
    let found = queue.subscriptions().await?.into_iter().find(|found| found.subscription == name);
    let none = || Error::SubscriptionNotFound { namespace: queue.namespace().into(), subscription: name.into() };
    Ok(found.ok_or_else(none)?)
}

/// Remove a subscription
///
/// Also removes its pending deliveries and dead letters. `main` cannot be removed.
#[utoipa::path(
    delete, path = "/subscriptions/{subscription}", tag = "subscriptions", security(("token" = ["admin"])),
    params(("subscription" = String, Path, description = "Name of the subscription.")),
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

/// Pause a subscription
///
/// Its deliveries accumulate and cannot be claimed.
#[utoipa::path(
    post, path = "/subscriptions/{subscription}/pause", tag = "subscriptions", security(("token" = ["admin"])),
    params(("subscription" = String, Path, description = "Name of the subscription.")),
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
    find_subscription(&queue, &name).await.map(Json)
}

/// Resume a subscription
#[utoipa::path(
    post, path = "/subscriptions/{subscription}/resume", tag = "subscriptions", security(("token" = ["admin"])),
    params(("subscription" = String, Path, description = "Name of the subscription.")),
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
    find_subscription(&queue, &name).await.map(Json)
}
