//! JSON over several lines, otherwise as it was written: the order of its members and every digit stay.

/// Objects and lists that are not empty are spread; anything else stays as it is.
pub fn pretty(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let mut chars = json.chars().filter(not_between_tokens()).peekable();
    while let Some(c) = chars.next() {
        text.push(c);
        match c {
            _ if in_string => {
                in_string = escaped || c != '"';
                escaped = c == '\\' && !escaped;
            }
            '"' => in_string = true,
            ':' => text.push(' '),
            ',' => new_line(&mut text, depth),
            '{' | '[' => match chars.peek() {
                Some('}' | ']') => text.extend(chars.next()),
                _ => {
                    depth += 1;
                    new_line(&mut text, depth);
                }
            },
            _ => {}
        }
        if let (false, Some('}' | ']')) = (in_string, chars.peek()) {
            depth = depth.saturating_sub(1);
            new_line(&mut text, depth);
        }
    }
    text
}

fn new_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.push_str(&"  ".repeat(depth));
}

/// Passes all but the whitespace outside of strings.
fn not_between_tokens() -> impl FnMut(&char) -> bool {
    let (mut in_string, mut escaped) = (false, false);
    move |c| {
        let inside = in_string;
        in_string = if in_string { escaped || *c != '"' } else { *c == '"' };
        escaped = inside && *c == '\\' && !escaped;
        inside || !c.is_ascii_whitespace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whitespace_changes() {
        let cases = [
            ("12345678901234567890.10", "12345678901234567890.10"),
            (r#""a, {b}: \"c\" \\""#, r#""a, {b}: \"c\" \\""#),
            ("{}", "{}"),
            ("[ ]", "[]"),
            (
                r#"{"z":1,"a":[1, {"b c" : []}]}"#,
                "{\n  \"z\": 1,\n  \"a\": [\n    1,\n    {\n      \"b c\": []\n    }\n  ]\n}",
            ),
            (r#"["\\", "]"]"#, "[\n  \"\\\\\",\n  \"]\"\n]"),
        ];
        for (json, expected) in cases {
            assert_eq!(pretty(json), expected);
        }
    }

    #[test]
    fn it_reads_like_the_usual_form() {
        let json = r#"{"a":[true,null,-1.5,"x"],"b":{"c":{"d":[[],[[1]]]}}}"#;
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(pretty(json), serde_json::to_string_pretty(&value).unwrap());
    }
}
