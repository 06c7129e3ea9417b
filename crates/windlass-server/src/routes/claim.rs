//! `GET /events/subscribe`: take one event.

use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass::{ClaimRequest, Delivery, Queue, Status, Timestamp};

use super::wrong_method;
use crate::error::ApiError;
use crate::extract::{Args, InNamespace};

pub(super) fn routes() -> Router<Queue> {
    // Without its own answer, HEAD would take an event and throw it away.
    Router::new().route("/events/subscribe", get(subscribe).head(wrong_method))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscribeArgs {
    /// Comma-separated; an event with any of them matches.
    tags: Option<String>,
    /// `host:pid`, say.
    worker_id: Option<String>,
}

#[derive(Serialize)]
struct TakenBody {
    id: i64,
    title: Option<String>,
    tags: String,
    status: Status,
    payload: Box<RawValue>,
    retry_count: u32,
    max_retries: Option<u32>,
    created_at: Timestamp,
}

impl From<Delivery> for TakenBody {
    fn from(delivery: Delivery) -> TakenBody {
        TakenBody {
            id: delivery.event.id,
            title: delivery.event.title,
            tags: delivery.event.tags,
            status: Status::Processing,
            payload: delivery.event.payload,
            retry_count: delivery.retry_count,
            max_retries: delivery.max_retries,
            created_at: delivery.event.created_at,
        }
    }
}

/// 200 with an event that is now the worker's, or 204.
async fn subscribe(InNamespace(queue): InNamespace, Args(args): Args<SubscribeArgs>) -> Result<Response, ApiError> {
    let tags = required("tags", args.tags, "the tags to subscribe to, as in `tags=email,sms`")?;
    let worker_id = required("worker_id", args.worker_id, "who takes the event, as in `worker_id=host:pid`")?;
    let request = ClaimRequest::new(worker_id).tags(tags.split(',').map(str::trim));
    let taken = queue.claim(request).await?.pop();
    let answer = match taken {
        Some(delivery) => Json(TakenBody::from(delivery)).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    };
    Ok(([(CACHE_CONTROL, "no-store")], answer).into_response())
}

fn required(name: &str, value: Option<String>, meaning: &str) -> Result<String, ApiError> {
    let value = value.filter(|value| !value.is_empty());
    value.ok_or_else(|| ApiError::invalid(format!("{name}: is required: {meaning}")))
}
