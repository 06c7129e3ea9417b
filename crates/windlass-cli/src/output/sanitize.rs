//! Escapes control characters in text from outside, such as titles, errors and worker names.
//!
//! Such text must not control the user's terminal.

use std::fmt::Write;

/// Escapes a text for one line. A line break becomes `\n`.
pub fn sanitize(text: &str) -> String {
    escape(text, is_unsafe)
}

/// Escapes a text but keeps its line breaks. A tab becomes four spaces.
pub fn sanitize_lines(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\t', "    ");
    escape(&text, |c| c != '\n' && is_unsafe(c))
}

/// Escapes characters of JSON as `\uXXXX`, which does not change its meaning.
pub fn sanitize_json(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // Whitespace between values has no escaped form.
            '\n' | '\r' | '\t' => safe.push(c),
            c if is_unsafe(c) => {
                let mut units = [0; 2];
                let units = c.encode_utf16(&mut units);
                units.iter().for_each(|unit| write!(safe, "\\u{unit:04x}").unwrap_or_default());
            }
            c => safe.push(c),
        }
    }
    safe
}

fn escape(text: &str, is_unsafe: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

/// Whether a character is a control character, changes the writing direction or is an invisible line break.
fn is_unsafe(c: char) -> bool {
    let changes_direction =
        matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || changes_direction || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let cases = [
            ("plain, with Zoë and 漢字", "plain, with Zoë and 漢字"),
            ("\x1b[31mred\x07", r"\u{1b}[31mred\u{7}"),
            ("two\r\nlines\t", r"two\r\nlines\t"),
            ("\u{9b}2J and \u{202e}backwards", r"\u{9b}2J and \u{202e}backwards"),
            ("\u{7f}", r"\u{7f}"),
        ];
        for (text, expected) in cases {
            assert_eq!(sanitize(text), expected);
        }
        assert_eq!(sanitize_lines("a\r\n\tb\rc\x1b"), "a\n    b\\rc\\u{1b}");
    }

    #[test]
    fn sanitized_json_has_the_same_meaning() {
        let text = "{\"a\": \"\u{9b}2J\u{202e} \u{7f} é 😀 \\u001b\",\n \"b\": 1}";
        let safe = sanitize_json(text);
        assert!(!safe.contains(['\u{9b}', '\u{202e}', '\u{7f}']) && safe.contains("é 😀"), "{safe}");
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(parse(&safe), parse(text));
    }
}
