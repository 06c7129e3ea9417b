//! The layout of all pages, with the navigation, and the error pages.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use windlass_api::ErrorBody;

use super::PageResult;
use super::assets::VERSION;
use super::page_context::PageContext;

/// The highlighted entry of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Overview,
    Events,
    DeadLetters,
    Publish,
    Schedules,
    Nodes,
    Subscriptions,
    Namespaces,
    Health,
    /// No entry.
    Other,
}

/// An entry of the navigation.
pub(super) struct NavEntry {
    pub tab: Tab,
    /// Keyboard shortcut, after `g`.
    pub key: char,
    pub label: &'static str,
    /// Path below the namespace.
    pub page: &'static str,
}

/// The navigation, from top to bottom.
pub(super) const NAV: &[NavEntry] = &[
    NavEntry { tab: Tab::Overview, key: 'o', label: "Overview", page: "" },
    NavEntry { tab: Tab::Events, key: 'e', label: "Events", page: "events" },
    NavEntry { tab: Tab::DeadLetters, key: 'd', label: "Dead letters", page: "dead-letters" },
    NavEntry { tab: Tab::Publish, key: 'p', label: "Publish", page: "publish" },
    NavEntry { tab: Tab::Schedules, key: 's', label: "Schedules", page: "schedules" },
    NavEntry { tab: Tab::Nodes, key: 'n', label: "Nodes", page: "nodes" },
    NavEntry { tab: Tab::Subscriptions, key: 'u', label: "Subscriptions", page: "subscriptions" },
    NavEntry { tab: Tab::Namespaces, key: 'm', label: "Namespaces", page: "namespaces" },
    NavEntry { tab: Tab::Health, key: 'h', label: "Health", page: "health" },
];

/// Maximum number of namespaces in the namespace menu.
const NAMESPACES_SHOWN: usize = 50;

/// The data of `layout.html`.
pub(super) struct Layout {
    pub title: String,
    pub tab: Tab,
    pub namespace: String,
    pub namespaces: Vec<String>,
    pub notice: Option<String>,
    pub may_act: bool,
    pub may_publish: bool,
    /// Name of the token; `None` if no token is required.
    pub signed_in: Option<String>,
    pub paused: bool,
    pub assets: &'static str,
    pub version: &'static str,
}

impl Layout {
    pub fn new(ctx: &PageContext, tab: Tab, title: String) -> Layout {
        Layout {
            title,
            tab,
            namespace: ctx.link_namespace().to_owned(),
            namespaces: ctx.namespaces.iter().take(NAMESPACES_SHOWN).cloned().collect(),
            notice: ctx.notice().map(str::to_owned),
            may_act: ctx.may_act,
            may_publish: ctx.may_publish,
            signed_in: ctx.caller.token_name().map(str::to_owned),
            paused: ctx.namespace.as_ref().is_some_and(|namespace| namespace.paused),
            assets: &VERSION,
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// The navigation, without pages that the caller may not use.
    pub fn nav(&self) -> impl Iterator<Item = &'static NavEntry> {
        NAV.iter().filter(|entry| entry.tab != Tab::Publish || self.may_publish)
    }

    /// The path of a page in this namespace; `""` is the overview.
    pub fn path(&self, page: &str) -> String {
        if page.is_empty() { format!("/ui/{}", self.namespace) } else { format!("/ui/{}/{page}", self.namespace) }
    }
}

/// Renders a page with status 200.
pub(super) fn render(template: &impl Template) -> PageResult {
    Ok(render_with_status(StatusCode::OK, template))
}

pub(super) fn render_with_status(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot render a page");
            (StatusCode::INTERNAL_SERVER_ERROR, "cannot render the page; see the server log").into_response()
        }
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    layout: Layout,
    status: StatusCode,
    error: &'a str,
    code: &'a str,
}

/// An error page with the navigation.
pub(super) fn error(ctx: &PageContext, status: StatusCode, body: &ErrorBody) -> Response {
    let layout = ctx.layout(Tab::Other, status.canonical_reason().unwrap_or("Error"));
    render_with_status(status, &ErrorPage { layout, status, error: &body.error, code: &body.code })
}

#[derive(Template)]
#[template(path = "bare_error.html")]
struct BareErrorPage<'a> {
    assets: &'static str,
    status: StatusCode,
    error: &'a str,
    code: &'a str,
}

/// An error page without the navigation, for callers without access to the namespace.
pub(super) fn bare_error(status: StatusCode, body: &ErrorBody) -> Response {
    render_with_status(status, &BareErrorPage { assets: &VERSION, status, error: &body.error, code: &body.code })
}

#[derive(Template)]
#[template(
    source = r#"<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={{ path }}">
<title>Windlass</title><a href="{{ path }}">Go on</a>"#,
    ext = "html"
)]
struct SelfRedirect<'a> {
    path: &'a str,
}

/// A page that redirects the browser to its own URL.
pub(super) fn redirect_to_self(path: &str) -> Response {
    render_with_status(StatusCode::OK, &SelfRedirect { path })
}
