//! `GET /events/stream`: what happens to events, as it happens.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Activity, MAIN, Status};

use super::names::Names;
use super::subscription::find;
use super::wrong_method;
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::extract::{Args, InNamespace};
use crate::stream::{Reader, Told};

pub(super) fn routes() -> OpenApiRouter<App> {
    let (schemas, paths, stream) = routes!(stream);
    OpenApiRouter::default().routes((schemas, paths, stream.head(wrong_method)))
}

/// A comment this often keeps the connection alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamArgs {
    /// Comma-separated; only of these types, each exact or a prefix ending in `*`.
    #[param(value_type = Option<String>)]
    types: Option<Names>,
    /// Comma-separated; only events with any of these tags.
    #[param(value_type = Option<String>)]
    tags: Option<Names>,
    /// Comma-separated; only what led to one of these states.
    #[param(value_type = Option<String>, example = "COMPLETED,FAILED")]
    status: Option<Names>,
    /// Only of this subscription; all if absent.
    subscription: Option<String>,
}

/// What a reader wants to hear of.
struct Wanted {
    types: Vec<String>,
    tags: Vec<String>,
    statuses: Vec<Status>,
    subscription: Option<String>,
}

impl Wanted {
    fn new(args: StreamArgs) -> Result<Wanted, ApiError> {
        let statuses = args.status.unwrap_or_default().into_list();
        Ok(Wanted {
            types: args.types.unwrap_or_default().into_list(),
            tags: args.tags.unwrap_or_default().into_list(),
            statuses: statuses.iter().map(|status| status.parse()).collect::<Result<_, _>>()?,
            subscription: args.subscription,
        })
    }

    fn includes(&self, activity: &Activity) -> bool {
        activity.matches(&self.types, &self.tags)
            && (self.statuses.is_empty() || self.statuses.contains(&activity.status))
            && self.subscription.as_ref().is_none_or(|wanted| *wanted == activity.subscription)
    }
}

/// Follow what happens
///
/// Server-sent events, from now on: `activity` with what happened to an event, `missed` with how many were
/// left out because there were too many or the reader is too slow, and `bye` before the server stops or when the
/// token is revoked.
#[utoipa::path(
    get, path = "/events/stream", tag = "inspect", security(("token" = ["read"])),
    params(StreamArgs),
    responses(
        (status = 200, description = "A stream that does not end.", body = String, content_type = "text/event-stream"),
        (status = 404, description = "No such namespace or subscription."),
        (status = 429, description = "Too many streams are open."),
    )
)]
async fn stream(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    InNamespace(queue): InNamespace,
    Args(args): Args<StreamArgs>,
) -> Result<Response, ApiError> {
    let wanted = Wanted::new(args)?;
    queue.check_filter(&wanted.types, &wanted.tags)?;
    // A stream of what is not there would be silent forever.
    find(&queue, wanted.subscription.as_deref().unwrap_or(MAIN)).await?;
    let reader = app.hub.listen(&queue).await?;
    let listening = Listening { app, caller, wanted, reader, check_at: Instant::now() + CHECK_EVERY };
    let stream = Sse::new(unfold(Some(listening), next)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    Ok(([(CACHE_CONTROL, "no-store")], stream).into_response())
}

/// So often it is made sure that the reader may still listen.
const CHECK_EVERY: Duration = Duration::from_secs(1);

struct Listening {
    app: App,
    caller: Caller,
    wanted: Wanted,
    reader: Reader,
    check_at: Instant,
}

/// The next thing to tell, and how to go on; nothing more after a good-bye.
async fn next(listening: Option<Listening>) -> Option<(Result<Event, Infallible>, Option<Listening>)> {
    let mut listening = listening?;
    loop {
        let told = tokio::select! {
            told = listening.reader.told.recv() => told,
            () = listening.app.stopping() => return Some((Ok(bye("shutting_down")), None)),
            () = tokio::time::sleep_until(listening.check_at) => {
                if !listening.may_go_on().await {
                    return Some((Ok(bye("wrong_token")), None));
                }
                continue;
            }
        };
        let told = match told {
            Ok(Told::Happened(line)) if !listening.wanted.includes(&line.activity) => continue,
            Ok(Told::Happened(line)) => event("activity", &line.json),
            Ok(Told::Missed(missed)) | Err(RecvError::Lagged(missed)) => {
                event("missed", &format!(r#"{{"missed":{missed}}}"#))
            }
            Err(RecvError::Closed) => return None,
        };
        return Some((Ok(told), Some(listening)));
    }
}

impl Listening {
    /// Whether the token is still good. While the database is away nothing is told anyway.
    async fn may_go_on(&mut self) -> bool {
        self.check_at = Instant::now() + CHECK_EVERY;
        self.app.gate.still_admits(&self.app.queue, &self.caller).await.unwrap_or(true)
    }
}

fn bye(reason: &str) -> Event {
    event("bye", &format!(r#"{{"reason":"{reason}"}}"#))
}

fn event(name: &str, data: &str) -> Event {
    Event::default().event(name).data(data)
}
