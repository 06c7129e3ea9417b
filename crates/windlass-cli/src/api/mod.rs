//! How commands reach a queue: by the paths of the HTTP API, on a server or – without a network – in this process, on
//! the database itself. So each command is written once, and `--json` prints the same from both.

mod client;
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
use windlass_server::Inside;

use self::client::Client;
pub use self::stream::{Stream, StreamEvent};
use crate::Result;
use crate::database::{CONNECTION, Database};
use crate::exit::Usage;

/// Where the events are: a database or a server.
#[derive(Args, Clone)]
pub struct Place {
    #[command(flatten)]
    pub database: Database,
    /// Ask this server, as in https://events.example.com, instead of opening a database
    #[arg(long, value_name = "URL", env = "WINDLASS_SERVER", hide_env_values = true, help_heading = CONNECTION)]
    server: Option<String>,
    /// The API token that the server asks for
    #[arg(long, value_name = "TOKEN", env = "WINDLASS_TOKEN", hide_env_values = true, help_heading = CONNECTION)]
    token: Option<String>,
}

/// Where the events are: a database or a server, and the namespace.
#[derive(Args, Clone)]
pub struct Target {
    #[command(flatten)]
    pub place: Place,
    /// The namespace
    #[arg(
        long, short, value_name = "NAME", env = "WINDLASS_NAMESPACE", hide_env_values = true,
        default_value = "default", help_heading = CONNECTION
    )]
    pub namespace: String,
}

impl Place {
    /// A namespace there.
    pub fn namespace(self, namespace: impl Into<String>) -> Target {
        Target { place: self, namespace: namespace.into() }
    }

    /// What is connected to, for people.
    pub fn shown(&self) -> String {
        self.server.clone().unwrap_or_else(|| self.database.shown())
    }
}

impl Target {
    /// To look at what is there: where there is no database it is an error, and none is made.
    pub async fn connect(&self) -> Result<Api> {
        match &self.place.server {
            Some(server) => self.to_server(server),
            None => Ok(self.to_database(self.place.database.open_existing().await?)),
        }
    }

    /// To put something there: a database that does not exist yet is made.
    pub async fn connect_or_create(&self) -> Result<Api> {
        match &self.place.server {
            Some(server) => self.to_server(server),
            None => Ok(self.to_database(Queue::open(&self.place.database.url).await?)),
        }
    }

    /// Connects, does the work, and lets go.
    pub async fn with<T>(&self, work: impl AsyncFnOnce(&Api) -> Result<T>) -> Result<T> {
        let api = self.connect().await?;
        let done = work(&api).await;
        api.close().await;
        done
    }

    /// What is connected to, for people.
    pub fn shown(&self) -> String {
        self.place.shown()
    }

    fn to_server(&self, server: &str) -> Result<Api> {
        let token = self.place.token.as_ref().map(|token| bearer(token)).transpose()?;
        Ok(Api { reach: Reach::Server(Box::new(Client::new(server)?), token), namespace: self.namespace.clone() })
    }

    fn to_database(&self, queue: Queue) -> Api {
        Api { reach: Reach::Database(Inside::new(queue.clone()), queue), namespace: self.namespace.clone() }
    }
}

fn bearer(token: &str) -> Result<HeaderValue> {
    let mut header = HeaderValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| Usage("--token: has characters that no API token has".to_owned()))?;
    header.set_sensitive(true);
    Ok(header)
}

/// A queue's HTTP API, wherever it is.
pub struct Api {
    reach: Reach,
    namespace: String,
}

enum Reach {
    Database(Inside, Queue),
    Server(Box<Client>, Option<HeaderValue>),
}

/// Names and values after a path's question mark.
pub type Query<'a> = &'a [(&'a str, String)];

/// Those that have a value.
pub fn given<'a>(pairs: impl IntoIterator<Item = (&'a str, Option<String>)>) -> Vec<(&'a str, String)> {
    pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// As lists are given to the API; `None` where there is nothing in it.
pub fn joined(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| names.join(","))
}

