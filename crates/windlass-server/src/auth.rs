//! Who may do what: checked before every handler, against what the OpenAPI document says each path needs.

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

/// Whom the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everybody. Only the network keeps strangers out.
    Open,
    /// Everybody on this machine, but no web page that a browser on it shows; once there is an API
    /// token, only who has one.
    Local,
    /// Only who has an API token.
    Tokens,
}

/// What a path needs, by method and path as the router knows it.
pub(crate) type Needs = HashMap<(Method, String), Need>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Open to everybody: it says nothing about events.
    Nothing,
    Scope(Scope),
}

/// Tokens are read again from the database when they are older than this, so one that was revoked
/// works for at most so long.
const TOKENS_FRESH: Duration = Duration::from_secs(1);

/// Decides who passes.
pub(crate) struct Gate {
    access: Access,
    known: RwLock<Arc<Known>>,
    /// Held by whoever reads the tokens again.
    reading: tokio::sync::Mutex<()>,
    /// Once a token was seen, revoking the last one does not open the server again.
    seen_any: AtomicBool,
    refused: Refused,
}

#[derive(Default)]
struct Known {
    tokens: HashMap<String, Token>,
    read_at: Option<Instant>,
}

struct Refused {
    no_token: Counter,
    token_in_query: Counter,
    wrong_token: Counter,
    wrong_scope: Counter,
    other_namespace: Counter,
    cross_site: Counter,
}

impl Gate {
    pub fn new(access: Access, metrics: &Metrics) -> Gate {
        let refused = Refused {
            no_token: metrics.refused("no_token"),
            token_in_query: metrics.refused("token_in_query"),
            wrong_token: metrics.refused("wrong_token"),
            wrong_scope: metrics.refused("wrong_scope"),
            other_namespace: metrics.refused("other_namespace"),
            cross_site: metrics.refused("cross_site"),
        };
        Gate {
            access,
            known: RwLock::default(),
            reading: Default::default(),
            seen_any: AtomicBool::new(false),
            refused,
        }
    }

    /// The token that the request came with; `None` where none is asked for.
    async fn admit(&self, queue: &Queue, parts: &Parts) -> Result<Option<Token>, ApiError> {
        if self.access == Access::Open {
            return Ok(None);
        }
        let known = self.known(queue).await?;
        if self.access == Access::Local && !self.seen_any.load(Ordering::Relaxed) {
            return self.check_site(parts).map(|()| None);
        }
        self.find(&known, queue, self.bearer(parts)?).map(Some)
    }

    /// Who sits at a browser, by the token that its cookie holds. What changes something must come from
    /// a page of ours, whatever the cookie: see [`Gate::check_origin`].
    pub async fn admit_browser(&self, queue: &Queue, parts: &Parts, cookie: Option<&str>) -> Result<Caller, ApiError> {
        if parts.method != Method::GET && parts.method != Method::HEAD {
            self.check_origin(parts)?;
        }
        if self.access == Access::Open {
            return Ok(Caller(None));
        }
        let known = self.known(queue).await?;
        if self.access == Access::Local && !self.seen_any.load(Ordering::Relaxed) {
            // A link on another site may lead here; a name that another site made point here may not.
            return if is_local(host(parts)) { Ok(Caller(None)) } else { Err(self.cross_site()) };
        }
        match cookie {
            Some(text) => self.find(&known, queue, text).map(|token| Caller(Some(token))),
            None => Err(unauthorized("no_token", "an API token is needed to sign in")),
        }
    }

    fn find(&self, known: &Known, queue: &Queue, text: &str) -> Result<Token, ApiError> {
        let token = Token::id_of(text).and_then(|id| known.tokens.get(id)).filter(|token| token.matches(text));
        match token {
            Some(token) if !token.is_expired(queue.clock().now()) => Ok(token.clone()),
            _ => {
                self.refused.wrong_token.increment(1);
                Err(unauthorized("wrong_token", "the API token is not known here, was revoked or has expired"))
            }
        }
    }

