//! Separates code, strings and comments of a Rust file.

pub struct Source {
    /// The text with strings and comments blanked; every line keeps its number.
    pub code: String,
    /// The contents of strings, each with the line where it starts.
    pub strings: Vec<(usize, String)>,
}

#[derive(PartialEq)]
enum Kind {
    Comment,
    String,
    Char,
}

impl Source {
    pub fn parse(text: &str) -> Self {
        let mut code = String::with_capacity(text.len());
        let mut strings = Vec::new();
        let mut line = 1;
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let after_word = code.ends_with(is_word);
            let Some((kind, length)) = token(rest, after_word) else {
                code.push(first);
                line += usize::from(first == '\n');
                rest = &rest[first.len_utf8()..];
                continue;
            };
            let (token, after) = rest.split_at(length);
            if kind == Kind::String {
                let opened = token.split_once('"').map_or("", |(_, opened)| opened);
                let string = opened.rsplit_once('"').map_or(opened, |(string, _)| string);
                strings.push((line, string.to_owned()));
            }
            code.extend(token.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            line += token.matches('\n').count();
            rest = after;
        }
        Self { code, strings }
    }
}

/// The comment, string or character that `text` starts with, and its length in bytes.
fn token(text: &str, after_word: bool) -> Option<(Kind, usize)> {
    let end_of = |found: Option<usize>| found.unwrap_or(text.len());
    if text.starts_with("//") {
        Some((Kind::Comment, end_of(text.find('\n'))))
    } else if text.starts_with("/*") {
        Some((Kind::Comment, end_of(block_comment(text))))
    } else if text.starts_with('"') {
        Some((Kind::String, end_of(quoted(text, '"'))))
    } else if let Some(after) = text.strip_prefix('\'') {
        // Otherwise it is a lifetime.
        let mut after = after.chars();
        let is_char = after.next() == Some('\\') || after.next() == Some('\'');
        is_char.then(|| (Kind::Char, end_of(quoted(text, '\''))))
    } else {
        // `br"…"` and `cr"…"` too; plain `b"…"` is a word before a string.
        let raw = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let body = raw[hashes..].strip_prefix('"').filter(|_| !after_word)?;
        let close = format!("\"{}", "#".repeat(hashes));
        let end = body.find(&close).map(|at| text.len() - body.len() + at + close.len());
        Some((Kind::String, end_of(end)))
    }
}

/// Where the text quoted by `quote` ends, escapes skipped.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return Some(at + 1);
        }
    }
    None
}

/// Where a block comment ends; they nest.
fn block_comment(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let step = match text.as_bytes()[at..] {
            [b'/', b'*', ..] => 1,
            [b'*', b'/', ..] => -1,
            _ => 0,
        };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `code`, as `Source` has it, with all items under `#[cfg(test)]` blanked.
pub fn without_tests(code: &str) -> String {
    if code.contains("#![cfg(test)]") {
        return String::new();
    }
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    let marks = ["#[cfg(test", "#[cfg(all(test"];
    while let Some(start) = marks.iter().filter_map(|mark| rest.find(mark)).min() {
        let (before, item) = rest.split_at(start);
        let (item, after) = item.split_at(item_end(item));
        kept.push_str(before);
        kept.extend(item.chars().filter(|&c| c == '\n'));
        rest = after;
    }
    kept + rest
}

/// Where an item with its attributes ends: at its closing brace, or at a semicolon before any.
fn item_end(item: &str) -> usize {
    let mut depth = 0;
    for (at, c) in item.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if (depth == 0 && (c == '}' || c == ';')) || depth < 0 {
            return at + 1;
        }
    }
    item.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_separated_from_code_and_comments() {
        let text = r####"let a = "one \" // still"; // "no"
/* "no" /* nested */ 'still */ let b = r#"two "quoted""#;
let c: &'static str = b"three"; let d = ['"', '\'', '\\', 'é'];
let r#type = br"four"; "five
six"; var"####;
        let source = Source::parse(text);
        let strings: Vec<(usize, &str)> =
            source.strings.iter().map(|(line, string)| (*line, string.as_str())).collect();
        let expected = [(1, r#"one \" // still"#), (2, r#"two "quoted""#), (3, "three"), (4, "four"), (4, "five\nsix")];
        assert_eq!(strings, expected);
        assert_eq!(source.code.lines().count(), text.lines().count());
        let words: Vec<&str> = source.code.split_whitespace().collect();
        let expected = "let a = ; let b = ; let c: &'static str = b ; let d = [ , , , ]; let r#type = ; ; var";
        assert_eq!(words.join(" "), expected);
    }

    #[test]
    fn unterminated_tokens_do_not_hang() {
        for text in ["\"open", "r#\"open\"", "/* open", "'\\", "'", "// open", "r", "#[cfg(test)]"] {
            without_tests(&Source::parse(text).code);
        }
    }

    #[test]
    fn items_under_cfg_test_are_blanked() {
        let code = "\
fn a() {}
#[cfg(test)]
#[allow(dead)]
fn b(x: [u8; 2]) {
    if x { y }
}
fn c() {}
#[cfg(all(test, unix))]
use d::{e, f};
#[cfg(test)]
mod tests;
fn g() {}";
        let left = without_tests(code);
        assert_eq!(left.lines().count(), code.lines().count());
        let left: String = left.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(left, "fn a() {} fn c() {} ; fn g() {}");
    }
}
