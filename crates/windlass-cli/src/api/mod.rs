//! Access to a queue through the paths of the HTTP API: on a server, or in this process on a database.
//!
//! Each command is written once for both, and `--json` prints the same from both. Start with [`NamespaceTarget`] and
//! [`Api`].

mod client;
pub mod responses;
mod stream;

use std::fmt;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Request, Response};
use clap::Args;
use http_body_util::BodyExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass::Queue;
use windlass_api::ErrorBody;
use windlass_server::InProcessApi;

use self::client::HttpClient;
pub use self::stream::{EventStream, ServerSentEvent};
use crate::Result;
use crate::database::{CONNECTION, Database};
use crate::exit::UsageError;

/// The options that select a database or a server.
#[derive(Args, Clone)]
pub struct QueueLocation {
    #[command(flatten)]
    pub database: Database,
    /// Ask this server, as in https://events.example.com, instead of opening a database
    #[arg(long, value_name = "URL", env = "WINDLASS_SERVER", hide_env_values = true, help_heading = CONNECTION)]
    server: Option<String>,
    /// The API token that the server asks for
    #[arg(long, value_name = "TOKEN", env = "WINDLASS_TOKEN", hide_env_values = true, help_heading = CONNECTION)]
    token: Option<String>,
}

/// The options that select a database or a server, and a namespace in it.
#[derive(Args, Clone)]
pub struct NamespaceTarget {
    #[command(flatten)]
    pub location: QueueLocation,
    /// The namespace
    #[arg(
        long, short, value_name = "NAME", env = "WINDLASS_NAMESPACE", hide_env_values = true,
        default_value = "default", help_heading = CONNECTION
    )]
    pub namespace: String,
}

impl QueueLocation {
    /// Selects a namespace.
    pub fn namespace(self, namespace: impl Into<String>) -> NamespaceTarget {
        NamespaceTarget { location: self, namespace: namespace.into() }
    }

    /// Returns the server's or the database's URL for display, without a password.
    pub fn display_name(&self) -> String {
        self.server.clone().unwrap_or_else(|| self.database.display_url())
    }
}

impl NamespaceTarget {
    /// Connects to a server or an existing database. A missing database is an error and is not created.
    pub async fn connect(&self) -> Result<Api> {
        match &self.location.server {
            Some(server) => self.server_api(server),
            None => Ok(self.database_api(self.location.database.open_existing().await?)),
        }
    }

    /// Connects to a server or a database. A missing database is created.
    pub async fn connect_or_create(&self) -> Result<Api> {
        match &self.location.server {
            Some(server) => self.server_api(server),
            None => Ok(self.database_api(Queue::open(&self.location.database.url).await?)),
        }
    }

    /// Connects, runs `work` and closes the connection.
    pub async fn with_api<T>(&self, work: impl AsyncFnOnce(&Api) -> Result<T>) -> Result<T> {
        let api = self.connect().await?;
        let result = work(&api).await;
        api.close().await;
        result
    }

    /// Returns the server's or the database's URL for display, without a password.
    pub fn display_name(&self) -> String {
        self.location.display_name()
    }

    fn server_api(&self, server: &str) -> Result<Api> {
        let token = self.location.token.as_ref().map(|token| bearer_header(token)).transpose()?;
        Ok(Api {
            transport: Transport::Http(Box::new(HttpClient::new(server)?), token),
            namespace: self.namespace.clone(),
        })
    }

    fn database_api(&self, queue: Queue) -> Api {
        Api {
            transport: Transport::InProcess(InProcessApi::new(queue.clone()), queue),
            namespace: self.namespace.clone(),
        }
    }
}

fn bearer_header(token: &str) -> Result<HeaderValue> {
    let mut header = HeaderValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| UsageError("--token: has characters that no API token has".to_owned()))?;
    header.set_sensitive(true);
    Ok(header)
}

/// The HTTP API of a queue, for one namespace.
pub struct Api {
    transport: Transport,
    namespace: String,
}

enum Transport {
    /// Requests are handled in this process.
    InProcess(InProcessApi, Queue),
    /// Requests go to a server, with this `authorization` header.
    Http(Box<HttpClient>, Option<HeaderValue>),
}

/// Names and values of query parameters.
pub type Query<'a> = &'a [(&'a str, String)];

/// Returns the parameters that have a value.
pub fn present_params<'a>(pairs: impl IntoIterator<Item = (&'a str, Option<String>)>) -> Vec<(&'a str, String)> {
    pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Formats a list for the API. Returns `None` for an empty list.
pub fn comma_separated(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| names.join(","))
}