    /// Whether a browser says that a page of ours sent this. Browsers say so by `Sec-Fetch-Site` or, where the
    /// connection is neither encrypted nor local, by `Origin` alone; a page cannot forge either.
    fn check_origin(&self, parts: &Parts) -> Result<(), ApiError> {
        let own = match parts.headers.get("sec-fetch-site") {
            Some(site) => site == "same-origin",
            None => origin(parts).is_some_and(|origin| is_origin_of(origin, host(parts))),
        };
        if own {
            return Ok(());
        }
        self.refused.cross_site.increment(1);
        let error = "this was not sent by a page of this dashboard; nothing was changed";
        Err(ApiError::new(StatusCode::FORBIDDEN, "cross_site", error))
    }

    /// Whether the caller would still be admitted.
    pub async fn still_admits(&self, queue: &Queue, caller: &Caller) -> Result<bool, ApiError> {
        if self.access == Access::Open {
            return Ok(true);
        }
        let known = self.known(queue).await?;
        // Once there is a token, nobody is let in without one.
        let Some(token) = &caller.0 else { return Ok(!self.seen_any.load(Ordering::Relaxed)) };
        Ok(known.tokens.contains_key(&token.token_id) && !token.is_expired(queue.clock().now()))
    }

    /// A server that asks for no token must not do the bidding of web pages: a browser says where a
    /// request comes from, and a page that makes its own name point here gives itself away by that name.
    fn check_site(&self, parts: &Parts) -> Result<(), ApiError> {
        let site = parts.headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let at_home = site.is_none_or(|site| matches!(site, b"none" | b"same-origin"));
        let own = origin(parts).is_none_or(|origin| is_origin_of(origin, host(parts)));
        if at_home && own && is_local(host(parts)) { Ok(()) } else { Err(self.cross_site()) }
    }

    fn cross_site(&self) -> ApiError {
        self.refused.cross_site.increment(1);
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
                self.refused.wrong_token.increment(1);
                Err(unauthorized("wrong_token", "the Authorization header must be `Bearer` and an API token"))
            }
        }
    }

    fn no_token(&self, parts: &Parts) -> ApiError {
        let query = parts.uri.query().unwrap_or_default();
        if query.split('&').any(|pair| pair.starts_with("token=") || pair.starts_with("access_token=")) {
            self.refused.token_in_query.increment(1);
            let error = "a token in a URL ends up in logs: revoke it, and send the new one in the Authorization header";
            return unauthorized("token_in_query", error);
        }
        self.refused.no_token.increment(1);
        unauthorized("no_token", "an API token is needed: send `Authorization: Bearer <token>`")
    }

    /// Whether the token allows this.
    pub fn check(&self, caller: &Caller, scope: Scope, namespace: Option<&str>) -> Result<(), ApiError> {
        let Some(token) = &caller.0 else { return Ok(()) };
        if !token.allows(scope) {
            self.refused.wrong_scope.increment(1);
            let error = format!("this needs a token with the scope '{scope}'");
            return Err(ApiError::new(StatusCode::FORBIDDEN, "wrong_scope", error));
        }
        if let Some(namespace) = namespace.filter(|namespace| !token.covers(namespace)) {
            self.refused.other_namespace.increment(1);
            let error = format!("the token is not for the namespace '{}'", namespace.escape_debug());
            return Err(ApiError::new(StatusCode::FORBIDDEN, "other_namespace", error));
        }
        Ok(())
    }

    /// Whether the caller may know of the whole database.
    pub fn check_whole(&self, caller: &Caller) -> Result<(), ApiError> {
        if caller.is_for_all() {
            return Ok(());
        }
        self.refused.other_namespace.increment(1);
        let error = "the token is for some namespaces only, and this is about all of them";
        Err(ApiError::new(StatusCode::FORBIDDEN, "other_namespace", error))
    }

    async fn known(&self, queue: &Queue) -> Result<Arc<Known>, ApiError> {
        if let Some(fresh) = self.fresh() {
            return Ok(fresh);
        }
        let _reading = self.reading.lock().await;
        if let Some(fresh) = self.fresh() {
            return Ok(fresh);
        }
        let read_at = Some(Instant::now());
        let tokens: HashMap<String, Token> =
            queue.tokens().await?.into_iter().map(|token| (token.token_id.clone(), token)).collect();
        self.seen_any.fetch_or(!tokens.is_empty(), Ordering::Relaxed);
        let known = Arc::new(Known { tokens, read_at });
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known.clone();
        Ok(known)
    }

    fn fresh(&self) -> Option<Arc<Known>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).clone();
        known.read_at.is_some_and(|at| at.elapsed() < TOKENS_FRESH).then_some(known)
    }
}

