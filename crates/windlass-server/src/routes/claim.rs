//! `GET /events/subscribe` and `POST /events/claim`: claim events.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Delivery, Outcome, Queue, Report, Status};
use windlass_api::{ClaimRequest, ClaimedBody, ClaimedEventBody, NameList};

use super::event_body::{count_fitting, take_options};
use super::wrong_method;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{InNamespace, JsonBody, QueryArgs};
use crate::metrics::GaugeGuard;

pub(super) fn routes() -> OpenApiRouter<App> {
    let (schemas, paths, subscribe) = routes!(subscribe);
    // axum would answer HEAD with the GET handler, which would claim an event and discard it.
    OpenApiRouter::default().routes((schemas, paths, subscribe.head(wrong_method))).routes(routes!(claim))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SubscribeArgs {
    /// Comma-separated. Events with any of these tags match.
    #[param(value_type = String, required = true, example = "email,sms")]
    tags: Option<NameList>,
    /// Name of the worker, such as `host:pid`.
    #[param(required = true, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// Comma-separated types, each exact or a prefix ending in `*`. Default: all.
    #[param(value_type = Option<String>)]
    types: Option<NameList>,
    /// Default: `main`.
    subscription: Option<String>,
    /// How long to wait if no event is ready, at most 60000. Default: 0.
    wait_ms: Option<u64>,
    /// Lease duration, instead of the policy's.
    lease_ms: Option<u64>,
}

impl From<SubscribeArgs> for ClaimRequest {
    fn from(args: SubscribeArgs) -> ClaimRequest {
        ClaimRequest {
            worker_id: args.worker_id.unwrap_or_default(),
            tags: args.tags,
            types: args.types,
            subscription: args.subscription,
            max: Some(1),
            group_run: None,
            wait_ms: args.wait_ms,
            lease_ms: args.lease_ms,
        }
    }
}

fn library_request(request: ClaimRequest) -> windlass::ClaimRequest {
    let mut claim = windlass::ClaimRequest::new(request.worker_id)
        .tags(request.tags.unwrap_or_default().into_list())
        .types(request.types.unwrap_or_default().into_list())
        .max(request.max.unwrap_or(1))
        .group_run(request.group_run.unwrap_or(1))
        .wait(Duration::from_millis(request.wait_ms.unwrap_or(0)));
    if let Some(subscription) = request.subscription {
        claim = claim.subscription(subscription);
    }
    if let Some(lease_ms) = request.lease_ms {
        claim = claim.lease(Duration::from_millis(lease_ms));
    }
    claim
}

fn claimed_event(delivery: Delivery) -> ClaimedEventBody {
    let Delivery { mut event, lease, attempts, retry_count, max_retries, lease_expires_at, .. } = delivery;
    ClaimedEventBody {
        options: take_options(&mut event),
        id: event.id,
        event_type: event.event_type,
        title: event.title,
        description: event.description,
        tags: event.tags,
        status: Status::Processing,
        payload: event.payload,
        attempt: attempts,
        retry_count,
        max_retries,
        lease: lease.to_string(),
        lease_expires_at,
        created_at: event.created_at,
    }
}

/// Claim one event
///
/// 200 with a claimed event, or 204 if no event is ready.
#[utoipa::path(
    get, path = "/events/subscribe", tag = "consume", security(("token" = ["consume"])),
    params(SubscribeArgs),
    responses(
        (status = 200, description = "The claimed event.", body = ClaimedEventBody, headers(
            ("traceparent" = Option<String>, description = "The publisher's trace, if it sent one."),
        )),
        (status = 204, description = "No event is ready."),
        (status = 404, description = "No such namespace or subscription."),
        (status = 429, description = "Too many claims are waiting."),
    )
)]
async fn subscribe(
    State(app): State<App>,
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<SubscribeArgs>,
) -> Result<Response, ApiError> {
    if args.tags.as_ref().is_none_or(NameList::is_empty) {
        return Err(ApiError::invalid("tags", "is required: the tags to subscribe to, as in `tags=email,sms`"));
    }
    if args.worker_id.as_ref().is_none_or(String::is_empty) {
        return Err(ApiError::invalid("worker_id", "is required: the worker's name, as in `worker_id=host:pid`"));
    }
    let claimed = claim_deliveries(&app, &queue, args.into()).await?.pop();
    // A GET that claims must never be answered from a cache.
    let never_cached = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok(match claimed {
        Some(delivery) => {
            let trace = traceparent_of(&delivery).map(|parent| [(HeaderName::from_static("traceparent"), parent)]);
            match trace {
                Some(trace) => (never_cached, trace, Json(claimed_event(delivery))).into_response(),
                None => (never_cached, Json(claimed_event(delivery))).into_response(),
            }
        }
        None => (StatusCode::NO_CONTENT, never_cached).into_response(),
    })
}

/// The publisher's trace, as a `traceparent` header.
fn traceparent_of(delivery: &Delivery) -> Option<HeaderValue> {
    #[derive(Deserialize)]
    struct Trace {
        traceparent: String,
    }
    let metadata = delivery.event.metadata.as_ref()?;
    let Trace { traceparent } = serde_json::from_str(metadata.get()).ok()?;
    HeaderValue::from_str(&traceparent).ok()
}

/// Claim events
///
/// Near deadlines first, then by priority, then the oldest. The list is empty if no event is ready. A response holds
/// payloads of at most 32 MiB together; the remaining events stay in the queue.
#[utoipa::path(
    post, path = "/events/claim", tag = "consume", security(("token" = ["consume"])),
    request_body = ClaimRequest,
    responses(
        (status = 200, description = "The claimed events; possibly none.", body = ClaimedBody),
        (status = 404, description = "No such namespace or subscription."),
        (status = 429, description = "Too many claims are waiting."),
    )
)]
async fn claim(
    State(app): State<App>,
    InNamespace(queue): InNamespace,
    JsonBody(request, _memory): JsonBody<ClaimRequest>,
) -> Result<Json<ClaimedBody>, ApiError> {
    let deliveries = claim_deliveries(&app, &queue, request).await?;
    Ok(Json(ClaimedBody { events: deliveries.into_iter().map(claimed_event).collect() }))
}

async fn claim_deliveries(app: &App, queue: &Queue, request: ClaimRequest) -> Result<Vec<Delivery>, ApiError> {
    let waits = request.wait_ms.is_some_and(|ms| ms > 0);
    let _permit = waits.then(|| app.acquire_waiting_claim()).transpose()?;
    let _gauge = waits.then(|| GaugeGuard::new(&app.metrics.waiting_claims));
    // On shutdown the queue ends the wait, so that nothing is claimed for a client that will not receive it.
    let mut deliveries = queue.claim(library_request(request)).await?;
    let rest = deliveries.split_off(count_fitting(deliveries.iter().map(|delivery| &*delivery.event.payload)));
    release(queue, &rest).await?;
    if waits && deliveries.is_empty() && app.is_stopping() {
        return Err(shutting_down());
    }
    app.hub.publish_claims(queue.namespace(), &deliveries);
    Ok(deliveries)
}

/// Releases the deliveries that do not fit into the response.
async fn release(queue: &Queue, rest: &[Delivery]) -> Result<(), ApiError> {
    if !rest.is_empty() {
        let released = rest.iter().map(|delivery| (delivery.into(), Report::new(Outcome::Release)));
        queue.finish_all(released.collect()).await?;
    }
    Ok(())
}

fn shutting_down() -> ApiError {
    ApiError::unavailable("shutting_down", "the server is shutting down; retry the claim")
}
