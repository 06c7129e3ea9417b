//! The dashboard: HTML pages at `/ui/{namespace}/…`.
//!
//! Pages are rendered on the server, work without JavaScript, and load no files from other hosts. `app.js` keeps open
//! pages up to date and adds keyboard shortcuts. The JSON API is in `routes/`. Start reading at [`page_context`].
//!
//! # How to add a page
//!
//! 1. `dashboard/widgets.rs` and, in the same folder, `widgets.html`:
//!
//!    ```ignore
//!    pub(super) fn routes() -> Router<App> {
//!        Router::new().route("/ui/{namespace}/widgets", get(show).post(act))
//!    }
//!
//!    #[derive(Template)]
//!    #[template(path = "widgets.html")]
//!    struct Widgets { layout: Layout, widgets: Vec<Row> }
//!
//!    async fn show(ctx: PageContext, QueryArgs(args): QueryArgs<WidgetArgs>) -> PageResult {
//!        let widgets = ctx.queue.widgets().await?;
//!        render(&Widgets { layout: ctx.layout(Tab::Widgets, "Widgets"), widgets })
//!    }
//!    ```
//!
//!    ```html
//!    {% extends "layout.html" %}
//!    {% block main %} <section id="widgets" data-live> … </section> {% endblock %}
//!    ```
//! 2. A line in [`pages`], a variant of [`layout::Tab`], and an entry in [`layout::NAV`].
//! 3. A line in the table of pages in `tests/it/dashboard.rs`.
//!
//! All pages have these properties:
//! - [`page_context::authorize`] runs first. GET requires the scope `read` in the namespace. POST requires `admin`, must
//!   come from a page of this dashboard, and is refused if the dashboard is read-only. Show buttons if `layout.may_act`.
//! - An [`ApiError`], and therefore any library error, becomes a page with its message and status.
//! - Elements with an `id` and `data-live` are updated when events change, unless the user is editing them.
//! - Text is escaped. Types that render HTML ([`format::RelativeTime`], [`format::Badge`], …) contain no user input.
//! - Actions show a confirmation page first ([`confirm::Confirm`]) and then redirect with
//!   `ctx.redirect_with_notice(path, "3 widgets turned")`.
//!
//! The security headers forbid inline scripts and styles. Classes are defined in `style.css`.

mod assets;
mod chart;
mod confirm;
mod cron;
mod dead_letters;
mod delivery_counts;
mod event;
mod events;
mod filter;
mod findings;
mod flash;
mod form;
mod form_error;
mod format;
mod health;
mod inline_code;
mod json;
mod layout;
mod live;
mod namespaces;
mod nodes;
mod overview;
mod overview_data;
mod page_context;
mod publish;
mod schedule;
mod schedule_form;
mod schedules;
mod settings;
mod shared_cache;
mod sign_in;
mod subscriptions;
mod worker_cache;

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
use crate::routes::LONG_OPERATION;

pub(crate) use self::delivery_counts::DeliveryCountCache;
pub(crate) use self::overview_data::OverviewCache;
pub(crate) use self::worker_cache::WorkerCache;

/// Whether the dashboard is served, and whether it allows changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dashboard {
    /// Pages are served, and changes are allowed according to the token's scopes.
    #[default]
    On,
    /// Pages are served, and all changes are refused.
    ReadOnly,
    /// There is no dashboard.
    Off,
}

/// The response of a page handler.
type PageResult = Result<Response, ApiError>;

pub(crate) fn router(app: &App) -> Router<App> {
    if app.options.dashboard == Dashboard::Off {
        return Router::new();
    }
    let timeout = app.options.request_timeout;
    let pages = pages()
        .route("/ui/{namespace}/{*rest}", get(no_such_page))
        .method_not_allowed_fallback(post_only)
        // Redriving many dead letters takes long.
        .layer(from_fn(move |request: Request, next: Next| with_timeout(timeout + LONG_OPERATION, request, next)))
        .merge(live::routes())
        .route_layer(from_fn_with_state(app.clone(), page_context::authorize));
    let open = Router::new()
        .route("/", get(home))
        .route("/ui", get(home))
        .merge(sign_in::routes())
        .layer(from_fn(move |request: Request, next: Next| with_timeout(timeout, request, next)));
    pages.merge(open).layer(from_fn(add_security_headers)).merge(assets::routes())
}

/// The page that requires the scope `publish`.
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
    let cookie = page_context::cookie(&parts.headers, sign_in::COOKIE);
    let caller = app.authorizer.authenticate_browser(&app.queue, &parts, cookie).await.ok();
    Redirect::to(&format!("/ui/{}", caller.as_ref().map_or(DEFAULT_NAMESPACE, home_namespace)))
}

/// The namespace shown if the URL names none: `default`, or the first one that the token covers.
fn home_namespace(caller: &Caller) -> &str {
    let own = caller.first_namespace().filter(|_| !caller.covers(DEFAULT_NAMESPACE));
    own.unwrap_or(DEFAULT_NAMESPACE)
}

async fn no_such_page(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown_path", format!("there is no page at {}", uri.path()))
}

/// A GET for a path that accepts only POST, for example after reloading a confirmation page.
async fn post_only(uri: Uri) -> ApiError {
    let error = format!("{} is only for what a page sends; nothing was changed", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", error)
}

async fn with_timeout(limit: Duration, request: Request, next: Next) -> Response {
    let response = tokio::time::timeout(limit, next.run(request)).await;
    response.unwrap_or_else(|_| ApiError::timed_out(limit).into_response())
}

/// Security headers: only files of this server are loaded, pages cannot be framed, and responses are not cached.
const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
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

async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in SECURITY_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
