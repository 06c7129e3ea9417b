//! `POST /events`: publish one event.

use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::value::RawValue;
use windlass::{Error, NewEvent, Queue, Timestamp};

use super::event::EventBody;
use crate::error::ApiError;
use crate::extract::{InNamespace, JsonBody};

pub(super) fn routes() -> Router<Queue> {
    Router::new().route("/events", post(publish))
}

/// The type of events that name none.
const TYPE_DEFAULT: &str = "event";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct PublishRequest {
    title: String,
    description: Option<String>,
    /// Comma-separated.
    #[serde(default)]
    tags: String,
    /// Any JSON; `null` if absent.
    payload: Option<Box<RawValue>>,
    /// `event` if absent.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// Not before this instant; or
    run_at: Option<Timestamp>,
    /// not before this much time has passed.
    delay_ms: Option<u64>,
    /// Never started after this instant.
    expires_at: Option<Timestamp>,
    /// One at a time, in order, within a group.
    group_id: Option<String>,
    /// Published once, however often it is sent.
    key: Option<String>,
    /// Higher goes first.
    #[serde(default)]
    priority: i16,
    /// Instead of the policy's.
    max_retries: Option<u32>,
    /// A JSON object that travels with the event.
    metadata: Option<Box<RawValue>>,
}

impl PublishRequest {
    fn into_event(self) -> Result<NewEvent, ApiError> {
        if self.run_at.is_some() && self.delay_ms.is_some() {
            return Err(ApiError::invalid("delay_ms: give either run_at or delay_ms, not both"));
        }
        let event_type = self.event_type.unwrap_or_else(|| TYPE_DEFAULT.to_owned());
        let mut event = NewEvent::new(event_type).title(self.title).tags_text(self.tags).priority(self.priority);
        if let Some(description) = self.description {
            event = event.description(description);
        }
        if let Some(payload) = self.payload {
            event = event.payload_raw(payload);
        }
        if let Some(run_at) = self.run_at {
            event = event.run_at(run_at);
        }
        if let Some(delay_ms) = self.delay_ms {
            event = event.delay(Duration::from_millis(delay_ms));
        }
        if let Some(expires_at) = self.expires_at {
            event = event.expires_at(expires_at);
        }
        if let Some(group_id) = self.group_id {
            event = event.group(group_id);
        }
        if let Some(key) = self.key {
            event = event.key(key);
        }
        if let Some(max_retries) = self.max_retries {
            event = event.max_retries(max_retries);
        }
        if let Some(metadata) = self.metadata {
            event = event.metadata(&metadata)?;
        }
        Ok(event)
    }
}

/// 201 with the stored event; 200 with the first one, as it stands, where its key was seen before.
async fn publish(
    InNamespace(queue): InNamespace,
    JsonBody(request): JsonBody<PublishRequest>,
) -> Result<(StatusCode, Json<EventBody>), ApiError> {
    let published = queue.publish(request.into_event()?).await?;
    if !published.duplicate {
        let body = EventBody::published(published.event, published.max_retries);
        return Ok((StatusCode::CREATED, Json(body)));
    }
    let body = match queue.get(published.event.id).await {
        Ok(first) => first.try_into()?,
        // Only what was completed is not kept.
        Err(Error::EventNotFound { .. }) => EventBody::forgotten(published.event, published.max_retries),
        Err(error) => return Err(error.into()),
    };
    Ok((StatusCode::OK, Json(body)))
}
