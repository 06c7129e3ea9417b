//! Reads a stream of server-sent events.

use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;

use super::Unreachable;
use crate::Result;

/// Servers send an event or a comment at least every 15 seconds.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// One server-sent event.
#[derive(Debug, PartialEq, Eq)]
pub struct ServerSentEvent {
    pub name: String,
    pub data: String,
}

/// An open stream. Silence for longer than [`SILENCE_MAX`] counts as a lost connection.
pub struct EventStream {
    body: Body,
    parser: Parser,
    silence_max: Duration,
}

impl EventStream {
    pub(super) fn new(body: Body) -> EventStream {
        EventStream { body, parser: Parser::default(), silence_max: SILENCE_MAX }
    }

    /// Returns the next event, or `None` when the server has ended the stream.
    pub async fn next(&mut self) -> Result<Option<ServerSentEvent>> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            let timed_out = |_| Unreachable(format!("nothing was heard for {} s", self.silence_max.as_secs()));
            match tokio::time::timeout(self.silence_max, self.body.frame()).await.map_err(timed_out)? {
                None => return Ok(None),
                Some(Err(error)) => return Err(Unreachable(format!("the stream broke off: {error}")).into()),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.parser.buffer.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }
}

/// Parses received bytes into events. A line may arrive in several pieces.
#[derive(Default)]
struct Parser {
    buffer: Vec<u8>,
    name: String,
    data: Vec<String>,
}

impl Parser {
    fn next(&mut self) -> Option<ServerSentEvent> {
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(event) = self.parse_line(line.trim_end_matches(['\r', '\n'])) {
                return Some(event);
            }
        }
        None
    }

    /// Parses one line. An empty line ends an event. A line that begins with a colon is a comment.
    fn parse_line(&mut self, line: &str) -> Option<ServerSentEvent> {
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
            return (!data.is_empty()).then(|| ServerSentEvent { name, data: data.join("\n") });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.name = value.to_owned(),
            "data" => self.data.push(value.to_owned()),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silent_server_is_unreachable() {
        let mut body = Some(": still here\n\n");
        let frames = futures_util::stream::poll_fn(move |_| match body.take() {
            Some(text) => std::task::Poll::Ready(Some(Ok::<_, std::io::Error>(text))),
            None => std::task::Poll::Pending,
        });
        let mut stream = EventStream { silence_max: Duration::ZERO, ..EventStream::new(Body::from_stream(frames)) };
        assert!(stream.next().await.unwrap_err().is::<Unreachable>());
    }

    #[test]
    fn events_are_parsed_from_any_chunk_size() {
        let text =
            ": hello\n\nevent: activity\ndata: {\"a\":1}\n\nevent: two\r\ndata: x\r\ndata: y\r\n\r\nevent: half\n";
        let expected = [("activity", "{\"a\":1}"), ("two", "x\ny")];
        for size in 1..text.len() {
            let (mut parser, mut found) = (Parser::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                parser.buffer.extend_from_slice(piece);
                found.extend(std::iter::from_fn(|| parser.next()));
            }
            let found: Vec<_> = found.iter().map(|event| (event.name.as_str(), event.data.as_str())).collect();
            assert_eq!(found, expected, "pieces of {size}");
        }
    }
}
