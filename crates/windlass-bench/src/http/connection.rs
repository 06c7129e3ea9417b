//! A minimal HTTP/1.1 client on one keep-alive connection. It shares the cores with the measured server, so it must
//! be light.

use std::io::Write;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::AnyError;

pub struct Connection {
    stream: TcpStream,
    host: SocketAddr,
    request: Vec<u8>,
    response: Vec<u8>,
}

pub struct Response<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

impl Connection {
    pub async fn open(host: SocketAddr) -> Result<Connection, AnyError> {
        let connected = TcpStream::connect(host).await;
        let stream = connected.map_err(|error| format!("cannot connect to {host}: {error}"))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, host, request: Vec::new(), response: Vec::new() })
    }

    pub async fn get(&mut self, path: &str) -> Result<Response<'_>, AnyError> {
        self.request.clear();
        write!(self.request, "GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.host)?;
        self.exchange().await
    }

    pub async fn post(&mut self, path: &str, body: &[u8]) -> Result<Response<'_>, AnyError> {
        let (host, length) = (self.host, body.len());
        self.request.clear();
        write!(
            self.request,
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )?;
        self.request.extend_from_slice(body);
        self.exchange().await
    }

    /// Sends the next request only after the previous response was read completely, so that responses match requests.
    async fn exchange(&mut self) -> Result<Response<'_>, AnyError> {
        self.stream.write_all(&self.request).await?;
        self.response.clear();
        let head = loop {
            self.read().await?;
            if let Some(head) = Head::parse(&self.response)? {
                break head;
            }
        };
        let end = head.length + head.body_length;
        while self.response.len() < end {
            self.read().await?;
        }
        Ok(Response { status: head.status, body: &self.response[head.length..end] })
    }

    async fn read(&mut self) -> Result<(), AnyError> {
        match self.stream.read_buf(&mut self.response).await? {
            0 => Err("the server closed the connection".into()),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, PartialEq)]
struct Head {
    status: u16,
    /// Including the empty line.
    length: usize,
    body_length: usize,
}

impl Head {
    /// `None` while the head is incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<Head>, AnyError> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
        let text = std::str::from_utf8(&bytes[..end])?;
        let mut lines = text.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| format!("not an HTTP response: {status_line}"))?;
        let mut body_length = None;
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                body_length = Some(value.trim().parse()?);
            }
        }
        let body_length = match status {
            204 => 0,
            _ => body_length.ok_or("a response without content-length")?,
        };
        Ok(Some(Head { status, length: end + 4, body_length }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_parsed_when_complete() {
        let response = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nx: y\r\n\r\n{}";
        let length = response.len() - 2;
        assert_eq!(Head::parse(&response[..length - 1]).unwrap(), None);
        let head = Head { status: 201, length, body_length: 2 };
        assert_eq!(Head::parse(&response[..length]).unwrap(), Some(head));
    }

    #[test]
    fn only_204_needs_no_length() {
        let head = Head::parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap();
        assert_eq!((head.status, head.body_length), (204, 0));
        assert!(Head::parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(Head::parse(b"SSH-2.0\r\n\r\n").is_err());
    }
}
