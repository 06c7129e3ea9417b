//! `GET /ui/{namespace}/live`: tells an open page when to look again.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::unfold;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

use super::visit::Visit;
use crate::app::App;
use crate::error::ApiError;
use crate::stream::Reader;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/live", get(live))
}

/// Changes that follow each other faster than this are told as one; so often it is also made sure that the visitor
/// may still look.
const CHANGED_EVERY: Duration = Duration::from_secs(1);
/// Ages and depths change by themselves.
const TICK_EVERY: Duration = Duration::from_secs(5);

/// Server-sent events: `changed` when something happened, at most once a second; `tick` when nothing did for a while;
/// and `bye` before the server stops or when the token is revoked.
async fn live(visit: Visit) -> Result<Response, ApiError> {
    let reader = visit.app.hub.listen(&visit.queue).await?;
    let now = Instant::now();
    let watching = Watching { visit, reader, changed: false, next_at: now + CHANGED_EVERY, tick_at: now + TICK_EVERY };
    // Proxies that gather answers would keep it back.
    Ok(([("x-accel-buffering", "no")], Sse::new(unfold(Some(watching), next))).into_response())
}

struct Watching {
    visit: Visit,
    reader: Reader,
    /// Whether something happened that was not told yet.
    changed: bool,
    next_at: Instant,
    tick_at: Instant,
}

/// The next thing to tell, and how to go on; nothing more after a good-bye.
async fn next(watching: Option<Watching>) -> Option<(Result<Event, Infallible>, Option<Watching>)> {
    let mut watching = watching?;
    loop {
        tokio::select! {
            told = watching.reader.told.recv() => match told {
                Ok(_) | Err(RecvError::Lagged(_)) => watching.changed = true,
                Err(RecvError::Closed) => return None,
            },
            () = watching.visit.app.stopping() => return Some((Ok(event("bye", "shutting_down")), None)),
            () = sleep_until(watching.next_at) => {
                if !watching.may_go_on().await {
                    return Some((Ok(event("bye", "wrong_token")), None));
                }
                if let Some(name) = watching.due() {
                    return Some((Ok(event(name, "")), Some(watching)));
                }
            }
        }
    }
}

impl Watching {
    /// What is to be told now.
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

    /// While the database is away, nobody can tell.
    async fn may_go_on(&self) -> bool {
        let app = &self.visit.app;
        app.gate.still_admits(&app.queue, &self.visit.caller).await.unwrap_or(true)
    }
}

fn event(name: &str, data: &str) -> Event {
    // Browsers pass over events without data.
    Event::default().event(name).data(if data.is_empty() { "-" } else { data })
}