impl Api {
    /// Returns the queue if this process has opened the database itself.
    pub fn queue(&self) -> Option<&Queue> {
        match &self.transport {
            Transport::InProcess(_, queue) => Some(queue),
            Transport::Http(..) => None,
        }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Prefixes a path with the namespace.
    pub fn namespace_path(&self, path: &str) -> String {
        format!("/namespaces/{}{path}", encode_segment(&self.namespace))
    }

    pub async fn get(&self, path: &str, query: Query<'_>) -> Result<ApiResponse> {
        self.request(Method::GET, path, query, Body::empty()).await
    }

    pub async fn delete(&self, path: &str, query: Query<'_>) -> Result<ApiResponse> {
        self.request(Method::DELETE, path, query, Body::empty()).await
    }

    pub async fn post<T: Serialize + ?Sized>(&self, path: &str, query: Query<'_>, body: &T) -> Result<ApiResponse> {
        self.request(Method::POST, path, query, Body::from(serde_json::to_vec(body)?)).await
    }

    pub async fn put<T: Serialize + ?Sized>(&self, path: &str, query: Query<'_>, body: &T) -> Result<ApiResponse> {
        self.request(Method::PUT, path, query, Body::from(serde_json::to_vec(body)?)).await
    }

    /// Opens a stream of server-sent events.
    pub async fn stream(&self, path: &str, query: Query<'_>) -> Result<EventStream> {
        let response = self.send(Method::GET, path, query, Body::empty()).await?;
        match response.status().is_success() {
            true => Ok(EventStream::new(response.into_body())),
            false => Err(ApiResponse::read_from(response).await?.to_error().into()),
        }
    }

    /// Closes the database.
    pub async fn close(self) {
        if let Transport::InProcess(_, queue) = self.transport {
            queue.close().await;
        }
    }

    async fn request(&self, method: Method, path: &str, query: Query<'_>, body: Body) -> Result<ApiResponse> {
        let response = ApiResponse::read_from(self.send(method, path, query, body).await?).await?;
        if response.status < 400 { Ok(response) } else { Err(response.to_error().into()) }
    }

    async fn send(&self, method: Method, path: &str, query: Query<'_>, body: Body) -> Result<Response<Body>> {
        let request = Request::builder().method(method).uri(path_with_query(path, query));
        let mut request = request.header(CONTENT_TYPE, "application/json").body(body)?;
        match &self.transport {
            Transport::InProcess(local, _) => Ok(local.call(request).await),
            Transport::Http(client, token) => {
                if let Some(token) = token {
                    request.headers_mut().insert(AUTHORIZATION, token.clone());
                }
                client.send(request).await
            }
        }
    }
}

/// The characters that a path segment may contain unencoded.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Encodes a path segment.
pub fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

fn path_with_query(path: &str, query: Query) -> String {
    let pairs: Vec<String> =
        query.iter().map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// A response of the API.
pub struct ApiResponse {
    pub status: u16,
    /// JSON, or empty.
    pub text: String,
}

impl ApiResponse {
    async fn read_from(response: Response<Body>) -> Result<ApiResponse> {
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|error| Unreachable(error.to_string()))?;
        Ok(ApiResponse { status, text: String::from_utf8_lossy(&body.to_bytes()).into_owned() })
    }

    /// Parses the body.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.text).map_err(|error| format!("the answer was not understood: {error}").into())
    }

    fn to_error(&self) -> ApiError {
        match self.json::<ErrorBody>() {
            Ok(body) => ApiError { status: self.status, code: body.code.into_owned(), message: body.error },
            // Not an error of Windlass; a proxy may have sent it.
            Err(_) => ApiError {
                status: self.status,
                code: String::new(),
                message: format!("the server answered with status {} and no reason", self.status),
            },
        }
    }
}

/// An error that the API returned.
#[derive(Debug)]
pub struct ApiError {
    pub status: u16,
    /// The error code: see docs/errors.md.
    pub code: String,
    pub message: String,
}

impl ApiError {
    #[cfg(test)]
    pub fn new(status: u16, message: &str) -> ApiError {
        ApiError { status, code: String::new(), message: message.to_owned() }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

/// The server cannot be reached, or did not respond in time.
#[derive(Debug)]
pub struct Unreachable(pub String);

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreachable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments_and_query_values_are_encoded() {
        assert_eq!(encode_segment("a/b?c#d e%"), "a%2Fb%3Fc%23d%20e%25");
        assert_eq!(
            (encode_segment("host-1.a_b"), encode_segment("`{|}")),
            ("host-1.a_b".into(), "%60%7B%7C%7D".into())
        );
        assert_eq!(path_with_query("/events", &[]), "/events");
        let query = [("types", "order.*".to_owned()), ("text", "a&b=c +ü".to_owned())];
        assert_eq!(path_with_query("/events", &query), "/events?types=order%2E%2A&text=a%26b%3Dc%20%2B%C3%BC");
    }

    #[test]
    fn api_error_has_the_message_of_the_server() {
        let error = |text: &str| ApiResponse { status: 404, text: text.to_owned() }.to_error();
        let ours = error(r#"{"error": "no event 7", "code": "event_not_found"}"#);
        assert_eq!((ours.to_string().as_str(), ours.code.as_str()), ("no event 7", "event_not_found"));
        assert_eq!(error("<html>").to_string(), "the server answered with status 404 and no reason");
    }
}
