//! `GET /ui/{namespace}/live`: notifies an open page when to update.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::unfold;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

use super::page_context::PageContext;
use crate::app::App;
use crate::error::ApiError;
use crate::stream::ActivityReader;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/live", get(live))
}

/// Changes within this time are combined into one notification. Also how often the token is checked again.
const CHANGED_EVERY: Duration = Duration::from_secs(1);
/// How often a page is updated without changes, because ages and depths change with time.
const TICK_EVERY: Duration = Duration::from_secs(5);

/// Server-sent events: `changed` after activity, at most once a second; `tick` after a while without activity; and `bye`
/// before the server stops or when the token is revoked.
async fn live(ctx: PageContext) -> Result<Response, ApiError> {
    let reader = ctx.app.hub.subscribe(&ctx.queue).await?;
    let now = Instant::now();
    let updates = PageUpdates { ctx, reader, changed: false, next_at: now + CHANGED_EVERY, tick_at: now + TICK_EVERY };
    // Buffering proxies would delay the notifications.
    Ok(([("x-accel-buffering", "no")], Sse::new(unfold(Some(updates), next_event))).into_response())
}

struct PageUpdates {
    ctx: PageContext,
    reader: ActivityReader,
    /// Whether there is activity that was not sent yet.
    changed: bool,
    next_at: Instant,
    tick_at: Instant,
}

/// Returns the next server-sent event and the state to continue with. After `bye` the stream ends.
async fn next_event(updates: Option<PageUpdates>) -> Option<(Result<Event, Infallible>, Option<PageUpdates>)> {
    let mut updates = updates?;
    loop {
        tokio::select! {
            message = updates.reader.messages.recv() => match message {
                Ok(_) | Err(RecvError::Lagged(_)) => updates.changed = true,
                Err(RecvError::Closed) => return None,
            },
            () = updates.ctx.app.stopping() => return Some((Ok(event("bye", "shutting_down")), None)),
            () = sleep_until(updates.next_at) => {
                if !updates.is_authorized().await {
                    return Some((Ok(event("bye", "wrong_token")), None));
                }
                if let Some(name) = updates.due() {
                    return Some((Ok(event(name, "")), Some(updates)));
                }
            }
        }
    }
}

impl PageUpdates {
    /// The name of the event to send now, if any.
    fn due(&mut self) -> Option<&'static str> {
        let now = Instant::now();
        self.next_at = now + CHANGED_EVERY;
        let name = if self.changed { "changed" } else { "tick" };
        if !self.changed && now < self.tick_at {
            return None;
        }
        (self.changed, self.tick_at) = (false, now + TICK_EVERY);
        Some(name)
    }

    /// Whether the token is still valid; true if the database cannot be reached.
    async fn is_authorized(&self) -> bool {
        let app = &self.ctx.app;
        app.authorizer.is_still_authorized(&app.queue, &self.ctx.caller).await.unwrap_or(true)
    }
}

fn event(name: &str, data: &str) -> Event {
    // Browsers ignore events without data.
    Event::default().event(name).data(if data.is_empty() { "-" } else { data })
}
