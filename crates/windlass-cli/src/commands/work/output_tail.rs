//! Keeps the end of a command's output, to be stored with the attempt.

use std::collections::VecDeque;

/// Bytes kept of each stream.
const KEPT_BYTES_MAX: usize = 16 << 10;
/// Length limit of a text as JSON. Both streams together fit into the detail of an attempt.
const JSON_BYTES_MAX: usize = 28 << 10;

/// The end of a stream.
#[derive(Debug, Default)]
pub struct OutputTail {
    bytes: VecDeque<u8>,
    total: u64,
}

impl OutputTail {
    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(KEPT_BYTES_MAX)..];
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(KEPT_BYTES_MAX);
        self.bytes.drain(..excess);
        self.bytes.extend(bytes);
    }

    /// Returns the total length of the stream if the text was truncated.
    pub fn total_if_truncated(&self) -> Option<u64> {
        let (_, is_truncated) = self.text_and_truncation();
        is_truncated.then_some(self.total)
    }

    /// Returns the kept text: whole characters without NUL, within the length limit as JSON.
    pub fn text(&self) -> String {
        self.text_and_truncation().0
    }

    /// Returns the kept text, and whether it was truncated.
    fn text_and_truncation(&self) -> (String, bool) {
        let (front, back) = self.bytes.as_slices();
        let bytes = [front, back].concat();
        let is_truncated = self.total > bytes.len() as u64;
        let start = if is_truncated { bytes.iter().take(3).take_while(|byte| *byte & 0xc0 == 0x80).count() } else { 0 };
        let text = String::from_utf8_lossy(&bytes[start..]).replace('\0', "\u{fffd}");
        let mut remaining = JSON_BYTES_MAX;
        let fits = |c: &char| {
            let length = json_bytes(*c);
            let fits = length <= remaining;
            remaining = remaining.saturating_sub(length);
            fits
        };
        let kept: usize = text.chars().rev().take_while(fits).map(char::len_utf8).sum();
        (text[text.len() - kept..].to_owned(), is_truncated || kept < text.len())
    }

    /// Returns the last line that is not blank.
    pub fn last_line(&self) -> Option<String> {
        let text = self.text();
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        let line: String = line.chars().take(LINE_CHARS_MAX).collect();
        Some(line)
    }
}

/// Length limit of the line that is reported as the error.
const LINE_CHARS_MAX: usize = 500;

fn json_bytes(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(pieces: &[&[u8]]) -> OutputTail {
        let mut tail = OutputTail::default();
        pieces.iter().for_each(|piece| tail.push(piece));
        tail
    }

    #[test]
    fn end_of_the_output_is_kept() {
        let short = tail(&[b"a\n", b"b"]);
        assert_eq!((short.text().as_str(), short.total_if_truncated()), ("a\nb", None));
        let long = tail(&[&[b'x'; 20_000], b"end"]);
        assert_eq!((long.text().len(), long.total_if_truncated()), (KEPT_BYTES_MAX, Some(20_003)));
        assert!(long.text().ends_with("xend"));
        let pieces = tail(&vec![&b"ab"[..]; 10_000]);
        assert_eq!((pieces.text().len(), pieces.total_if_truncated()), (KEPT_BYTES_MAX, Some(20_000)));
    }

    #[test]
    fn kept_text_is_storable() {
        assert_eq!(tail(&[b"a\0b\xffc"]).text(), "a\u{fffd}b\u{fffd}c");
        let wide = tail(&["ü".repeat(KEPT_BYTES_MAX).as_bytes(), b"."]);
        assert!(wide.text().starts_with('ü') && wide.text().ends_with("ü."), "cut between characters");
        let worst = tail(&[&[1; 20_000]]).text();
        assert!(serde_json::to_string(&worst).unwrap().len() <= JSON_BYTES_MAX + 2);
        assert!(worst.len() > 4_000);
        assert_eq!(tail(&[&[1; 10_000]]).total_if_truncated(), Some(10_000), "it is longer as JSON");
    }

    #[test]
    fn last_non_blank_line_is_the_error() {
        assert_eq!(tail(&[b"first\n  no luck \r\n\n  \n"]).last_line().unwrap(), "no luck");
        assert_eq!(tail(&[b" \n"]).last_line(), None);
        assert_eq!(tail(&[&[b'x'; 9_000]]).last_line().unwrap().len(), LINE_CHARS_MAX);
    }
}
