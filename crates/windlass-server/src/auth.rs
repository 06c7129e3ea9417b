//! Authentication and authorization, applied before every handler.
//!
//! The scope that a route requires is read from the OpenAPI document. Start at [`authorize`], the middleware.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use metrics::Counter;
use tokio::time::Instant;
use windlass::{DEFAULT_NAMESPACE, Queue, Scope, Token};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::path_part;
use crate::metrics::Metrics;

/// Which clients the server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Every client, without a token. Access is controlled by the network only.
    Open,
    /// Every client on this machine, but no web page of another site in a browser on it. As soon as an API token
    /// exists, only clients with a token.
    Local,
    /// Only clients with an API token.
    Tokens,
}

/// The access that each route requires, by method and path template.
pub(crate) type RequiredAccessByRoute = HashMap<(Method, String), RequiredAccess>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequiredAccess {
    /// No token: the response contains nothing about events.
    Public,
    Scope(Scope),
}

/// How long cached tokens are used. A revoked token works for at most this long.
const TOKEN_CACHE_TTL: Duration = Duration::from_secs(1);

/// Checks tokens, scopes and namespaces, and counts refusals.
pub(crate) struct Authorizer {
    access: Access,
    cached: RwLock<Arc<CachedTokens>>,
    /// Held while the tokens are read, so that only one request reads them.
    refresh_lock: tokio::sync::Mutex<()>,
    /// Set when the first token is seen. Revoking the last token does not open the server again.
    token_seen: AtomicBool,
    refusals: RefusalCounters,
}

#[derive(Default)]
struct CachedTokens {
    tokens: HashMap<String, Token>,
    read_at: Option<Instant>,
}

struct RefusalCounters {
    no_token: Counter,
    token_in_query: Counter,
    wrong_token: Counter,
    wrong_scope: Counter,
    other_namespace: Counter,
    cross_site: Counter,
}

impl Authorizer {
    pub fn new(access: Access, metrics: &Metrics) -> Authorizer {
        let refusals = RefusalCounters {
            no_token: metrics.refusal_counter("no_token"),
            token_in_query: metrics.refusal_counter("token_in_query"),
            wrong_token: metrics.refusal_counter("wrong_token"),
            wrong_scope: metrics.refusal_counter("wrong_scope"),
            other_namespace: metrics.refusal_counter("other_namespace"),
            cross_site: metrics.refusal_counter("cross_site"),
        };
        Authorizer {
            access,
            cached: RwLock::default(),
            refresh_lock: Default::default(),
            token_seen: AtomicBool::new(false),
            refusals,
        }
    }

    /// The token of the request; `None` if no token is required.
    async fn authenticate(&self, queue: &Queue, parts: &Parts) -> Result<Option<Token>, ApiError> {
        if self.access == Access::Open {
            return Ok(None);
        }
        let cached = self.cached_tokens(queue).await?;
        if self.access == Access::Local && !self.token_seen.load(Ordering::Relaxed) {
            return self.check_same_site(parts).map(|()| None);
        }
        self.find_token(&cached, queue, self.bearer(parts)?).map(Some)
    }

    /// Authenticates a browser by the token in its cookie. A request that changes something must come from a page of
    /// this dashboard, whatever its cookie: see [`Authorizer::check_origin`].
    pub async fn authenticate_browser(
        &self,
        queue: &Queue,
        parts: &Parts,
        cookie: Option<&str>,
    ) -> Result<Caller, ApiError> {
        if parts.method != Method::GET && parts.method != Method::HEAD {
            self.check_origin(parts)?;
        }
        if self.access == Access::Open {
            return Ok(Caller(None));
        }
        let cached = self.cached_tokens(queue).await?;
        if self.access == Access::Local && !self.token_seen.load(Ordering::Relaxed) {
            // A link on another site may lead here, so the origin is not checked. Checking the host name prevents DNS
            // rebinding.
            return if is_local(host(parts)) { Ok(Caller(None)) } else { Err(self.cross_site()) };
        }
        match cookie {
            Some(text) => self.find_token(&cached, queue, text).map(|token| Caller(Some(token))),
            None => Err(unauthorized("no_token", "an API token is needed to sign in")),
        }
    }

    fn find_token(&self, cached: &CachedTokens, queue: &Queue, text: &str) -> Result<Token, ApiError> {
        let token = Token::id_of(text).and_then(|id| cached.tokens.get(id)).filter(|token| token.matches(text));
        match token {
            Some(token) if !token.is_expired(queue.clock().now()) => Ok(token.clone()),
            _ => {
                self.refusals.wrong_token.increment(1);
                Err(unauthorized("wrong_token", "the API token is not known here, was revoked or has expired"))
            }
        }
    }

