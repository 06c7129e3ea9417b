//! The dashboard over HTTP, as a browser without JavaScript sees it.

mod access;
mod dead_letters;
mod events;
mod forbidden_actions;
mod live;
mod operate;
mod overview;
mod pages;
mod publish;
mod schedules;

use windlass::{NewToken, Scope};

use crate::harness::Server;
use crate::http::Response;

/// The headers that a browser sends with requests from a page of the dashboard.
pub const SAME_ORIGIN: &str = "sec-fetch-site: same-origin\r\norigin: http://localhost\r\n";
pub const FORM: &str = "content-type: application/x-www-form-urlencoded\r\n";

/// A browser, with or without a token.
pub struct Browser {
    cookies: String,
}

impl Browser {
    pub fn without_token() -> Browser {
        Browser { cookies: String::new() }
    }

    pub fn with_token(token: &str) -> Browser {
        Browser { cookies: format!("cookie: windlass_token={token}\r\n") }
    }

    pub async fn get(&self, server: &Server, path: &str) -> Response {
        server.send("GET", path, &self.cookies, "").await
    }

    /// Sends a form from a page of the dashboard.
    pub async fn post(&self, server: &Server, path: &str, form: &str) -> Response {
        server.send("POST", path, &format!("{}{SAME_ORIGIN}{FORM}", self.cookies), form).await
    }
}

/// Creates a token with these scopes for all namespaces.
pub async fn token(server: &Server, scopes: impl IntoIterator<Item = Scope>) -> String {
    server.queue.create_token(NewToken::new(scopes)).await.unwrap().secret
}

/// The HTML of a response with this status.
pub fn html(response: &Response, status: u16) -> &str {
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"), "{response:?}");
    &response.body
}

/// The target of a redirect.
pub fn location(response: &Response) -> &str {
    assert_eq!(response.status, 303, "{response:?}");
    response.header("location").unwrap()
}
