//! Formats JSON over several lines. The order of members and every digit of numbers stay as they are.

/// Puts each member of objects and each item of lists on its own line. Empty ones stay on one line.
pub fn pretty_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let mut chars = json.chars().filter(outside_whitespace_filter()).peekable();
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

/// Filters out whitespace outside of strings.
fn outside_whitespace_filter() -> impl FnMut(&char) -> bool {
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
    fn only_whitespace_changes() {
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
            assert_eq!(pretty_json(json), expected);
        }
    }

    #[test]
    fn format_equals_that_of_serde_json() {
        let json = r#"{"a":[true,null,-1.5,"x"],"b":{"c":{"d":[[],[[1]]]}}}"#;
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(pretty_json(json), serde_json::to_string_pretty(&value).unwrap());
    }
}
