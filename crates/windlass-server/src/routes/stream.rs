//! `GET /events/stream`: the activity of events, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Activity, MAIN, Status};
use windlass_api::{ByeMessage, MissedMessage, NameList};

use super::subscription::find_subscription;
use super::wrong_method;
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::extract::{InNamespace, QueryArgs};
use crate::stream::{ActivityReader, StreamMessage};

pub(super) fn routes() -> OpenApiRouter<App> {
    let (schemas, paths, stream) = routes!(stream);
    OpenApiRouter::default().routes((schemas, paths, stream.head(wrong_method)))
}

/// How often a comment is sent to keep the connection alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamArgs {
    /// Comma-separated. Only events of these types, each exact or a prefix ending in `*`.
    #[param(value_type = Option<String>)]
    types: Option<NameList>,
    /// Comma-separated. Only events with any of these tags.
    #[param(value_type = Option<String>)]
    tags: Option<NameList>,
    /// Comma-separated. Only activity that resulted in one of these states.
    #[param(value_type = Option<String>, example = "COMPLETED,FAILED")]
    status: Option<NameList>,
    /// Only activity of this subscription. Default: all.
    subscription: Option<String>,
}

/// The filter of a stream.
struct ActivityFilter {
    types: Vec<String>,
    tags: Vec<String>,
    statuses: Vec<Status>,
    subscription: Option<String>,
}

impl ActivityFilter {
    fn new(args: StreamArgs) -> Result<ActivityFilter, ApiError> {
        let statuses = args.status.unwrap_or_default().into_list();
        Ok(ActivityFilter {
            types: args.types.unwrap_or_default().into_list(),
            tags: args.tags.unwrap_or_default().into_list(),
            statuses: statuses.iter().map(|status| status.parse()).collect::<Result<_, _>>()?,
            subscription: args.subscription,
        })
    }

    fn includes(&self, activity: &Activity) -> bool {
        activity.matches(&self.types, &self.tags)
            && (self.statuses.is_empty() || self.statuses.contains(&activity.status))
            && self.subscription.as_ref().is_none_or(|name| *name == activity.subscription)
    }
}

/// Stream the activity of events
///
/// Server-sent events, from now on: `activity` for each change of an event, `missed` with the number of entries left out
/// because there were too many or the client reads too slowly, and `bye` before the server stops or when the token is
/// revoked.
#[utoipa::path(
    get, path = "/events/stream", tag = "inspect", security(("token" = ["read"])),
    params(StreamArgs),
    responses(
        (status = 200, description = "An endless stream.", body = String, content_type = "text/event-stream"),
        (status = 404, description = "No such namespace or subscription."),
        (status = 429, description = "Too many streams are open."),
    )
)]
async fn stream(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<StreamArgs>,
) -> Result<Response, ApiError> {
    let filter = ActivityFilter::new(args)?;
    queue.check_filter(&filter.types, &filter.tags)?;
    // A stream of a namespace or subscription that does not exist would stay silent forever.
    find_subscription(&queue, filter.subscription.as_deref().unwrap_or(MAIN)).await?;
    let reader = app.hub.subscribe(&queue).await?;
    let client = ClientStream { app, caller, filter, reader, next_check_at: Instant::now() + TOKEN_CHECK_INTERVAL };
    let stream = Sse::new(unfold(Some(client), next_message)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    Ok(([(CACHE_CONTROL, "no-store")], stream).into_response())
}

/// How often the token of a stream is checked again.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

struct ClientStream {
    app: App,
    caller: Caller,
    filter: ActivityFilter,
    reader: ActivityReader,
    next_check_at: Instant,
}

/// Returns the next server-sent event and the state to continue with. After `bye` the stream ends.
async fn next_message(client: Option<ClientStream>) -> Option<(Result<Event, Infallible>, Option<ClientStream>)> {
    let mut client = client?;
    loop {
        let message = tokio::select! {
            message = client.reader.messages.recv() => message,
            () = client.app.stopping() => return Some((Ok(bye_event("shutting_down")), None)),
            () = tokio::time::sleep_until(client.next_check_at) => {
                if !client.is_authorized().await {
                    return Some((Ok(bye_event("wrong_token")), None));
                }
                continue;
            }
        };
        let message = match message {
            Ok(StreamMessage::Activity(line)) if !client.filter.includes(&line.activity) => continue,
            Ok(StreamMessage::Activity(line)) => event("activity", &line.json),
            Ok(StreamMessage::Missed(missed)) | Err(RecvError::Lagged(missed)) => {
                event("missed", &json!(MissedMessage { missed }).to_string())
            }
            Err(RecvError::Closed) => return None,
        };
        return Some((Ok(message), Some(client)));
    }
}

impl ClientStream {
    /// Whether the token is still valid. If the database cannot be reached, the stream continues; it has nothing to send.
    async fn is_authorized(&mut self) -> bool {
        self.next_check_at = Instant::now() + TOKEN_CHECK_INTERVAL;
        self.app.authorizer.is_still_authorized(&self.app.queue, &self.caller).await.unwrap_or(true)
    }
}

fn bye_event(reason: &'static str) -> Event {
    event("bye", &json!(ByeMessage { reason: reason.into() }).to_string())
}

fn event(name: &str, data: &str) -> Event {
    Event::default().event(name).data(data)
}
