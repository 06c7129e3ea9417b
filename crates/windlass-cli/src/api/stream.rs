//! Server-sent events, as they come.

use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;

use super::Unreachable;
use crate::Result;

/// Servers say something every 15 seconds, if only that they are there.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// One of them.
#[derive(Debug, PartialEq, Eq)]
pub struct StreamEvent {
    pub name: String,
    pub data: String,
}

/// What a path tells as it happens.
pub struct Stream {
    body: Body,
    parser: Parser,
    silence_max: Duration,
}

impl Stream {
    pub(super) fn new(body: Body) -> Stream {
        Stream { body, parser: Parser::default(), silence_max: SILENCE_MAX }
    }

    /// The next event; `None` when the other side has ended.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            let silent = |_| Unreachable(format!("nothing was heard for {} s", self.silence_max.as_secs()));
            match tokio::time::timeout(self.silence_max, self.body.frame()).await.map_err(silent)? {
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

/// Bytes that came and were not read yet; a line may come in pieces.
#[derive(Default)]
struct Parser {
    buffer: Vec<u8>,
    name: String,
    data: Vec<String>,
}

impl Parser {
    fn next(&mut self) -> Option<StreamEvent> {
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(event) = self.take(line.trim_end_matches(['\r', '\n'])) {
                return Some(event);
            }
        }
        None
    }

    /// An empty line ends an event; one that begins with a colon is a comment.
    fn take(&mut self, line: &str) -> Option<StreamEvent> {
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
            return (!data.is_empty()).then(|| StreamEvent { name, data: data.join("\n") });
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
    async fn who_says_nothing_is_gone() {
        let mut body = Some(": still here\n\n");
        let frames = futures_util::stream::poll_fn(move |_| match body.take() {
            Some(text) => std::task::Poll::Ready(Some(Ok::<_, std::io::Error>(text))),
            None => std::task::Poll::Pending,
        });
        let mut stream = Stream { silence_max: Duration::ZERO, ..Stream::new(Body::from_stream(frames)) };
        assert!(stream.next().await.unwrap_err().is::<Unreachable>());
    }

    #[test]
    fn events_are_read_however_they_are_cut() {
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
