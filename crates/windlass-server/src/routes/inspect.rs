//! `GET /events/{id}`: how an event stands, and what happened to it.

use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use windlass::{MAIN, Queue};

use super::event::EventBody;
use crate::error::ApiError;
use crate::extract::{Args, EventId, InNamespace};

pub(super) fn routes() -> Router<Queue> {
    Router::new().route("/events/{id}", get(show))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShowArgs {
    #[serde(default)]
    include_logs: bool,
}

async fn show(
    InNamespace(queue): InNamespace,
    EventId(id): EventId,
    Args(args): Args<ShowArgs>,
) -> Result<Json<EventBody>, ApiError> {
    let mut body = EventBody::try_from(queue.get(id).await?)?;
    if args.include_logs {
        let log = queue.log(id).await?;
        body.logs = Some(log.into_iter().filter(|entry| entry.subscription == MAIN).map(Into::into).collect());
    }
    Ok(Json(body))
}
