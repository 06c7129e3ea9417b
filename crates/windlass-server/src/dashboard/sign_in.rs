//! Signing in with an API token. The cookie contains the token itself, so every server on the database accepts it, and
//! revoking the token ends the session. The JSON API ignores cookies.

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::http::header::SET_COOKIE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use windlass::DEFAULT_NAMESPACE;

use super::assets::VERSION;
use super::form::{Form, local_path};
use super::home_namespace;
use super::layout::{bare_error, render_with_status};
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{FormBody, QueryArgs};

pub(super) const COOKIE: &str = "windlass_token";

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/sign-in", get(ask).post(sign_in)).route("/ui/sign-out", post(sign_out))
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    assets: &'static str,
    next: &'a str,
    error: Option<&'a str>,
}

#[derive(Deserialize)]
struct AskArgs {
    #[serde(default)]
    next: String,
}

async fn ask(QueryArgs(args): QueryArgs<AskArgs>) -> Response {
    let next = local_path(&args.next).unwrap_or_default();
    render_with_status(StatusCode::OK, &SignInPage { assets: &VERSION, next, error: None })
}

async fn sign_in(State(app): State<App>, parts: Parts, FormBody(fields, _memory): FormBody) -> Response {
    let form = Form(fields);
    let next = local_path(form.text("next")).unwrap_or("/ui");
    let token = form.get("token").unwrap_or_default();
    match app.authorizer.authenticate_browser(&app.queue, &parts, Some(token)).await {
        Ok(caller) => {
            let next = if is_home(next) { format!("/ui/{}", home_namespace(&caller)) } else { next.to_owned() };
            let response = Redirect::to(&next).into_response();
            // If the server requires no token, the typed text need not be one, so it is not stored.
            if caller.token_name().is_none() {
                return response;
            }
            with_cookie(response, &cookie(&app, &parts.headers, token))
        }
        Err(error) if error.status == StatusCode::UNAUTHORIZED => {
            let sentence = if token.is_empty() { "Enter an API token." } else { &error.body.error };
            render_with_status(StatusCode::UNAUTHORIZED, &SignInPage { assets: &VERSION, next, error: Some(sentence) })
        }
        Err(error) => bare_error(error.status, &error.body),
    }
}

async fn sign_out(State(app): State<App>, parts: Parts) -> Response {
    match app
        .authorizer
        .authenticate_browser(&app.queue, &parts, super::page_context::cookie(&parts.headers, COOKIE))
        .await
    {
        Err(error) if error.status == StatusCode::FORBIDDEN => bare_error(error.status, &error.body),
        _ => with_cookie(Redirect::to("/ui/sign-in").into_response(), &cookie(&app, &parts.headers, "")),
    }
}

fn is_home(path: &str) -> bool {
    path == "/ui" || path == format!("/ui/{DEFAULT_NAMESPACE}")
}

/// Lifetime of the cookie: one year. The token itself may expire sooner.
const SECONDS: u32 = 365 * 24 * 3600;

fn cookie(app: &App, headers: &HeaderMap, token: &str) -> String {
    let seconds = if token.is_empty() { 0 } else { SECONDS };
    let forwarded = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    let secure = if app.options.tls.is_some() || forwarded { "; Secure" } else { "" };
    format!("{COOKIE}={token}; Path=/ui; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    match HeaderValue::from_str(cookie) {
        Ok(cookie) => {
            response.headers_mut().append(SET_COOKIE, cookie);
            response
        }
        Err(_) => ApiError::invalid("token", "is not the text of a token").into_response(),
    }
}
