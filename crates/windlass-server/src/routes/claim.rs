//! `GET /events/subscribe` and `POST /events/claim`: take events.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{ClaimRequest, Delivery, Outcome, Queue, Report, Status};

use super::event::{EventOptions, fitting, take_options};
use super::names::Names;
use super::wrong_method;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, InNamespace, JsonBody};
use crate::metrics::Counted;

pub(super) fn routes() -> OpenApiRouter<App> {
    let (schemas, paths, subscribe) = routes!(subscribe);
    // Without its own answer, HEAD would take an event and throw it away.
    OpenApiRouter::default().routes((schemas, paths, subscribe.head(wrong_method))).routes(routes!(claim))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SubscribeArgs {
    /// Comma-separated; an event with any of them matches.
    #[param(value_type = String, required = true, example = "email,sms")]
    tags: Option<Names>,
    /// Who takes it, such as `host:pid`.
    #[param(required = true, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// Comma-separated types, each exact or a prefix ending in `*`; all if absent.
    #[param(value_type = Option<String>)]
    types: Option<Names>,
    /// `main` if absent.
    subscription: Option<String>,
    /// How long to wait for an event to come, at most 60000. 0 if absent.
    wait_ms: Option<u64>,
    /// How long to hold it, instead of the policy's lease.
    lease_ms: Option<u64>,
}

/// What to take.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(as = ClaimRequest, example = json!({ "worker_id": "worker-02:8742", "max": 100, "wait_ms": 0 }))]
struct ClaimBody {
    /// Who takes them, such as `host:pid`.
    worker_id: String,
    /// An event with any of these tags matches; all if absent.
    tags: Option<Names>,
    /// Types, each exact or a prefix ending in `*`; all if absent.
    types: Option<Names>,
    /// `main` if absent.
    subscription: Option<String>,
    /// At most so many; 1 if absent. A run counts as one.
    max: Option<usize>,
    /// Up to this many consecutive events of a group, in order and under one lease; 1 if absent. Handle them in order. If
    /// one fails, is released or loses its lease, the later ones are released with it.
    group_run: Option<usize>,
    /// How long to wait for the first to come, at most 60000. 0 if absent.
    wait_ms: Option<u64>,
    /// How long to hold them, instead of the policy's lease.
    lease_ms: Option<u64>,
}

impl From<SubscribeArgs> for ClaimBody {
    fn from(args: SubscribeArgs) -> ClaimBody {
        ClaimBody {
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

impl From<ClaimBody> for ClaimRequest {
    fn from(body: ClaimBody) -> ClaimRequest {
        let mut claim = ClaimRequest::new(body.worker_id)
            .tags(body.tags.unwrap_or_default().into_list())
            .types(body.types.unwrap_or_default().into_list())
            .max(body.max.unwrap_or(1))
            .group_run(body.group_run.unwrap_or(1))
            .wait(Duration::from_millis(body.wait_ms.unwrap_or(0)));
        if let Some(subscription) = body.subscription {
            claim = claim.subscription(subscription);
        }
        if let Some(lease_ms) = body.lease_ms {
            claim = claim.lease(Duration::from_millis(lease_ms));
        }
        claim
    }
}

/// An event that is now the worker's.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "id": 1001, "type": "event", "title": "Send Email Notification", "description": null,
    "tags": "email,notification", "status": "PROCESSING", "payload": { "user_id": 12345 }, "attempt": 1,
    "retry_count": 0, "max_retries": 3, "lease": "00c0ffee00c0ffee",
    "lease_expires_at": "2025-12-24T10:31:45Z", "created_at": "2025-12-24T10:30:00Z"
}))]
struct TakenBody {
    id: i64,
    /// What kind of event it is.
    #[serde(rename = "type")]
    event_type: String,
    title: Option<String>,
    description: Option<String>,
    /// Comma-separated, as it was sent.
    tags: String,
    /// PROCESSING.
    status: Status,
    /// As it was sent.
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    /// Which time it is handed out, from 1.
    attempt: u32,
    /// How many failures were reported.
    retry_count: u32,
    /// The failure that brings `retry_count` to this is the last; null: no bound.
    max_retries: Option<u32>,
    /// The proof of holding it. Sent back when the work is done, it makes sure that this very attempt is meant.
    lease: String,
    /// When others may have it, unless the worker reports or sends a heartbeat before.
    lease_expires_at: DateTime<Utc>,
    created_at: DateTime<Utc>,
    #[serde(flatten)]
    options: EventOptions,
}