    /// Checks that the request was sent by a page of this dashboard. Browsers send `Sec-Fetch-Site` or, if the
    /// connection is neither encrypted nor local, only `Origin`. A page can forge neither.
    fn check_origin(&self, parts: &Parts) -> Result<(), ApiError> {
        let is_own_page = match parts.headers.get("sec-fetch-site") {
            Some(site) => site == "same-origin",
            None => origin(parts).is_some_and(|origin| is_origin_of(origin, host(parts))),
        };
        if is_own_page {
            return Ok(());
        }
        self.refusals.cross_site.increment(1);
        let error = "this was not sent by a page of this dashboard; nothing was changed";
        Err(ApiError::new(StatusCode::FORBIDDEN, "cross_site", error))
    }

    /// Whether the caller still has access.
    pub async fn is_still_authorized(&self, queue: &Queue, caller: &Caller) -> Result<bool, ApiError> {
        if self.access == Access::Open {
            return Ok(true);
        }
        let cached = self.cached_tokens(queue).await?;
        // As soon as a token exists, a caller without one is refused.
        let Some(token) = &caller.0 else { return Ok(!self.token_seen.load(Ordering::Relaxed)) };
        Ok(cached.tokens.contains_key(&token.token_id) && !token.is_expired(queue.clock().now()))
    }

    /// A server without tokens must refuse requests from web pages of other sites. Browsers name the site in
    /// `Sec-Fetch-Site` and `Origin`. The host name reveals a page that uses DNS rebinding.
    fn check_same_site(&self, parts: &Parts) -> Result<(), ApiError> {
        let site = parts.headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let site_is_own = site.is_none_or(|site| matches!(site, b"none" | b"same-origin"));
        let origin_is_own = origin(parts).is_none_or(|origin| is_origin_of(origin, host(parts)));
        if site_is_own && origin_is_own && is_local(host(parts)) { Ok(()) } else { Err(self.cross_site()) }
    }

    fn cross_site(&self) -> ApiError {
        self.refusals.cross_site.increment(1);
        ApiError::new(
            StatusCode::FORBIDDEN,
            "cross_site",
            "without API tokens the server answers only requests to localhost that no web page of another site made; \
             `windlass token create` makes a token",
        )
    }

    fn bearer<'a>(&self, parts: &'a Parts) -> Result<&'a str, ApiError> {
        let Some(header) = parts.headers.get(AUTHORIZATION) else { return Err(self.no_token(parts)) };
        let text = header.to_str().unwrap_or_default();
        match text.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
            _ => {
                self.refusals.wrong_token.increment(1);
                Err(unauthorized("wrong_token", "the Authorization header must be `Bearer` and an API token"))
            }
        }
    }

    fn no_token(&self, parts: &Parts) -> ApiError {
        let query = parts.uri.query().unwrap_or_default();
        if query.split('&').any(|pair| pair.starts_with("token=") || pair.starts_with("access_token=")) {
            self.refusals.token_in_query.increment(1);
            let error = "a token in a URL ends up in logs: revoke it, and send the new one in the Authorization header";
            return unauthorized("token_in_query", error);
        }
        self.refusals.no_token.increment(1);
        unauthorized("no_token", "an API token is needed: send `Authorization: Bearer <token>`")
    }

    /// Checks that the token has the scope and covers the namespace.
    pub fn check_access(&self, caller: &Caller, scope: Scope, namespace: Option<&str>) -> Result<(), ApiError> {
        let Some(token) = &caller.0 else { return Ok(()) };
        if !token.allows(scope) {
            self.refusals.wrong_scope.increment(1);
            let error = format!("this needs a token with the scope '{scope}'");
            return Err(ApiError::new(StatusCode::FORBIDDEN, "wrong_scope", error));
        }
        if let Some(namespace) = namespace.filter(|namespace| !token.covers(namespace)) {
            self.refusals.other_namespace.increment(1);
            let error = format!("the token is not for the namespace '{}'", namespace.escape_debug());
            return Err(ApiError::new(StatusCode::FORBIDDEN, "other_namespace", error));
        }
        Ok(())
    }

    /// Checks that the caller may see all namespaces.
    pub fn check_all_namespaces(&self, caller: &Caller) -> Result<(), ApiError> {
        if caller.covers_all_namespaces() {
            return Ok(());
        }
        self.refusals.other_namespace.increment(1);
        let error = "the token is for some namespaces only, and this is about all of them";
        Err(ApiError::new(StatusCode::FORBIDDEN, "other_namespace", error))
    }

    async fn cached_tokens(&self, queue: &Queue) -> Result<Arc<CachedTokens>, ApiError> {
        if let Some(cached) = self.fresh_tokens() {
            return Ok(cached);
        }
        let _refreshing = self.refresh_lock.lock().await;
        if let Some(cached) = self.fresh_tokens() {
            return Ok(cached);
        }
        let read_at = Some(Instant::now());
        let tokens: HashMap<String, Token> =
            queue.tokens().await?.into_iter().map(|token| (token.token_id.clone(), token)).collect();
        self.token_seen.fetch_or(!tokens.is_empty(), Ordering::Relaxed);
        let cached = Arc::new(CachedTokens { tokens, read_at });
        *self.cached.write().unwrap_or_else(PoisonError::into_inner) = cached.clone();
        Ok(cached)
    }

    fn fresh_tokens(&self) -> Option<Arc<CachedTokens>> {
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner).clone();
        cached.read_at.is_some_and(|at| at.elapsed() < TOKEN_CACHE_TTL).then_some(cached)
    }
}

