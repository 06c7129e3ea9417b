//! The context of a page request: user, namespace and permissions.
//!
//! [`authorize`] is the middleware that creates it before every page. Handlers receive it as an extractor.

use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use windlass::{DEFAULT_NAMESPACE, Namespace, Queue, Scope, Timestamp};
use windlass_api::ErrorBody;

use super::flash;
use super::form::{encode, local_path};
use super::layout::{self, Layout, Tab};
use super::{Dashboard, PageResult, sign_in};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::extract::path_part;

/// The context of one authorized page request.
#[derive(Clone)]
pub(super) struct PageContext(Arc<ContextData>);

pub(super) struct ContextData {
    pub app: App,
    pub caller: Caller,
    /// The queue, in the namespace of the page.
    pub queue: Queue,
    /// The namespace, read for this request; `None` if it does not exist or the caller may not see it.
    pub namespace: Option<Namespace>,
    /// The namespaces that the caller may see.
    pub namespaces: Vec<String>,
    pub now: Timestamp,
    /// Whether the caller may change things.
    pub may_act: bool,
    pub may_publish: bool,
    /// The result of the previous action.
    notice: Option<String>,
}

impl std::ops::Deref for PageContext {
    type Target = ContextData;

    fn deref(&self) -> &ContextData {
        &self.0
    }
}

impl FromRequestParts<App> for PageContext {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<PageContext, ApiError> {
        let ctx = parts.extensions.get::<PageContext>().cloned();
        ctx.ok_or_else(|| ApiError::unavailable("closed", "this page was requested without authorization"))
    }
}

/// The middleware in front of every page.
pub(super) async fn authorize(State(app): State<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let limit = app.options.request_timeout;
    let loaded = tokio::time::timeout(limit, load_context(&app, &mut parts)).await;
    let (ctx, denied) = match loaded.unwrap_or_else(|_| Err(ApiError::timed_out(limit))) {
        Ok(loaded) => loaded,
        Err(error) if error.status == StatusCode::UNAUTHORIZED => return redirect_to_sign_in(&parts),
        Err(error) => return layout::bare_error(error.status, &error.body),
    };
    let had_notice = ctx.notice.is_some();
    let response = match denied {
        Some(error) => error.into_response(),
        None => {
            parts.extensions.insert(ctx.clone());
            next.run(Request::from_parts(parts, body)).await
        }
    };
    let mut response = match response.extensions().get::<ErrorBody>() {
        Some(error) => layout::error(&ctx, response.status(), error),
        None => response,
    };
    if had_notice && !response.headers().contains_key(SET_COOKIE) {
        response.headers_mut().append(SET_COOKIE, flash::clear());
    }
    response
}

/// Creates the context, and the error if the request must be refused.
async fn load_context(app: &App, parts: &mut Parts) -> Result<(PageContext, Option<ApiError>), ApiError> {
    let caller =
        app.authorizer.authenticate_browser(&app.queue, parts, cookie(&parts.headers, sign_in::COOKIE)).await?;
    let name = path_part(parts, "namespace").await?.unwrap_or_default();
    let queue = app.queue.in_namespace(&name)?;
    let scope = scope_of(parts);
    let denied = app.authorizer.check_access(&caller, scope, Some(&name)).err().or_else(|| read_only(app, parts));
    let mut visible = app.queue.namespaces().await?;
    visible.retain(|namespace| caller.covers(&namespace.namespace));
    let namespaces = visible.iter().map(|namespace| namespace.namespace.clone()).collect();
    let namespace = visible.into_iter().find(|namespace| namespace.namespace == name);
    let denied = denied.or_else(|| match &namespace {
        Some(_) => None,
        None => Some(windlass::Error::NamespaceNotFound { namespace: name.clone() }.into()),
    });
    let allows_changes = app.options.dashboard == Dashboard::On;
    let ctx = ContextData {
        may_act: allows_changes && caller.allows(Scope::Admin),
        may_publish: allows_changes && caller.allows(Scope::Publish),
        now: app.queue.clock().now(),
        // Live updates do not show the notice.
        notice: cookie(&parts.headers, flash::COOKIE).filter(|_| !is_live_update(parts)).map(flash::get),
        app: app.clone(),
        caller,
        queue,
        namespace,
        namespaces,
    };
    Ok((PageContext(Arc::new(ctx)), denied))
}

/// The required scope: `publish` for the publish page, otherwise `read` for GET and `admin` for POST.
fn scope_of(parts: &Parts) -> Scope {
    let path = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    match parts.method {
        _ if path == super::PUBLISH => Scope::Publish,
        Method::GET | Method::HEAD => Scope::Read,
        _ => Scope::Admin,
    }
}

fn read_only(app: &App, parts: &Parts) -> Option<ApiError> {
    let is_page_view = matches!(parts.method, Method::GET | Method::HEAD) && scope_of(parts) == Scope::Read;
    let error = "this dashboard is read-only";
    (!is_page_view && app.options.dashboard == Dashboard::ReadOnly)
        .then(|| ApiError::new(StatusCode::FORBIDDEN, "wrong_scope", error))
}

/// Whether `app.js` requests an update of an open page.
fn is_live_update(parts: &Parts) -> bool {
    parts.headers.contains_key("x-windlass-live")
}

/// Redirects to the sign-in page and from there back to this page. A browser that follows a link on another site does not
/// send the cookie (`SameSite=Strict`). It sends the cookie after a redirect from this server to the same page.
fn redirect_to_sign_in(parts: &Parts) -> Response {
    let here = parts.uri.path_and_query().map_or("/ui", |here| here.as_str());
    let is_page_view = parts.method == Method::GET && !is_live_update(parts);
    let from_elsewhere = parts.headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    let has_cookie = cookie(&parts.headers, sign_in::COOKIE).is_some();
    match local_path(here) {
        Some(here) if is_page_view && from_elsewhere && !has_cookie => layout::redirect_to_self(here),
        Some(here) if is_page_view => Redirect::to(&format!("/ui/sign-in?next={}", encode(here))).into_response(),
        _ => Redirect::to("/ui/sign-in").into_response(),
    }
}

/// The value of a cookie.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(COOKIE).into_iter().filter_map(|header| header.to_str().ok());
    let mut pairs = all.flat_map(|header| header.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

impl PageContext {
    /// The layout around the content of a page.
    pub fn layout(&self, tab: Tab, title: impl Into<String>) -> Layout {
        Layout::new(self, tab, title.into())
    }

    /// The path of a page in this namespace; `""` is the overview.
    pub fn path(&self, page: &str) -> String {
        let namespace = self.queue.namespace();
        if page.is_empty() { format!("/ui/{namespace}") } else { format!("/ui/{namespace}/{page}") }
    }

    /// Redirects to a page after an action. The page shows the notice.
    pub fn redirect_with_notice(&self, path: &str, notice: &str) -> PageResult {
        let mut response = Redirect::to(local_path(path).unwrap_or("/ui")).into_response();
        if let Some(cookie) = flash::set(notice) {
            response.headers_mut().append(SET_COOKIE, cookie);
        }
        Ok(response)
    }

    pub(super) fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// The namespace for links: the current one, or another visible one if it does not exist.
    pub(super) fn link_namespace(&self) -> &str {
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
    fn cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=1; windlass_token=wl_1; b=2".parse().unwrap());
        headers.append(COOKIE, "c=3".parse().unwrap());
        assert_eq!(cookie(&headers, "windlass_token"), Some("wl_1"));
        assert_eq!(cookie(&headers, "c"), Some("3"));
        assert_eq!(cookie(&headers, "token"), None);
    }
}