impl From<Delivery> for TakenBody {
    fn from(delivery: Delivery) -> TakenBody {
        let Delivery { mut event, lease, attempts, retry_count, max_retries, lease_expires_at, .. } = delivery;
        TakenBody {
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
}

/// What was taken.
#[derive(Serialize, ToSchema)]
struct ClaimedBody {
    /// None of them is anybody else's until its lease ends.
    events: Vec<TakenBody>,
}

/// Take one event
///
/// 200 with an event that is now the worker's, or 204 where there is none.
#[utoipa::path(
    get, path = "/events/subscribe", tag = "consume", security(("token" = ["consume"])),
    params(SubscribeArgs),
    responses(
        (status = 200, description = "An event, now held by the worker.", body = TakenBody, headers(
            ("traceparent" = Option<String>, description = "The publisher's trace, where it sent one."),
        )),
        (status = 204, description = "There is none."),
        (status = 404, description = "No such namespace or subscription."),
        (status = 429, description = "Too many claims are waiting."),
    )
)]
async fn subscribe(
    State(app): State<App>,
    InNamespace(queue): InNamespace,
    Args(args): Args<SubscribeArgs>,
) -> Result<Response, ApiError> {
    if args.tags.as_ref().is_none_or(Names::is_empty) {
        return Err(ApiError::invalid("tags", "is required: the tags to subscribe to, as in `tags=email,sms`"));
    }
    if args.worker_id.as_ref().is_none_or(String::is_empty) {
        return Err(ApiError::invalid("worker_id", "is required: the worker's name, as in `worker_id=host:pid`"));
    }
    let taken = take(&app, &queue, args.into()).await?.pop();
    // A GET that takes must never be answered from a cache.
    let never_cached = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok(match taken {
        Some(delivery) => {
            let trace = trace_of(&delivery).map(|parent| [(HeaderName::from_static("traceparent"), parent)]);
            match trace {
                Some(trace) => (never_cached, trace, Json(TakenBody::from(delivery))).into_response(),
                None => (never_cached, Json(TakenBody::from(delivery))).into_response(),
            }
        }
        None => (StatusCode::NO_CONTENT, never_cached).into_response(),
    })
}

/// The publisher's trace, as a header to go on with.
fn trace_of(delivery: &Delivery) -> Option<HeaderValue> {
    #[derive(Deserialize)]
    struct Trace {
        traceparent: String,
    }
    let metadata = delivery.event.metadata.as_ref()?;
    let Trace { traceparent } = serde_json::from_str(metadata.get()).ok()?;
    HeaderValue::from_str(&traceparent).ok()
}

/// Take many events
///
/// Near deadlines first, then by priority, then the earliest. An empty list where there is nothing. Payloads of
/// 32 MiB together are enough for one answer: the rest is left for the next.
#[utoipa::path(
    post, path = "/events/claim", tag = "consume", security(("token" = ["consume"])),
    request_body = ClaimBody,
    responses(
        (status = 200, description = "Events, now held by the worker; perhaps none.", body = ClaimedBody),
        (status = 404, description = "No such namespace or subscription."),
        (status = 429, description = "Too many claims are waiting."),
    )
)]
async fn claim(
    State(app): State<App>,
    InNamespace(queue): InNamespace,
    JsonBody(request, _room): JsonBody<ClaimBody>,
) -> Result<Json<ClaimedBody>, ApiError> {
    let taken = take(&app, &queue, request).await?;
    Ok(Json(ClaimedBody { events: taken.into_iter().map(Into::into).collect() }))
}

async fn take(app: &App, queue: &Queue, request: ClaimBody) -> Result<Vec<Delivery>, ApiError> {
    let waits = request.wait_ms.is_some_and(|ms| ms > 0);
    let _place = waits.then(|| app.wait_place()).transpose()?;
    let _counted = waits.then(|| Counted::new(&app.metrics.waiting_claims));
    // When the server stops the queue ends the wait, so that nothing is taken for nobody.
    let mut taken = queue.claim(request.into()).await?;
    let rest = taken.split_off(fitting(taken.iter().map(|delivery| &*delivery.event.payload)));
    give_back(queue, &rest).await?;
    if waits && taken.is_empty() && app.is_stopping() {
        return Err(shutting_down());
    }
    app.hub.picked(queue.namespace(), &taken);
    Ok(taken)
}

/// What does not fit into the answer is anybody's again, at once.
async fn give_back(queue: &Queue, rest: &[Delivery]) -> Result<(), ApiError> {
    if !rest.is_empty() {
        let released = rest.iter().map(|delivery| (delivery.into(), Report::new(Outcome::Release)));
        queue.finish_all(released.collect()).await?;
    }
    Ok(())
}

fn shutting_down() -> ApiError {
    ApiError::unavailable(
        "shutting_down",
        "the server is stopping and waits no longer; ask again, another may be there",
    )
}
