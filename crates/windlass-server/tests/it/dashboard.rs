//! The dashboard over HTTP, as a browser without JavaScript sees it.

mod access;
mod dead_letters;
mod events;
mod guards;
mod live;
mod operate;
mod overview;
mod pages;
mod publish;
mod schedules;

use windlass::{NewToken, Scope};

use crate::bed::Server;
use crate::http::Response;

/// What a browser says of a request that one of our pages made.
pub const SAME_ORIGIN: &str = "sec-fetch-site: same-origin\r\norigin: http://localhost\r\n";
pub const FORM: &str = "content-type: application/x-www-form-urlencoded\r\n";

/// A browser, signed in with a token or on a server that asks for none.
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

    /// Sends a form from one of our pages.
    pub async fn post(&self, server: &Server, path: &str, form: &str) -> Response {
        server.send("POST", path, &format!("{}{SAME_ORIGIN}{FORM}", self.cookies), form).await
    }
}

/// A token with these scopes, in all namespaces.
pub async fn token(server: &Server, scopes: impl IntoIterator<Item = Scope>) -> String {
    server.queue.create_token(NewToken::new(scopes)).await.unwrap().secret
}

/// The page, which must be one.
pub fn html(response: &Response, status: u16) -> &str {
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"), "{response:?}");
    &response.body
}

/// Where a redirect leads.
pub fn location(response: &Response) -> &str {
    assert_eq!(response.status, 303, "{response:?}");
    response.header("location").unwrap()
}
