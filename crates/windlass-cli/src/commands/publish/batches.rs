//! Reads a file of JSON lines as batches of events.

use std::io::{self, BufRead, Read};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The most events in a batch.
const BATCH_LINES_MAX: usize = 1_000;
/// A batch of this size is complete.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Longer lines are invalid. No server would accept them, and they must not exhaust the memory.
const LINE_BYTES_MAX: usize = 31 << 20;

/// Some programs write this mark at the beginning of UTF-8 files. It is removed from the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Lines that are sent in one request.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    /// The line numbers and events.
    pub lines: Vec<(u64, Box<RawValue>)>,
    /// Every event has a key, so that the batch is safe to send again.
    pub all_keyed: bool,
    /// Some events belong to groups, so no other batch may overtake this one.
    pub is_ordered: bool,
    /// Offset in the file after the last line.
    pub end_offset: u64,
}

impl Batch {
    /// Splits the batch and returns the lines from this index on.
    pub fn split_off(&mut self, index: usize) -> Batch {
        Batch { lines: self.lines.split_off(index), ..*self }
    }

    /// Returns the body of the request.
    pub fn body(&self) -> Body<'_> {
        Body { events: self.lines.iter().map(|(_, line)| &**line).collect() }
    }

    /// Returns the first and the last line number, or zeros for an empty batch.
    pub fn range(&self) -> (u64, u64) {
        let number = |line: Option<&(u64, Box<RawValue>)>| line.map_or(0, |(number, _)| *number);
        (number(self.lines.first()), number(self.lines.last()))
    }
}

/// The request body: a [`windlass_api::PublishBatchRequest`] whose events stay as they are in the file.
#[derive(Serialize)]
pub struct Body<'a> {
    events: Vec<&'a RawValue>,
}

/// An invalid line, and why it is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidLine {
    pub line: u64,
    pub reason: String,
}

/// What the reader returns.
#[derive(Debug)]
pub enum ReadItem {
    Batch(Batch),
    /// An invalid line, after a batch that may be empty.
    Invalid(Batch, InvalidLine),
    End,
}

/// Reads batches.
pub struct BatchReader<R> {
    reader: R,
    line_number: u64,
    offset: u64,
    from_line: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> BatchReader<R> {
    pub fn new(reader: R, from_line: u64) -> BatchReader<R> {
        BatchReader { reader, line_number: 0, offset: 0, from_line, buffer: Vec::new() }
    }

    /// Reads the next batch. An invalid line ends it.
    pub fn next(&mut self) -> io::Result<ReadItem> {
        let mut batch = Batch { all_keyed: true, ..Batch::default() };
        let mut bytes = 0;
        while batch.lines.len() < BATCH_LINES_MAX && bytes < BATCH_BYTES_MAX {
            let Some(line) = self.read_line()? else { break };
            batch.end_offset = self.offset;
            match line {
                Ok((line, event)) => {
                    bytes += line.get().len();
                    batch.all_keyed &= event.key.is_some();
                    batch.is_ordered |= event.group_id.is_some();
                    batch.lines.push((self.line_number, line));
                }
                Err(reason) => return Ok(ReadItem::Invalid(batch, InvalidLine { line: self.line_number, reason })),
            }
        }
        Ok(if batch.lines.is_empty() { ReadItem::End } else { ReadItem::Batch(batch) })
    }

    /// Reads the next line that is not blank.
    fn read_line(&mut self) -> io::Result<Option<ParsedLine>> {
        loop {
            self.buffer.clear();
            let limit = LINE_BYTES_MAX as u64 + 1;
            let length = self.reader.by_ref().take(limit).read_until(b'\n', &mut self.buffer)?;
            if length == 0 {
                return Ok(None);
            }
            self.line_number += 1;
            self.offset += length as u64;
            if self.line_number == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.drain(..BYTE_ORDER_MARK.len());
            }
            let too_long = length as u64 == limit && !self.buffer.ends_with(b"\n");
            if too_long {
                self.skip_line()?;
            }
            if self.line_number < self.from_line || (!too_long && self.buffer.trim_ascii().is_empty()) {
                continue;
            }
            if too_long {
                return Ok(Some(Err(format!("is longer than {LINE_BYTES_MAX} bytes"))));
            }
            return Ok(Some(parse_line(&self.buffer)));
        }
    }

    /// Skips the rest of a line that is too long.
    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let available = self.reader.fill_buf()?;
            let (used, is_end) = match available.iter().position(|byte| *byte == b'\n') {
                Some(index) => (index + 1, true),
                None => (available.len(), available.is_empty()),
            };
            self.reader.consume(used);
            self.offset += used as u64;
            if is_end {
                return Ok(());
            }
        }
    }
}

