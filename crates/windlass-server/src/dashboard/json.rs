//! Indents JSON. The text is not parsed, so numbers and keys stay exactly as they are.

/// The indented JSON, cut after about `bytes_max` bytes, and whether it is complete.
pub(super) fn indented(json: &str, bytes_max: usize) -> (String, bool) {
    let mut writer = Writer { out: String::with_capacity(json.len().min(bytes_max) * 2), depth: 0 };
    let mut chars = json.chars().peekable();
    let (mut in_string, mut escaped) = (false, false);
    while let Some(c) = chars.next() {
        if writer.out.len() >= bytes_max {
            return (writer.out, false);
        }
        if in_string {
            writer.out.push(c);
            in_string = escaped || c != '"';
            escaped = c == '\\' && !escaped;
            continue;
        }
        match c {
            '{' | '[' => {
                while chars.peek().is_some_and(|next| next.is_whitespace()) {
                    chars.next();
                }
                let close = chars.next_if(|next| matches!(next, '}' | ']'));
                writer.open(c, close);
            }
            '}' | ']' => writer.close(c),
            ',' => writer.next_line(","),
            ':' => writer.out.push_str(": "),
            c if c.is_whitespace() => {}
            c => {
                writer.out.push(c);
                in_string = c == '"';
            }
        }
    }
    (writer.out, true)
}

struct Writer {
    out: String,
    depth: usize,
}

impl Writer {
    fn next_line(&mut self, before: &str) {
        self.out.push_str(before);
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n("  ", self.depth));
    }

    fn open(&mut self, bracket: char, close: Option<char>) {
        self.out.push(bracket);
        match close {
            Some(close) => self.out.push(close),
            None => {
                self.depth += 1;
                self.next_line("");
            }
        }
    }

    fn close(&mut self, bracket: char) {
        self.depth = self.depth.saturating_sub(1);
        self.next_line("");
        self.out.push(bracket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whitespace_between_tokens_changes() {
        let table = [
            ("1", "1"),
            ("{}", "{}"),
            ("[ ]", "[]"),
            (r#"{"a":1,"b":[true,null]}"#, "{\n  \"a\": 1,\n  \"b\": [\n    true,\n    null\n  ]\n}"),
            (r#"{ "a" : { } }"#, "{\n  \"a\": {}\n}"),
            (r#"["a,b:{[\"\\", "\\"]"#, "[\n  \"a,b:{[\\\"\\\\\",\n  \"\\\\\"\n]"),
            ("[12345678901234567890.10]", "[\n  12345678901234567890.10\n]"),
        ];
        for (json, expected) in table {
            assert_eq!(indented(json, 1_000), (expected.to_owned(), true), "{json}");
        }
    }

    #[test]
    fn long_json_is_cut() {
        let (text, all) = indented(&format!("\"{}\"", "é".repeat(1_000)), 100);
        assert!(!all && text.len() <= 102, "{}", text.len());
    }
}
