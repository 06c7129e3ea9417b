//! A file of JSON lines, in batches that are ready to be sent.

use std::io::{self, BufRead, Read};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The most events that are sent together, …
const BATCH_LINES_MAX: usize = 1_000;
/// … and how large they may be together before no more are added.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// A longer line is no good: no server would take it, and it must not fill the memory.
const LINE_BYTES_MAX: usize = 31 << 20;

/// What some programs put before a file in UTF-8; it is no part of the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Lines that are sent together.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    /// Each with its number.
    pub lines: Vec<(u64, Box<RawValue>)>,
    /// Each event has a key, so that it does no harm to send them again.
    pub keyed: bool,
    /// Some belong to groups, whose order counts: nothing may overtake them.
    pub ordered: bool,
    /// How many bytes of the file have been read up to its end.
    pub read_to: u64,
}

impl Batch {
    /// The lines from this place on leave it.
    pub fn split_off(&mut self, place: usize) -> Batch {
        Batch { lines: self.lines.split_off(place), ..*self }
    }

    /// What is sent.
    pub fn body(&self) -> Body<'_> {
        Body { events: self.lines.iter().map(|(_, line)| &**line).collect() }
    }

    /// The first line and the last.
    pub fn range(&self) -> (u64, u64) {
        let number = |line: Option<&(u64, Box<RawValue>)>| line.map_or(0, |(number, _)| *number);
        (number(self.lines.first()), number(self.lines.last()))
    }
}

/// As the API takes it.
#[derive(Serialize)]
pub struct Body<'a> {
    events: Vec<&'a RawValue>,
}

/// A line that is no good, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    pub line: u64,
    pub reason: String,
}

/// What comes next.
#[derive(Debug)]
pub enum Next {
    Batch(Batch),
    /// The batch before it, perhaps empty, and a line that is no good.
    Bad(Batch, Bad),
    End,
}

/// Reads batches.
pub struct Lines<R> {
    reader: R,
    number: u64,
    read: u64,
    from_line: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub fn new(reader: R, from_line: u64) -> Lines<R> {
        Lines { reader, number: 0, read: 0, from_line, buffer: Vec::new() }
    }

    /// The next batch. A bad line ends it.
    pub fn next(&mut self) -> io::Result<Next> {
        let mut batch = Batch { keyed: true, ..Batch::default() };
        let mut bytes = 0;
        while batch.lines.len() < BATCH_LINES_MAX && bytes < BATCH_BYTES_MAX {
            let Some(line) = self.read_line()? else { break };
            batch.read_to = self.read;
            match line {
                Ok((line, features)) => {
                    bytes += line.get().len();
                    batch.keyed &= features.key.is_some();
                    batch.ordered |= features.group_id.is_some();
                    batch.lines.push((self.number, line));
                }
                Err(reason) => return Ok(Next::Bad(batch, Bad { line: self.number, reason })),
            }
        }
        Ok(if batch.lines.is_empty() { Next::End } else { Next::Batch(batch) })
    }

    /// The next line that has anything in it.
    fn read_line(&mut self) -> io::Result<Option<Event>> {
        loop {
            self.buffer.clear();
            let limit = LINE_BYTES_MAX as u64 + 1;
            let length = self.reader.by_ref().take(limit).read_until(b'\n', &mut self.buffer)?;
            if length == 0 {
                return Ok(None);
            }
            self.number += 1;
            self.read += length as u64;
            if self.number == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.drain(..BYTE_ORDER_MARK.len());
            }
            let too_long = length as u64 == limit && !self.buffer.ends_with(b"\n");
            if too_long {
                self.skip_line()?;
            }
            if self.number < self.from_line || (!too_long && self.buffer.trim_ascii().is_empty()) {
                continue;
            }
            if too_long {
                return Ok(Some(Err(format!("is longer than {LINE_BYTES_MAX} bytes"))));
            }
            return Ok(Some(event(&self.buffer)));
        }
    }

    /// To the end of the line that is too long to be read.
    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let there = self.reader.fill_buf()?;
            let (used, ends) = match there.iter().position(|byte| *byte == b'\n') {
                Some(place) => (place + 1, true),
                None => (there.len(), there.is_empty()),
            };
            self.reader.consume(used);
            self.read += used as u64;
            if ends {
                return Ok(());
            }
        }
    }
}

/// What the order and the repeating of events depend on.
#[derive(Deserialize)]
struct Features {
    key: Option<IgnoredAny>,
    group_id: Option<IgnoredAny>,
}