/// The name that the request was sent to. One that cannot be read is nobody's.
fn host(parts: &Parts) -> &str {
    parts.headers.get(HOST).map_or("localhost", |host| host.to_str().unwrap_or_default())
}

/// The site of the page that sent the request.
fn origin(parts: &Parts) -> Option<&str> {
    parts.headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default())
}

fn is_origin_of(origin: &str, host: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, name)| name == host)
}

fn unauthorized(code: &'static str, error: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, code, error)
}

/// A host name, with or without a port, that cannot be anybody else's.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_matches(|c| c == '[' || c == ']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// The middleware. A path that the document does not know needs the most.
pub(crate) async fn check(State((app, needs)): State<(App, Arc<Needs>)>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    match admit(&app, &needs, &mut parts).await {
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

async fn admit(app: &App, needs: &Needs, parts: &mut Parts) -> Result<Caller, ApiError> {
    let path = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned();
    let method = if parts.method == Method::HEAD { Method::GET } else { parts.method.clone() };
    let need = needs.get(&(method, path.clone())).copied().unwrap_or(Need::Scope(Scope::Admin));
    let Need::Scope(scope) = need else { return Ok(Caller(None)) };
    let limit = app.options.request_timeout;
    let admitted = tokio::time::timeout(limit, app.gate.admit(&app.queue, parts)).await;
    let caller = Caller(admitted.map_err(|_| ApiError::timed_out(limit))??);
    if caller.0.is_some() {
        let namespace = namespace_of(&path, parts).await?;
        app.gate.check(&caller, scope, namespace.as_deref())?;
    }
    Ok(caller)
}

/// The namespace that a request is about; `None` for what is about all of them, or none.
async fn namespace_of(path: &str, parts: &mut Parts) -> Result<Option<String>, ApiError> {
    if matches!(path, "/namespaces" | "/metrics" | "/doctor") {
        return Ok(None);
    }
    let named = path_part(parts, "namespace").await?;
    Ok(Some(named.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())))
}

/// Who asks; without a token, anybody.
#[derive(Clone)]
pub(crate) struct Caller(Option<Token>);

impl Caller {
    /// Whether the caller may know of this namespace.
    pub fn covers(&self, namespace: &str) -> bool {
        self.0.as_ref().is_none_or(|token| token.covers(namespace))
    }

    /// Whether the caller may do this, where it may do anything.
    pub fn allows(&self, scope: Scope) -> bool {
        self.0.as_ref().is_none_or(|token| token.allows(scope))
    }

    /// Whether the caller may know of every namespace.
    pub fn is_for_all(&self) -> bool {
        self.0.as_ref().is_none_or(|token| token.namespaces.is_empty())
    }

    /// A namespace that the caller's token names, if it names any.
    pub fn namespace(&self) -> Option<&str> {
        self.0.as_ref().and_then(|token| token.namespaces.first()).map(String::as_str)
    }

    /// What the caller's token is called; `None` where none is asked for.
    pub fn name(&self) -> Option<&str> {
        self.0.as_ref().map(|token| token.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_local() {
        for host in ["localhost", "LOCALHOST:7700", "127.0.0.1", "127.0.0.1:7700", "[::1]:7700", "[::1]"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["example.com", "localhost.example.com", "10.0.0.1:7700", "", "127.0.0.1.evil.com:80"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
