//! What is kept of a command's output: its end. Pure.

use std::collections::VecDeque;

/// Of each stream so many bytes are kept.
const KEPT_BYTES_MAX: usize = 16 << 10;
/// As JSON, a text is at most so long: both streams fit into the detail of an attempt.
const JSON_BYTES_MAX: usize = 28 << 10;

/// The end of a stream.
#[derive(Debug, Default)]
pub struct Tail {
    bytes: VecDeque<u8>,
    total: u64,
}

impl Tail {
    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(KEPT_BYTES_MAX)..];
        let over = (self.bytes.len() + bytes.len()).saturating_sub(KEPT_BYTES_MAX);
        self.bytes.drain(..over);
        self.bytes.extend(bytes);
    }

    /// How much there was in all, where not all of it was kept.
    pub fn cut_from(&self) -> Option<u64> {
        let (_, cut) = self.kept();
        cut.then_some(self.total)
    }

    /// As text that a database can keep, whole characters, and not too long once it is JSON.
    pub fn text(&self) -> String {
        self.kept().0
    }

    /// The text, and whether there was more.
    fn kept(&self) -> (String, bool) {
        let (front, back) = self.bytes.as_slices();
        let bytes = [front, back].concat();
        let cut = self.total > bytes.len() as u64;
        let start = if cut { bytes.iter().take(3).take_while(|byte| *byte & 0xc0 == 0x80).count() } else { 0 };
        let text = String::from_utf8_lossy(&bytes[start..]).replace('\0', "\u{fffd}");
        let mut room = JSON_BYTES_MAX;
        let fits = |c: &char| {
            let length = json_length(*c);
            let fits = length <= room;
            room = room.saturating_sub(length);
            fits
        };
        let kept: usize = text.chars().rev().take_while(fits).map(char::len_utf8).sum();
        (text[text.len() - kept..].to_owned(), cut || kept < text.len())
    }

    /// The last line that says something.
    pub fn last_line(&self) -> Option<String> {
        let text = self.text();
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        let line: String = line.chars().take(LINE_CHARS_MAX).collect();
        Some(line)
    }
}

/// An error of one line is at most so long.
const LINE_CHARS_MAX: usize = 500;

fn json_length(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(pieces: &[&[u8]]) -> Tail {
        let mut tail = Tail::default();
        pieces.iter().for_each(|piece| tail.push(piece));
        tail
    }

    #[test]
    fn the_end_is_kept_whatever_comes() {
        let short = tail(&[b"a\n", b"b"]);
        assert_eq!((short.text().as_str(), short.cut_from()), ("a\nb", None));
        let long = tail(&[&[b'x'; 20_000], b"end"]);
        assert_eq!((long.text().len(), long.cut_from()), (KEPT_BYTES_MAX, Some(20_003)));
        assert!(long.text().ends_with("xend"));
        let bits = tail(&vec![&b"ab"[..]; 10_000]);
        assert_eq!((bits.text().len(), bits.cut_from()), (KEPT_BYTES_MAX, Some(20_000)));
    }

    #[test]
    fn it_is_text_that_a_database_can_keep() {
        assert_eq!(tail(&[b"a\0b\xffc"]).text(), "a\u{fffd}b\u{fffd}c");
        let wide = tail(&["ü".repeat(KEPT_BYTES_MAX).as_bytes(), b"."]);
        assert!(wide.text().starts_with('ü') && wide.text().ends_with("ü."), "cut between characters");
        let worst = tail(&[&[1; 20_000]]).text();
        assert!(serde_json::to_string(&worst).unwrap().len() <= JSON_BYTES_MAX + 2);
        assert!(worst.len() > 4_000);
        assert_eq!(tail(&[&[1; 10_000]]).cut_from(), Some(10_000), "it is longer as JSON");
    }

    #[test]
    fn the_last_line_that_says_something_is_the_error() {
        assert_eq!(tail(&[b"first\n  no luck \r\n\n  \n"]).last_line().unwrap(), "no luck");
        assert_eq!(tail(&[b" \n"]).last_line(), None);
        assert_eq!(tail(&[&[b'x'; 9_000]]).last_line().unwrap().len(), LINE_CHARS_MAX);
    }
}