/// The host name of the request. A header that is not text yields `""`, which is never local.
fn host(parts: &Parts) -> &str {
    parts.headers.get(HOST).map_or("localhost", |host| host.to_str().unwrap_or_default())
}

/// The origin of the page that sent the request.
fn origin(parts: &Parts) -> Option<&str> {
    parts.headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default())
}

fn is_origin_of(origin: &str, host: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, name)| name == host)
}

fn unauthorized(code: &'static str, error: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, code, error)
}

/// Whether a host name, with or without a port, always refers to this machine.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_matches(|c| c == '[' || c == ']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// The middleware. A route that is missing from the OpenAPI document requires the scope `admin`.
pub(crate) async fn authorize(
    State((app, required)): State<(App, Arc<RequiredAccessByRoute>)>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match authorize_request(&app, &required, &mut parts).await {
        Ok(caller) => {
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => {
            let challenge = error.status == StatusCode::UNAUTHORIZED;
            let mut response = error.into_response();
            if challenge {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"windlass\""));
            }
            response
        }
    }
}

async fn authorize_request(app: &App, required: &RequiredAccessByRoute, parts: &mut Parts) -> Result<Caller, ApiError> {
    let path = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned();
    let method = if parts.method == Method::HEAD { Method::GET } else { parts.method.clone() };
    let access = required.get(&(method, path.clone())).copied().unwrap_or(RequiredAccess::Scope(Scope::Admin));
    let RequiredAccess::Scope(scope) = access else { return Ok(Caller(None)) };
    let limit = app.options.request_timeout;
    let authenticated = tokio::time::timeout(limit, app.authorizer.authenticate(&app.queue, parts)).await;
    let caller = Caller(authenticated.map_err(|_| ApiError::timed_out(limit))??);
    if caller.0.is_some() {
        let namespace = namespace_of(&path, parts).await?;
        app.authorizer.check_access(&caller, scope, namespace.as_deref())?;
    }
    Ok(caller)
}

/// The namespace of a request; `None` for paths that concern all namespaces or none.
async fn namespace_of(path: &str, parts: &mut Parts) -> Result<Option<String>, ApiError> {
    if matches!(path, "/namespaces" | "/metrics" | "/doctor") {
        return Ok(None);
    }
    let named = path_part(parts, "namespace").await?;
    Ok(Some(named.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())))
}

/// The authenticated client. Without a token it may do everything.
#[derive(Clone)]
pub(crate) struct Caller(Option<Token>);

impl Caller {
    /// Whether the caller may see this namespace.
    pub fn covers(&self, namespace: &str) -> bool {
        self.0.as_ref().is_none_or(|token| token.covers(namespace))
    }

    /// Whether the caller has this scope in the namespaces that it covers.
    pub fn allows(&self, scope: Scope) -> bool {
        self.0.as_ref().is_none_or(|token| token.allows(scope))
    }

    /// Whether the caller may see every namespace.
    pub fn covers_all_namespaces(&self) -> bool {
        self.0.as_ref().is_none_or(|token| token.namespaces.is_empty())
    }

    /// The first namespace that the caller's token is limited to, if any.
    pub fn first_namespace(&self) -> Option<&str> {
        self.0.as_ref().and_then(|token| token.namespaces.first()).map(String::as_str)
    }

    /// The name of the caller's token; `None` if no token is required.
    pub fn token_name(&self) -> Option<&str> {
        self.0.as_ref().map(|token| token.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_are_local() {
        for host in ["localhost", "LOCALHOST:7700", "127.0.0.1", "127.0.0.1:7700", "[::1]:7700", "[::1]"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["example.com", "localhost.example.com", "10.0.0.1:7700", "", "127.0.0.1.evil.com:80"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