/// An event, or why it is none.
type Event = Result<(Box<RawValue>, Features), String>;

/// Whatever else is wrong with it the queue will say.
fn event(line: &[u8]) -> Event {
    let line = std::str::from_utf8(line).map_err(|error| format!("is not UTF-8: {error}"))?.trim();
    if !line.starts_with('{') {
        return Err("is not a JSON object".to_owned());
    }
    let bad = |error| format!("is not a JSON object: {error}");
    Ok((serde_json::from_str(line).map_err(bad)?, serde_json::from_str(line).map_err(bad)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(batch: &Batch) -> String {
        format!("{:?} {}", batch.range(), serde_json::to_string(&batch.body()).unwrap())
    }

    fn read(text: &str) -> Vec<String> {
        let mut lines = Lines::new(text.as_bytes(), 1);
        let mut found = Vec::new();
        loop {
            match lines.next().unwrap() {
                Next::End => return found,
                Next::Batch(batch) => found.push(shown(&batch)),
                Next::Bad(batch, Bad { line, reason }) => {
                    found.push(shown(&batch));
                    found.push(format!("line {line} {reason}"));
                }
            }
        }
    }

    #[test]
    fn lines_become_batches_and_bad_ones_are_named() {
        let text = "{\"type\":\"a\"}\n\n  {\"type\": \"b\"}\r\nnope\n{\"type\":\"c\"\n{\"type\":\"ü\"}";
        let expected = [
            r#"(1, 3) {"events":[{"type":"a"},{"type": "b"}]}"#,
            "line 4 is not a JSON object",
            r#"(0, 0) {"events":[]}"#,
            "line 5 is not a JSON object: EOF while parsing an object at line 1 column 11",
            r#"(6, 6) {"events":[{"type":"ü"}]}"#,
        ];
        assert_eq!(read(text), expected);
        assert_eq!(read(""), [""; 0]);
        assert_eq!(read("\u{feff}{\"type\":\"a\"}\r\n\r\n"), [r#"(1, 1) {"events":[{"type":"a"}]}"#]);
        assert_eq!(read("\u{feff}"), [""; 0]);
        assert_eq!(read("\n\u{feff}{}")[1], "line 2 is not a JSON object");
        // One value a line: whatever follows would end up among the other events.
        assert!(read(r#"{"type":"a"},{"type":"b"}"#)[1].contains("trailing characters"));
    }

    #[test]
    fn a_batch_is_bounded() {
        let text = "{\"type\":\"a\"}\n".repeat(2_500);
        let ranges: Vec<String> = read(&text).iter().map(|line| line.split(" {").next().unwrap().to_owned()).collect();
        assert_eq!(ranges, ["(1, 1000)", "(1001, 2000)", "(2001, 2500)"]);
        let wide = format!("{{\"type\":\"a\",\"payload\":\"{}\"}}\n", "x".repeat(3 << 20)).repeat(3);
        assert_eq!(read(&wide).len(), 2);
    }

    #[test]
    fn a_line_without_an_end_does_not_fill_the_memory() {
        let text = format!("{{\"type\":\"a\"}}\n\"{}\"\n{{\"type\":\"b\"}}\n", "x".repeat(LINE_BYTES_MAX + 5));
        let found = read(&text);
        assert_eq!(found[1], format!("line 2 is longer than {LINE_BYTES_MAX} bytes"));
        assert_eq!(found[2], r#"(3, 3) {"events":[{"type":"b"}]}"#);
    }

    #[test]
    fn keys_and_groups_are_seen() {
        let batch = |text: &str| match Lines::new(text.as_bytes(), 1).next().unwrap() {
            Next::Batch(batch) => (batch.keyed, batch.ordered),
            other => panic!("{other:?}"),
        };
        assert_eq!(batch("{\"key\":\"k\"}\n{\"key\":\"l\",\"group_id\":\"g\"}"), (true, true));
        assert_eq!(batch("{\"key\":\"k\"}\n{\"key\":null}"), (false, false));
    }

    #[test]
    fn it_begins_where_it_is_told() {
        let mut lines = Lines::new("bad\n{\"type\":\"a\"}\n{\"type\":\"b\"}\n".as_bytes(), 3);
        match lines.next().unwrap() {
            Next::Batch(batch) => assert_eq!((batch.range(), batch.read_to), ((3, 3), 30)),
            other => panic!("{other:?}"),
        }
    }
}
