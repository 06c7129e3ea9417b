//! A minimal HTTP/1.1 client.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Response {
    /// The body of a JSON response.
    pub fn json(&self) -> Value {
        assert!(self.head.contains("content-type: application/json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The JSON body of a response with this status.
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }

    /// The message of an error with this status and code.
    pub fn error(&self, status: u16, code: &str) -> String {
        let body = self.expect(status);
        assert_eq!(body["code"], code, "{body}");
        let more: Vec<_> = body.as_object().unwrap().keys().filter(|key| !ERROR_KEYS.contains(&key.as_str())).collect();
        assert!(more.is_empty(), "{body}");
        body["error"].as_str().unwrap().to_owned()
    }

    /// The invalid field of a 400 response.
    pub fn bad_field(&self) -> String {
        self.error(400, "invalid");
        self.json()["field"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

const ERROR_KEYS: [&str; 3] = ["error", "code", "field"];

/// Sends a request on a new connection.
pub async fn request(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(head(method, path, headers, body.len()).as_bytes()).await.unwrap();
    connection.write_all(body).await.unwrap();
    read(connection).await
}

pub fn head(method: &str, path: &str, headers: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    )
}

pub async fn read(mut connection: impl AsyncRead + Unpin) -> Response {
    let mut text = String::new();
    connection.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Response { status: status.unwrap_or_else(|| panic!("{head}")), head: head.to_lowercase(), body: body.to_owned() }
}