/// The fields that decide whether a batch is ordered and safe to send again.
#[derive(Deserialize)]
struct KeyAndGroup {
    key: Option<IgnoredAny>,
    group_id: Option<IgnoredAny>,
}

/// An event, or why the line is invalid.
type ParsedLine = Result<(Box<RawValue>, KeyAndGroup), String>;

/// Checks that a line is a JSON object. The queue validates its fields.
fn parse_line(line: &[u8]) -> ParsedLine {
    let line = std::str::from_utf8(line).map_err(|error| format!("is not UTF-8: {error}"))?.trim();
    if !line.starts_with('{') {
        return Err("is not a JSON object".to_owned());
    }
    let invalid = |error| format!("is not a JSON object: {error}");
    Ok((serde_json::from_str(line).map_err(invalid)?, serde_json::from_str(line).map_err(invalid)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(batch: &Batch) -> String {
        format!("{:?} {}", batch.range(), serde_json::to_string(&batch.body()).unwrap())
    }

    fn read_all(text: &str) -> Vec<String> {
        let mut reader = BatchReader::new(text.as_bytes(), 1);
        let mut found = Vec::new();
        loop {
            match reader.next().unwrap() {
                ReadItem::End => return found,
                ReadItem::Batch(batch) => found.push(describe(&batch)),
                ReadItem::Invalid(batch, InvalidLine { line, reason }) => {
                    found.push(describe(&batch));
                    found.push(format!("line {line} {reason}"));
                }
            }
        }
    }

    #[test]
    fn lines_become_batches_and_invalid_lines_are_reported() {
        let text = "{\"type\":\"a\"}\n\n  {\"type\": \"b\"}\r\nnope\n{\"type\":\"c\"\n{\"type\":\"ü\"}";
        let expected = [
            r#"(1, 3) {"events":[{"type":"a"},{"type": "b"}]}"#,
            "line 4 is not a JSON object",
            r#"(0, 0) {"events":[]}"#,
            "line 5 is not a JSON object: EOF while parsing an object at line 1 column 11",
            r#"(6, 6) {"events":[{"type":"ü"}]}"#,
        ];
        assert_eq!(read_all(text), expected);
        assert_eq!(read_all(""), [""; 0]);
        assert_eq!(read_all("\u{feff}{\"type\":\"a\"}\r\n\r\n"), [r#"(1, 1) {"events":[{"type":"a"}]}"#]);
        assert_eq!(read_all("\u{feff}"), [""; 0]);
        assert_eq!(read_all("\n\u{feff}{}")[1], "line 2 is not a JSON object");
        // A line must have one value: anything behind it would become part of the request.
        assert!(read_all(r#"{"type":"a"},{"type":"b"}"#)[1].contains("trailing characters"));
    }

    #[test]
    fn batch_size_is_limited() {
        let text = "{\"type\":\"a\"}\n".repeat(2_500);
        let ranges: Vec<String> =
            read_all(&text).iter().map(|line| line.split(" {").next().unwrap().to_owned()).collect();
        assert_eq!(ranges, ["(1, 1000)", "(1001, 2000)", "(2001, 2500)"]);
        let wide = format!("{{\"type\":\"a\",\"payload\":\"{}\"}}\n", "x".repeat(3 << 20)).repeat(3);
        assert_eq!(read_all(&wide).len(), 2);
    }

    #[test]
    fn overlong_line_is_skipped() {
        let text = format!("{{\"type\":\"a\"}}\n\"{}\"\n{{\"type\":\"b\"}}\n", "x".repeat(LINE_BYTES_MAX + 5));
        let found = read_all(&text);
        assert_eq!(found[1], format!("line 2 is longer than {LINE_BYTES_MAX} bytes"));
        assert_eq!(found[2], r#"(3, 3) {"events":[{"type":"b"}]}"#);
    }

    #[test]
    fn keys_and_groups_are_detected() {
        let batch = |text: &str| match BatchReader::new(text.as_bytes(), 1).next().unwrap() {
            ReadItem::Batch(batch) => (batch.all_keyed, batch.is_ordered),
            other => panic!("{other:?}"),
        };
        assert_eq!(batch("{\"key\":\"k\"}\n{\"key\":\"l\",\"group_id\":\"g\"}"), (true, true));
        assert_eq!(batch("{\"key\":\"k\"}\n{\"key\":null}"), (false, false));
    }

    #[test]
    fn reading_starts_at_the_given_line() {
        let mut reader = BatchReader::new("bad\n{\"type\":\"a\"}\n{\"type\":\"b\"}\n".as_bytes(), 3);
        match reader.next().unwrap() {
            ReadItem::Batch(batch) => assert_eq!((batch.range(), batch.end_offset), ((3, 3), 30)),
            other => panic!("{other:?}"),
        }
    }
}
