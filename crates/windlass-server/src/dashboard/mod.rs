//! The dashboard: pages for people, at `/ui/{namespace}/…`.
//!
//! They are rendered here, work without JavaScript, and load nothing from anywhere else. `app.js` keeps them
//! up to date, and lets them be used by keyboard.
//!
//! # How to add a page
//!
//! 1. `dashboard/widgets.rs` and, beside it, `widgets.html`:
//!
//!    ```ignore
//!    pub(super) fn routes() -> Router<App> {
//!        Router::new().route("/ui/{namespace}/widgets", get(show).post(act))
//!    }
//!
//!    #[derive(Template)]
//!    #[template(path = "widgets.html")]
//!    struct Widgets { shell: Shell, widgets: Vec<Row> }
//!
//!    async fn show(visit: Visit, Args(args): Args<WidgetArgs>) -> Answer {
//!        let widgets = visit.queue.widgets().await?;
//!        page(&Widgets { shell: visit.shell(Tab::Widgets, "Widgets"), widgets })
//!    }
//!    ```
//!
//!    ```html
//!    {% extends "layout.html" %}
//!    {% block main %} <section id="widgets" data-live> … </section> {% endblock %}
//!    ```
//! 2. A line in [`pages`], a variant of [`shell::Tab`], and an entry in [`shell::NAV`].
//! 3. A line in the table of pages in `tests/it/dashboard.rs`.
//!
//! What then holds by itself:
//! - [`visit::enter`] runs first. Looking needs the scope `read` in the namespace; every POST needs `admin`, must
//!   come from a page of ours, and is refused where the dashboard is read-only. Show buttons where `shell.may_act`.
//! - An [`ApiError`] – so `?` on all that the library says – becomes a page with its sentence and status.
//! - Elements with an `id` and `data-live` are replaced as things happen, unless somebody is at work in them.
//! - Everything is escaped. What is HTML by itself ([`format::When`], [`format::Badge`], …) holds no text of users.
//! - Actions ask first ([`confirm::Confirm`]) and then answer with `visit.done(path, "3 widgets turned")`.
//!
//! There is no inline script or style: the headers forbid it. Classes are in `style.css`.

mod assets;
mod chart;
mod confirm;
mod counts;
mod cron;
mod dead_letters;
mod event;
mod events;
mod figures;
mod filter;
mod findings;
mod flash;
mod form;
mod format;
mod health;
mod json;
mod live;
mod namespaces;
mod nodes;
mod overview;
mod problem;
mod prose;
mod publish;
mod rested;
mod schedule;
mod schedule_form;
mod schedules;
mod settings;
mod shell;
mod sign_in;
mod subscriptions;
mod visit;
mod workers;

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Router, http::StatusCode};
use windlass::DEFAULT_NAMESPACE;

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::routes::LONG_WORK;

pub(crate) use self::counts::AllCounted;
pub(crate) use self::figures::Figured;
pub(crate) use self::workers::AllWorkers;

/// Whether there is a dashboard, and what it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dashboard {
    /// It shows, and changes what the token allows.
    #[default]
    On,
    /// It shows, and changes nothing.
    ReadOnly,
    /// There is none.
    Off,
}

/// What a handler of the dashboard answers.
type Answer = Result<Response, ApiError>;

pub(crate) fn router(app: &App) -> Router<App> {
    if app.options.dashboard == Dashboard::Off {
        return Router::new();
    }
    let quick = app.options.request_timeout;
    let pages = pages()
        .route("/ui/{namespace}/{*rest}", get(no_such_page))
        .method_not_allowed_fallback(only_sent)
        // Redriving many takes a while.
        .layer(from_fn(move |request: Request, next: Next| timed(quick + LONG_WORK, request, next)))
        .merge(live::routes())
        .route_layer(from_fn_with_state(app.clone(), visit::enter));
    let open = Router::new()
        .route("/", get(home))
        .route("/ui", get(home))
        .merge(sign_in::routes())
        .layer(from_fn(move |request: Request, next: Next| timed(quick, request, next)));
    pages.merge(open).layer(from_fn(guard)).merge(assets::routes())
}

/// The page that needs the scope `publish`.
const PUBLISH: &str = "/ui/{namespace}/publish";

/// Every page.
fn pages() -> Router<App> {
    Router::new()
        .merge(overview::routes())
        .merge(events::routes())
        .merge(event::routes())
        .merge(dead_letters::routes())
        .merge(publish::routes())
        .merge(schedules::routes())
        .merge(schedule::routes())
        .merge(schedule_form::routes())
        .merge(nodes::routes())
        .merge(subscriptions::routes())
        .merge(namespaces::routes())
        .merge(settings::routes())
        .merge(health::routes())
        .merge(findings::routes())
}

async fn home(State(app): State<App>, parts: Parts) -> Redirect {
    let cookie = visit::cookie(&parts.headers, sign_in::COOKIE);
    let caller = app.gate.admit_browser(&app.queue, &parts, cookie).await.ok();
    Redirect::to(&format!("/ui/{}", caller.as_ref().map_or(DEFAULT_NAMESPACE, home_of)))
}

/// The namespace that a visitor finds who asks for none.
fn home_of(caller: &Caller) -> &str {
    let own = caller.namespace().filter(|_| !caller.covers(DEFAULT_NAMESPACE));
    own.unwrap_or(DEFAULT_NAMESPACE)
}

async fn no_such_page(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown_path", format!("there is no page at {}", uri.path()))
}

/// The address of a question, typed or loaded anew.
async fn only_sent(uri: Uri) -> ApiError {
    let error = format!("{} is only for what a page sends; nothing was changed", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", error)
}

async fn timed(limit: Duration, request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(limit, next.run(request)).await;
    answer.unwrap_or_else(|_| ApiError::timed_out(limit).into_response())
}

/// Nothing but our own files is run or loaded, nobody puts a page into a frame, and nobody keeps it.
const GUARDS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // `no-referrer` would make browsers say `Origin: null` when they send a form.
    (REFERRER_POLICY, "same-origin"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

async fn guard(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in GUARDS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
