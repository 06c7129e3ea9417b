//! Wraps long JSON for documents.

const WIDTH: usize = 110;

/// Breaks JSON that is too long for a line after commas and before each object of a list.
pub fn wrap_json(text: &str) -> String {
    let is_json = |line: &str| line.starts_with('{') && serde_json::from_str::<serde_json::Value>(line).is_ok();
    let wrap =
        |line: &str| if line.chars().count() > WIDTH && is_json(line) { break_lines(line) } else { line.to_owned() };
    text.lines().map(wrap).collect::<Vec<_>>().join("\n")
}

/// A piece of JSON that stays on one line.
struct Piece {
    text: String,
    /// Number of lists and objects around its beginning.
    depth: usize,
    /// The piece begins an object of a list.
    starts_list_item: bool,
}

fn break_lines(json: &str) -> String {
    let (mut lines, mut line): (Vec<String>, String) = (Vec::new(), String::new());
    for piece in split_pieces(json) {
        let fits = line.chars().count() + piece.text.chars().count() <= WIDTH;
        if !line.is_empty() && (piece.starts_list_item || !fits) {
            lines.push(std::mem::replace(&mut line, " ".repeat(piece.depth)));
        }
        line.push_str(&piece.text);
    }
    lines.push(line);
    lines.join("\n")
}

fn split_pieces(json: &str) -> Vec<Piece> {
    let (mut pieces, mut open, mut in_string, mut escaped) = (Vec::new(), Vec::new(), false, false);
    let mut piece = Piece { text: String::new(), depth: 0, starts_list_item: false };
    for (at, c) in json.char_indices() {
        piece.starts_list_item |= c == '{' && piece.text.is_empty() && open.last() == Some(&'[');
        piece.text.push(c);
        match c {
            '"' if !escaped => in_string = !in_string,
            '{' | '[' if !in_string => open.push(c),
            '}' | ']' if !in_string => drop(open.pop()),
            _ => {}
        }
        escaped = in_string && c == '\\' && !escaped;
        if !in_string && (c == ',' || json[at..].starts_with("[{")) {
            let next = Piece { text: String::new(), depth: open.len(), starts_list_item: false };
            pieces.push(std::mem::replace(&mut piece, next));
        }
    }
    pieces.push(piece);
    pieces
}

#[test]
fn each_list_item_has_its_own_line() {
    let long = "x".repeat(60);
    let json =
        format!(r#"{{"events":[{{"id":1,"a":"{long}","b":"{long}"}},{{"id":2,"tags":["a","b,c"]}}],"total":2}}"#);
    let expected = format!(
        "{{\"events\":[\n  {{\"id\":1,\"a\":\"{long}\",\n   \"b\":\"{long}\"}},\n  {{\"id\":2,\"tags\":[\"a\",\"b,c\"]}}],\"total\":2}}"
    );
    assert_eq!(wrap_json(&json), expected);
    assert_eq!(wrap_json(r#"{"short":[{},{}]}"#), r#"{"short":[{},{}]}"#);
}
