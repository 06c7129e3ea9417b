//! What others wrote – titles, errors, names of workers – made harmless: nothing of it may steer a terminal.

use std::fmt::Write;

/// One line: line breaks are shown as `\n` is written.
pub fn clean(text: &str) -> String {
    escaped(text, is_unsafe)
}

/// Line breaks stay; a tab is four spaces.
pub fn clean_lines(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\t', "    ");
    escaped(&text, |c| c != '\n' && is_unsafe(c))
}

/// JSON means the same where a character is written by its number.
pub fn clean_json(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // Between the values, where nothing else can stand for them.
            '\n' | '\r' | '\t' => clean.push(c),
            c if is_unsafe(c) => {
                let mut units = [0; 2];
                let units = c.encode_utf16(&mut units);
                units.iter().for_each(|unit| write!(clean, "\\u{unit:04x}").unwrap_or_default());
            }
            c => clean.push(c),
        }
    }
    clean
}

fn escaped(text: &str, is_unsafe: impl Fn(char) -> bool) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    clean
}

/// Control characters, and those that turn the direction of writing or break lines unseen.
fn is_unsafe(c: char) -> bool {
    let turns = matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_others_wrote_steers_the_terminal() {
        let cases = [
            ("plain, with Zoë and 漢字", "plain, with Zoë and 漢字"),
            ("\x1b[31mred\x07", r"\u{1b}[31mred\u{7}"),
            ("two\r\nlines\t", r"two\r\nlines\t"),
            ("\u{9b}2J and \u{202e}backwards", r"\u{9b}2J and \u{202e}backwards"),
            ("\u{7f}", r"\u{7f}"),
        ];
        for (text, expected) in cases {
            assert_eq!(clean(text), expected);
        }
        assert_eq!(clean_lines("a\r\n\tb\rc\x1b"), "a\n    b\\rc\\u{1b}");
    }

    #[test]
    fn json_means_the_same_afterwards() {
        let text = "{\"a\": \"\u{9b}2J\u{202e} \u{7f} é 😀 \\u001b\",\n \"b\": 1}";
        let clean = clean_json(text);
        assert!(!clean.contains(['\u{9b}', '\u{202e}', '\u{7f}']) && clean.contains("é 😀"), "{clean}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&clean), read(text));
    }
}
