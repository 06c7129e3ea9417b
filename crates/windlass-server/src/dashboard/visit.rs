//! Who looks at a page, where, and what he may do there: settled before any page is made.

use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use windlass::{DEFAULT_NAMESPACE, Namespace, Queue, Scope, Timestamp};

use super::flash;
use super::form::{encode, local_path};
use super::shell::{self, Shell, Tab};
use super::{Answer, Dashboard, sign_in};
use crate::app::App;
use crate::auth::Caller;
use crate::error::{ApiError, ErrorBody};
use crate::extract::path_part;

/// One request for a page, by somebody who may look at it.
#[derive(Clone)]
pub(super) struct Visit(Arc<Visited>);

pub(super) struct Visited {
    pub app: App,
    pub caller: Caller,
    /// In the namespace of the page.
    pub queue: Queue,
    /// Its registry entry, fresh; `None` where it is not there or not this visitor's.
    pub namespace: Option<Namespace>,
    /// All that the visitor may see.
    pub namespaces: Vec<String>,
    pub now: Timestamp,
    /// Whether it may change things.
    pub may_act: bool,
    pub may_publish: bool,
    /// What the last action came to.
    notice: Option<String>,
}

impl std::ops::Deref for Visit {
    type Target = Visited;

    fn deref(&self) -> &Visited {
        &self.0
    }
}

impl FromRequestParts<App> for Visit {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Visit, ApiError> {
        let visit = parts.extensions.get::<Visit>().cloned();
        visit.ok_or_else(|| ApiError::unavailable("closed", "this page is not behind the dashboard's door"))
    }
}

/// The middleware in front of every page.
pub(super) async fn enter(State(app): State<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let limit = app.options.request_timeout;
    let begun = tokio::time::timeout(limit, begin(&app, &mut parts)).await;
    let (visit, denied) = match begun.unwrap_or_else(|_| Err(ApiError::timed_out(limit))) {
        Ok(begun) => begun,
        Err(error) if error.status == StatusCode::UNAUTHORIZED => return to_sign_in(&parts),
        Err(error) => return shell::bare_error(error.status, &error.body),
    };
    let had_notice = visit.notice.is_some();
    let response = match denied {
        Some(error) => error.into_response(),
        None => {
            parts.extensions.insert(visit.clone());
            next.run(Request::from_parts(parts, body)).await
        }
    };
    let mut response = match response.extensions().get::<ErrorBody>() {
        Some(error) => shell::error(&visit, response.status(), error),
        None => response,
    };
    if had_notice && !response.headers().contains_key(SET_COOKIE) {
        response.headers_mut().append(SET_COOKIE, flash::clear());
    }
    response
}

/// The visit, and why it may not go on.
async fn begin(app: &App, parts: &mut Parts) -> Result<(Visit, Option<ApiError>), ApiError> {
    let caller = app.gate.admit_browser(&app.queue, parts, cookie(&parts.headers, sign_in::COOKIE)).await?;
    let name = path_part(parts, "namespace").await?.unwrap_or_default();
    let queue = app.queue.in_namespace(&name)?;
    let scope = scope_of(parts);
    let denied = app.gate.check(&caller, scope, Some(&name)).err().or_else(|| read_only(app, parts));
    let mut known = app.queue.namespaces().await?;
    known.retain(|namespace| caller.covers(&namespace.namespace));
    let namespaces = known.iter().map(|namespace| namespace.namespace.clone()).collect();
    let namespace = known.into_iter().find(|namespace| namespace.namespace == name);
    let denied = denied.or_else(|| match &namespace {
        Some(_) => None,
        None => Some(windlass::Error::NamespaceNotFound { namespace: name.clone() }.into()),
    });
    let on = app.options.dashboard == Dashboard::On;
    let visit = Visited {
        may_act: on && caller.allows(Scope::Admin),
        may_publish: on && caller.allows(Scope::Publish),
        now: app.queue.clock().now(),
        // A page that is only brought up to date has no place for it.
        notice: cookie(&parts.headers, flash::COOKIE).filter(|_| !is_update(parts)).map(flash::get),
        app: app.clone(),
        caller,
        queue,
        namespace,
        namespaces,
    };
    Ok((Visit(Arc::new(visit)), denied))
}

/// Publishing has a scope of its own; whatever else is sent is for admins.
fn scope_of(parts: &Parts) -> Scope {
    let path = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    match parts.method {
        _ if path == super::PUBLISH => Scope::Publish,
        Method::GET | Method::HEAD => Scope::Read,
        _ => Scope::Admin,
    }
}

fn read_only(app: &App, parts: &Parts) -> Option<ApiError> {
    let looks = matches!(parts.method, Method::GET | Method::HEAD) && scope_of(parts) == Scope::Read;
    let error = "this dashboard is read-only: the server was started so";
    (!looks && app.options.dashboard == Dashboard::ReadOnly)
        .then(|| ApiError::new(StatusCode::FORBIDDEN, "wrong_scope", error))
}

/// Whether `app.js` asks for the page that it shows already.
fn is_update(parts: &Parts) -> bool {
    parts.headers.contains_key("x-windlass-live")
}

/// To the sign-in page, and back here from there. A browser that follows a link on another site does not send the
/// cookie along, though it may have one; if it is sent here once more from here, it does.
fn to_sign_in(parts: &Parts) -> Response {
    let here = parts.uri.path_and_query().map_or("/ui", |here| here.as_str());
    let looks = parts.method == Method::GET && !is_update(parts);
    let from_elsewhere = parts.headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    let has_cookie = cookie(&parts.headers, sign_in::COOKIE).is_some();
    match local_path(here) {
        Some(here) if looks && from_elsewhere && !has_cookie => shell::once_more(here),
        Some(here) if looks => Redirect::to(&format!("/ui/sign-in?next={}", encode(here))).into_response(),
        _ => Redirect::to("/ui/sign-in").into_response(),
    }
}

/// The value of a cookie.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(COOKIE).into_iter().filter_map(|header| header.to_str().ok());
    let mut pairs = all.flat_map(|header| header.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

impl Visit {
    /// What all pages have around what is their own.
    pub fn shell(&self, tab: Tab, title: impl Into<String>) -> Shell {
        Shell::new(self, tab, title.into())
    }

    /// The address of a page in this namespace; `""` is the overview.
    pub fn path(&self, page: &str) -> String {
        let namespace = self.queue.namespace();
        if page.is_empty() { format!("/ui/{namespace}") } else { format!("/ui/{namespace}/{page}") }
    }

    /// After an action: on to this page, which says what it came to.
    pub fn done(&self, path: &str, notice: &str) -> Answer {
        let mut response = Redirect::to(local_path(path).unwrap_or("/ui")).into_response();
        if let Some(cookie) = flash::set(notice) {
            response.headers_mut().append(SET_COOKIE, cookie);
        }
        Ok(response)
    }

    pub(super) fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// The namespace that links lead to: this one, unless it is not there.
    pub(super) fn home(&self) -> &str {
        match &self.namespace {
            Some(namespace) => &namespace.namespace,
            None => self.namespaces.first().map_or(DEFAULT_NAMESPACE, String::as_str),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=1; windlass_token=wl_1; b=2".parse().unwrap());
        headers.append(COOKIE, "c=3".parse().unwrap());
        assert_eq!(cookie(&headers, "windlass_token"), Some("wl_1"));
        assert_eq!(cookie(&headers, "c"), Some("3"));
        assert_eq!(cookie(&headers, "token"), None);
    }
}
