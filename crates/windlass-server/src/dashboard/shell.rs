//! What all pages have in common: the frame with the navigation, and pages that say what went wrong.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};

use super::Answer;
use super::assets::VERSION;
use super::visit::Visit;
use crate::error::ErrorBody;

/// Which entry of the navigation is lit.
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
    /// None.
    Other,
}

/// An entry of the navigation.
pub(super) struct NavEntry {
    pub tab: Tab,
    /// The key that goes there, after `g`.
    pub key: char,
    pub label: &'static str,
    /// Below the namespace.
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

/// The switch shows so many namespaces; there is a page with all.
const NAMESPACES_SHOWN: usize = 50;

/// The frame of a page.
pub(super) struct Shell {
    pub title: String,
    pub tab: Tab,
    pub namespace: String,
    pub namespaces: Vec<String>,
    pub notice: Option<String>,
    pub may_act: bool,
    pub may_publish: bool,
    /// Whose token it is; `None` where none is asked for.
    pub signed_in: Option<String>,
    pub paused: bool,
    pub assets: &'static str,
    pub version: &'static str,
}

impl Shell {
    pub fn new(visit: &Visit, tab: Tab, title: String) -> Shell {
        Shell {
            title,
            tab,
            namespace: visit.home().to_owned(),
            namespaces: visit.namespaces.iter().take(NAMESPACES_SHOWN).cloned().collect(),
            notice: visit.notice().map(str::to_owned),
            may_act: visit.may_act,
            may_publish: visit.may_publish,
            signed_in: visit.caller.name().map(str::to_owned),
            paused: visit.namespace.as_ref().is_some_and(|namespace| namespace.paused),
            assets: &VERSION,
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// The navigation, without what the visitor may not use.
    pub fn nav(&self) -> impl Iterator<Item = &'static NavEntry> {
        NAV.iter().filter(|entry| entry.tab != Tab::Publish || self.may_publish)
    }

    /// The address of a page in this namespace; `""` is the overview.
    pub fn path(&self, page: &str) -> String {
        if page.is_empty() { format!("/ui/{}", self.namespace) } else { format!("/ui/{}/{page}", self.namespace) }
    }
}

/// A page that all is well with.
pub(super) fn page(template: &impl Template) -> Answer {
    Ok(with_status(StatusCode::OK, template))
}

pub(super) fn with_status(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page cannot be written");
            (StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be written; the log says why").into_response()
        }
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    shell: Shell,
    status: StatusCode,
    error: &'a str,
    code: &'a str,
}

/// A page with the navigation that says what went wrong.
pub(super) fn error(visit: &Visit, status: StatusCode, body: &ErrorBody) -> Response {
    let shell = visit.shell(Tab::Other, status.canonical_reason().unwrap_or("Error"));
    with_status(status, &ErrorPage { shell, status, error: &body.error, code: body.code })
}

#[derive(Template)]
#[template(path = "bare_error.html")]
struct BareErrorPage<'a> {
    assets: &'static str,
    status: StatusCode,
    error: &'a str,
    code: &'a str,
}

/// The same for whom nothing else can be shown.
pub(super) fn bare_error(status: StatusCode, body: &ErrorBody) -> Response {
    with_status(status, &BareErrorPage { assets: &VERSION, status, error: &body.error, code: body.code })
}

#[derive(Template)]
#[template(
    source = r#"<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={{ path }}">
<title>Windlass</title><a href="{{ path }}">Go on</a>"#,
    ext = "html"
)]
struct OnceMore<'a> {
    path: &'a str,
}

/// A page that sends the browser to where it is already.
pub(super) fn once_more(path: &str) -> Response {
    with_status(StatusCode::OK, &OnceMore { path })
}