impl Api {
    /// The queue itself, where it is in this process.
    pub fn queue(&self) -> Option<&Queue> {
        match &self.reach {
            Reach::Database(_, queue) => Some(queue),
            Reach::Server(..) => None,
        }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A path within the namespace.
    pub fn within(&self, path: &str) -> String {
        format!("/namespaces/{}{path}", segment(&self.namespace))
    }

    pub async fn get(&self, path: &str, query: Query<'_>) -> Result<Answer> {
        self.ask(Method::GET, path, query, Body::empty()).await
    }

    pub async fn delete(&self, path: &str, query: Query<'_>) -> Result<Answer> {
        self.ask(Method::DELETE, path, query, Body::empty()).await
    }

    pub async fn post<T: Serialize + ?Sized>(&self, path: &str, query: Query<'_>, body: &T) -> Result<Answer> {
        self.ask(Method::POST, path, query, Body::from(serde_json::to_vec(body)?)).await
    }

    pub async fn put<T: Serialize + ?Sized>(&self, path: &str, query: Query<'_>, body: &T) -> Result<Answer> {
        self.ask(Method::PUT, path, query, Body::from(serde_json::to_vec(body)?)).await
    }

    /// What a path tells as it happens.
    pub async fn stream(&self, path: &str, query: Query<'_>) -> Result<Stream> {
        let response = self.send(Method::GET, path, query, Body::empty()).await?;
        match response.status().is_success() {
            true => Ok(Stream::new(response.into_body())),
            false => Err(Answer::of(response).await?.refusal().into()),
        }
    }

    /// Lets go of the database.
    pub async fn close(self) {
        if let Reach::Database(_, queue) = self.reach {
            queue.close().await;
        }
    }

    async fn ask(&self, method: Method, path: &str, query: Query<'_>, body: Body) -> Result<Answer> {
        let answer = Answer::of(self.send(method, path, query, body).await?).await?;
        if answer.status < 400 { Ok(answer) } else { Err(answer.refusal().into()) }
    }

    async fn send(&self, method: Method, path: &str, query: Query<'_>, body: Body) -> Result<Response<Body>> {
        let request = Request::builder().method(method).uri(with_query(path, query));
        let mut request = request.header(CONTENT_TYPE, "application/json").body(body)?;
        match &self.reach {
            Reach::Database(inside, _) => Ok(inside.call(request).await),
            Reach::Server(client, token) => {
                if let Some(token) = token {
                    request.headers_mut().insert(AUTHORIZATION, token.clone());
                }
                client.send(request).await
            }
        }
    }
}

/// What may stand in a part of a path as it is.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// One part of a path.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

fn with_query(path: &str, query: Query) -> String {
    let pairs: Vec<String> =
        query.iter().map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// What was answered.
pub struct Answer {
    pub status: u16,
    /// JSON, or nothing.
    pub text: String,
}

impl Answer {
    async fn of(response: Response<Body>) -> Result<Answer> {
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|error| Unreachable(error.to_string()))?;
        Ok(Answer { status, text: String::from_utf8_lossy(&body.to_bytes()).into_owned() })
    }

    /// What it says, in the caller's terms.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.text).map_err(|error| format!("the answer was not understood: {error}").into())
    }

    fn refusal(&self) -> Refusal {
        #[derive(serde::Deserialize)]
        struct Body {
            error: String,
            code: String,
        }
        match self.read::<Body>() {
            Ok(Body { error, code }) => Refusal { status: self.status, code, sentence: error },
            // Not one of ours: a proxy, perhaps.
            Err(_) => Refusal {
                status: self.status,
                code: String::new(),
                sentence: format!("the server answered with status {} and no reason", self.status),
            },
        }
    }
}

/// The API says no, and why.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    /// A word for programs: see docs/errors.md.
    pub code: String,
    pub sentence: String,
}

impl Refusal {
    #[cfg(test)]
    pub fn new(status: u16, sentence: &str) -> Refusal {
        Refusal { status, code: String::new(), sentence: sentence.to_owned() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Refusal {}

/// Nobody answers.
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
    fn whatever_is_asked_for_stays_within_its_part_of_the_url() {
        assert_eq!(segment("a/b?c#d e%"), "a%2Fb%3Fc%23d%20e%25");
        assert_eq!((segment("host-1.a_b"), segment("`{|}")), ("host-1.a_b".into(), "%60%7B%7C%7D".into()));
        assert_eq!(with_query("/events", &[]), "/events");
        let query = [("types", "order.*".to_owned()), ("text", "a&b=c +ü".to_owned())];
        assert_eq!(with_query("/events", &query), "/events?types=order%2E%2A&text=a%26b%3Dc%20%2B%C3%BC");
    }

    #[test]
    fn a_refusal_says_what_the_server_said() {
        let refusal = |text: &str| Answer { status: 404, text: text.to_owned() }.refusal();
        let ours = refusal(r#"{"error": "no event 7", "code": "event_not_found"}"#);
        assert_eq!((ours.to_string().as_str(), ours.code.as_str()), ("no event 7", "event_not_found"));
        assert_eq!(refusal("<html>").to_string(), "the server answered with status 404 and no reason");
    }
}
